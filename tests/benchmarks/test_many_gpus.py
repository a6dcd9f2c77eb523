"""The benchmarks of divided experts and of collectives: all ways agree, a failing one is a row, slow ones are named."""

import pytest

pytest.importorskip("typer")

import collectives
import expert_parallel

import moe_layer
from jax_vbgemm._src.planner import device_spec
from workloads import read_csv

pytestmark = pytest.mark.multidevice(2)


def test_a_run_of_divided_experts(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(moe_layer.MODELS, "test", moe_layer.Model(8, 6, 4, 2))
    csv, whole = tmp_path / "experts.csv", expert_parallel.function_of

    def function_of(way, *rest):
        if way.exchange == "all_gather" and way.chunks == 2:
            raise MemoryError("so many bytes\nand more")
        return whole(way, *rest)

    monkeypatch.setattr(expert_parallel, "function_of", function_of)
    expert_parallel.main(
        ["test"], tokens=[8], tokens_a_device=[8], skew=["skewed"], directions=["forward"], devices=[1, 2],
        exchanges=["all_gather", "all_to_all"], chunks=[1, 2], rounds=1, seconds=0, threads=1, minutes=5, output=csv,
    )  # fmt: skip
    rows = list(read_csv(expert_parallel.Row, csv))
    assert [(row.layer, row.tokens, row.devices, row.exchange, row.chunks) for row in rows] == [
        ("one_device", 8, 1, "", 1),
        *((layer, tokens, 2, *way) for tokens in (8, 16) for layer, *way in (
            ("expert_mlp", "all_gather", 1), ("expert_mlp", "all_to_all", 1), ("expert_mlp", "all_gather", 2),
            ("expert_mlp", "all_to_all", 2), ("expert_parallel", "all_gather", 1),
        )),
    ]  # fmt: skip
    failed = [row for row in rows if row.note]
    assert {(row.exchange, row.chunks, row.note) for row in failed} == {("all_gather", 2, "MemoryError: so many bytes")}
    assert all(row.us > 0 and row.speedup > 0 and row.error < 0.05 for row in rows if not row.note)
    assert {row.exchange for row in rows if row.taken} == {"all_gather"}
    expert_parallel.main(["test"], tokens=[8], devices=[1], skew=["uniform"], minutes=-1)
    assert "left out, as the time is over" in capsys.readouterr().out


def test_a_run_of_collectives(tmp_path, capsys):
    csv = tmp_path / "collectives.csv"
    collectives.main([2], mebibytes=[0.02, 0.1], rounds=1, calls=2, output=csv)
    rows = list(read_csv(collectives.Row, csv))
    assert [row.collective for row in rows[::2]] == list(collectives.COLLECTIVES)
    assert all(row.us > 0 and "Error" not in row.note for row in rows)
    lines = capsys.readouterr().out.split("[collectives]")[1].split("\n")[1:5]
    assert [line.split(" = ")[0] for line in lines] == [n for n in collectives.COLLECTIVES if " " not in n]


def test_a_slow_collective_is_named(monkeypatch):
    def row(collective, us):
        return collectives.Row(collective, "bfloat16", 2, 2**27, us, 2**27 / us / 1e3, "", "NVIDIA H200", "0", "day")

    monkeypatch.setattr(collectives, "default_device", lambda: device_spec("h200"))
    rows = [row("all_gather", 500), row("all_to_all", 5000), row("ragged_all_to_all", 1800)]
    collectives.notes(rows)
    assert [bool(each.note) for each in rows] == [False, True, True]
    expected = {name: 1e6 * (rate.latency + 2**27 / rate.bandwidth) for name, rate in device_spec("h200").collectives}
    for each in rows[1:]:
        assert f"far from the {expected[each.collective]:.0f} us of device.toml" in each.note
    monkeypatch.setattr(collectives, "default_device", lambda: device_spec("h100"))  # where none was measured
    rows = [row("all_gather", 500), row("all_to_all", 5000)]
    collectives.notes(rows)
    assert "10.0 times slower" in rows[1].note
