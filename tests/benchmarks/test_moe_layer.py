"""The benchmarks of a mixture-of-experts layer: their peers compute the same layer, and no limit is a wrong one."""

import pytest
from slow_cases import slow_except

pytest.importorskip("typer")

import moe_layer
import moe_peers
from workloads import read_csv

PEERS = {
    "forward_backward": ["vbgemm", "lax_ragged_dot", "dense"],
    "micro_batches": ["vbgemm", "lax_ragged_dot", "vbgemm_then_add"],
}


@pytest.mark.parametrize("direction", slow_except(PEERS, []))
def test_peers_agree(monkeypatch, direction):
    monkeypatch.setitem(moe_layer.MODELS, "test", moe_layer.Model(8, 6, 5, 2))
    rows, missing = moe_layer.measure("test", 7, "skewed", direction, "fp32", PEERS[direction], 1)
    assert [row.peer for row in rows] == PEERS[direction]
    assert not missing
    assert all(row.error < 1e-5 for row in rows if row.peer != "dense")


def test_limits():
    model = moe_layer.Model(d=4, f=3, experts=5, k=2)
    weights, tokens = 2 * 3 * 5 * 4 * 3, 2 * 7 * 4  # bytes
    assert moe_peers.least_bytes(model, 7, "forward") == weights + 2 * tokens
    assert moe_peers.least_bytes(model, 7, "forward_backward") == 3 * weights + 4 * tokens
    one_token = moe_peers.least_bytes(model, 1, "forward")  # two experts have it
    assert one_token == weights * 2 / 5 + 2 * tokens / 7


def test_a_run_of_all_peers(monkeypatch, tmp_path):
    monkeypatch.setitem(moe_layer.MODELS, "test", moe_layer.Model(8, 6, 5, 2))
    monkeypatch.setattr(moe_peers, "PASSES", ("forward",))
    monkeypatch.setattr(moe_peers, "torch_rows", lambda *_: iter(()))
    csv = tmp_path / "peers.csv"
    moe_peers.main(csv, model=["test"], tokens=[7], rounds=1, minutes=5)
    rows = {row.peer: row for row in read_csv(moe_layer.Row, csv)}
    assert set(rows) == {"vbgemm", "dense", "limit", "lax_ragged_dot"}
    assert rows["limit"].us == pytest.approx(rows["dense"].us)  # the only dense product has the best rate
    assert "cuDNN" in rows["lax_ragged_dot"].jax
    moe_peers.main(csv, model=["test"], tokens=[7], rounds=1, minutes=0)  # no time for lax_ragged_dot
    assert [row.peer for row in read_csv(moe_layer.Row, csv)][4:] == ["vbgemm", "dense", "limit"]
