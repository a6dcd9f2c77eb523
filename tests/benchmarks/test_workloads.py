"""Workloads by name, rows in files, and the timing loop on products whose operands are stored transposed."""

import dataclasses
import math

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

import bench
import in_loop
import jax_vbgemm as vb
from workloads import Row, expand, problems_named, read_csv, write_csv


def test_one_product_by_its_name():
    assert problems_named("one_7x5x100") == (vb.Problem(7, 5, 100),)
    assert problems_named("one_7x5x100_tn") == (vb.Problem(7, 5, 100, transpose_a=True),)
    assert problems_named("one_7x5x100_nt") == (vb.Problem(7, 5, 100, transpose_b=True),)


def test_tall_products_are_as_tall_as_they_say():
    names = expand(["tall"])
    assert len(set(names)) == len(names)
    problems = [problem for name in names for problem in problems_named(name)]
    assert len(problems) == len(names)
    assert all(sorted((p.m, p.n, p.k))[1] <= 40 and max(p.m, p.n, p.k) >= 10**5 for p in problems)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loop", "ism9*"], "no workload matches 'ism9*'"),
        (["loop", "inception_99"], "no workload 'inception_99'"),
        (["loop", "inception_1", "--precision", "fp33"], "--precision': unknown name 'fp33'"),
        (["loop", "inception_1", "--peer", "magma"], "--peer': unknown name 'magma'"),
        (["cases", "a.case", "inception_1", "--device", "h1"], "--device': device: unknown name 'h1'"),
    ],
)
def test_a_mistake_is_told_in_a_line(arguments, message):
    result = CliRunner().invoke(bench.app, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("name", ["one_5x3x40_tn", "one_5x3x40_nt", "one_5x3x40_tt"])
def test_every_peer_reads_operands_as_they_are_stored(name):
    rows = in_loop.measure(name, "fp32", ["vbgemm", "xla_loop", "padded"], rounds=1)
    assert [row.peer for row in rows] == ["vbgemm", "xla_loop", "padded"]
    assert all(row.max_rel_err < 1e-6 for row in rows)
    with pytest.raises(ValueError, match="no transposed operands"):
        in_loop.measure(name, "fp32", ["ragged_dot"], rounds=1)


def test_rows_come_back_from_a_file(tmp_path):
    row = Row("a", "g", "[16,128]x64", "fp32", 64, 0.5, "hot", 1.25, math.nan, 1e-7, 1e-7, 0, "")
    for peer in ("a", "b"):
        write_csv(tmp_path / "rows.csv", [dataclasses.replace(row, peer=peer)])
    found = list(read_csv(Row, tmp_path / "rows.csv"))
    assert [row.peer for row in found] == ["a", "b"]
    assert repr(found[0]) == repr(row)  # NaN equals nothing
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text().replace("nan", ""))
    assert math.isnan(next(read_csv(Row, tmp_path / "rows.csv")).stream_us)
