"""Benchmarks of groups whose sizes are data: all installed peers agree, and messages name mistakes."""

import pytest
from slow_cases import slow_except

pytest.importorskip("typer")

from typer.testing import CliRunner

import bench
import dynamic


@pytest.mark.parametrize("direction", slow_except(dynamic.DIRECTIONS, dynamic.DIRECTIONS[-1:]))
@pytest.mark.parametrize("name", slow_except(["40x3x5x6", "lora_40x8x6"], ["lora_40x8x6"]))
def test_peers_agree(name, direction):
    if name.startswith("lora") and direction == "wgrad":
        name = "lora_24x8x3"
    rows, _ = dynamic.measure(name, "fp32", "skewed", direction, ["vbgemm", "xla", "lax_ragged_dot", "static_loop"], 1)
    assert [row.peer for row in rows] == ["vbgemm", "xla", "lax_ragged_dot", "static_loop"]
    assert all(row.nbad == 0 for row in rows)


@pytest.mark.parametrize("skew", dynamic.SKEWS)
def test_sizes_are_all_rows(skew):
    assert dynamic.sizes_of(1000, 7, skew).sum() == 1000


def test_a_peer_that_is_not_installed_is_told(monkeypatch):
    def absent(name):
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(dynamic.importlib, "import_module", absent)
    rows, missing = dynamic.measure("40x3x5x6", "fp32", "uniform", "forward", ["vbgemm", "tokamax"], 1)
    assert [row.peer for row in rows] == ["vbgemm"]
    assert missing == ["tokamax, 40x3x5x6 forward: no module tokamax"]


def test_a_mistake_is_told_in_a_line():
    result = CliRunner().invoke(bench.app, ["ragged", "40x3"])
    assert result.exit_code == 2
    assert "no workload '40x3'" in result.output
