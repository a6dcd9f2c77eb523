"""The benchmark of a mixture-of-experts layer: its peers compute the same layer."""

import pytest
from slow_cases import slow_except

pytest.importorskip("typer")

import moe_layer

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
