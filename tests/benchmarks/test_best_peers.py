"""Lists that no file holds, the best peer of a list, and turns of two programs."""

import dataclasses
import math

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

import best_peers
import peer_gains
from stand_in import read_cases
from workloads import Row, expand, problems_named

ROW = Row("vbgemm_auto", "any", "any_mn128_k128_b8", "bf16", 8, 0.5, "cold", 10.0, math.nan, 1e-7, 1e-7, 0, "")


def test_other_seeds_are_other_lists_of_the_same_distribution():
    assert len(expand(["held_out"])) == len(expand(["grids_s7"])) == 2 * 12 * 3
    first, second = (problems_named(f"any_mn128_k512_s{seed}_b128") for seed in (1, 2))
    assert first != second
    assert first[:8] == problems_named("any_mn128_k512_s1_b8")
    sizes = [(p.m, p.n, p.k) for p in first]
    assert all(16 <= m <= 128 and 16 <= n <= 128 and 16 <= k <= 512 for m, n, k in sizes)
    assert max(k for *_, k in sizes) > 400
    assert max(m for m, *_ in sizes) > 100
    powers = {(p.m, p.k) for p in problems_named("pow2_mn128_k512_s1_b128")}
    assert {m for m, _ in powers} == {16, 32, 64, 128}
    assert {k for _, k in powers} == {16, 32, 64, 128, 256, 512}


def test_the_limit_is_that_of_the_peers_figures_at_their_bandwidth(monkeypatch):
    monkeypatch.setattr(peer_gains, "BANDWIDTH", 3.0e12)
    assert peer_gains.limit_us("any_mn128_k1024_b16", "bf16") == pytest.approx(1.39, rel=0.01)  # peers/h100_best.csv


def test_the_best_peer_is_the_least_of_medians_of_right_results():
    times = {"vbgemm_auto": (10, 9, 30), "slow": (40, 2, 30), "fast": (12, 15, 12)}
    rows = [dataclasses.replace(ROW, peer=peer, graph_us=us) for peer, of in times.items() for us in of]
    rows.append(dataclasses.replace(ROW, peer="wrong", graph_us=1.0, nbad=1))
    (cell,) = peer_gains.cells_of(peer_gains.medians(rows))
    assert (cell.ours, cell.best, cell.peer) == (10, 12, "fast")
    with pytest.raises(ValueError, match="wrong results of vbgemm_auto on any_mn128_k128_b8 bf16"):
        peer_gains.cells_of([dataclasses.replace(ROW, nbad=1)])


# Writes a row for each list of the turn: 10 us for the driver, 12 us for the peers.
PROGRAM = """#!/bin/sh
case $1 in --cases) sizes=${2%.case}.sizes csv=$4 row=vbgemm_auto us=10 ;; *) sizes=$1 csv=$2 row=other us=12 ;; esac
[ -s $csv ] || echo HEADING >> $csv
for list in $(cut -d' ' -f1 $sizes | uniq); do echo $row,any,$list,bf16,2,0.1,cold,$us,nan,0,0,0, >> $csv; done
""".replace("HEADING", ",".join(field.name for field in dataclasses.fields(Row)))


def test_programs_take_turns(tmp_path):
    turns, rows, program = tmp_path / "turns", tmp_path / "rows.csv", tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    names = ["any_mn128_k128_b2", "any_mn128_k128_s1_b2", "any_mn128_k256_b2"]

    def call(*words):
        result = CliRunner().invoke(best_peers.app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    call("cases", turns, *names, "--precision", "bf16", "--lists", 2)
    assert [name for turn in sorted(turns.glob("*.case")) for _, name, *_ in read_cases(turn)] == names
    call("run", turns, rows, "--driver", program, "--peers", program, "--rounds", 2)
    peers = [line.split(",")[0] for line in rows.read_text().splitlines()[1:]]
    assert peers == [*["vbgemm_auto"] * 2, *["other"] * 2, "vbgemm_auto", "other"] * 2
    table = call("table", rows, "--csv", tmp_path / "medians.csv")
    assert len((tmp_path / "medians.csv").read_text().splitlines()) == 1 + 2 * 3
    assert "any      bf16 b2     1.20  1.20   0/2" in table
    assert "any new  bf16 b2     1.20  1.20   0/1" in table
