"""The benchmark of a mixture-of-experts layer: its peers compute the same layer."""

import pytest

pytest.importorskip("typer")

import moe_layer


def test_peers_agree(monkeypatch):
    monkeypatch.setitem(moe_layer.MODELS, "test", moe_layer.Model(8, 6, 5, 2))
    rows, missing = moe_layer.measure(
        "test", 7, "skewed", "forward_backward", "fp32", ["vbgemm", "lax_ragged_dot", "dense"], 1
    )
    assert [row.peer for row in rows] == ["vbgemm", "lax_ragged_dot", "dense"]
    assert not missing
    assert rows[1].error < 1e-5
