"""Profiling for tall_skinny's model, with made-up timings that follow the model."""

import pytest

from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.problem import problems_of
from jax_vbgemm._src.tools import cli
from jax_vbgemm._src.tools.profile import IN_MEMORY, SINGLE_TILE, profile

H100 = device_spec("h100")
MEMORY, PRODUCT = 6e-7, 4e-9


def measure(problems, dtype, precision, tiles):
    """A launch of 3 us. A single block takes its latencies; for other problems, row tiles of 1024 rows are fastest."""
    del precision
    (problem,) = problems
    if problem.m == 128:
        assert tiles == [(SINGLE_TILE, 128)]
        latency = MEMORY if problem.k >= IN_MEMORY[0] else PRODUCT
        t3 = {"float32": 16, "float64": 8}[dtype]  # a step of 64 bytes
        return [3e-6 + problem.k * latency / t3]
    longest = [int(name.split("-")[-1].split("x")[0]) for name, _ in tiles]
    return [problem.m * 1e-11 * (1 if long == 1024 else 2) for long in longest]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_latencies_and_rows_a_thread_are_found(dtype):
    said = []
    found = profile(H100, dtype, "highest", measure, said.append)
    assert found.memory_latency == pytest.approx(MEMORY)
    assert found.product_latency == pytest.approx(PRODUCT)
    assert found.tcf == 8
    assert {tile.m for tile in found.fastest.values()} == {1024}
    assert all(tile.n >= n for (_, _, n), tile in found.fastest.items())
    assert len(said) == 2 + len(found.fastest)
    assert "memory latency 600 ns, product latency 4.0 ns" in str(found)
    assert "m 1000000, k 8, n 8: rows-1024x8, t1 128, tcf 8" in str(found)
    planner = found.planner()
    assert (planner.memory_latency, planner.product_latency) == (found.memory_latency, found.product_latency)
    planner(problems_of([(10**6, 8, 8)]), H100, catalogue_for(dtype, H100)).validate()


def test_a_device_without_such_tiles_is_refused():
    with pytest.raises(ValueError, match="profile: no row tiles are built for float32 on p100"):
        profile(device_spec("p100"), "float32", "highest", measure, print)


def test_the_command_wants_a_gpu_and_a_precision(capsys, monkeypatch):
    monkeypatch.setattr(cli.backends, "default_device", lambda: device_spec("cpu"))
    for arguments, error in (
        (["profile"], "the device is a cpu"),
        (["profile", "--precision", "fp8"], "name 'fp8'; known"),
    ):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert error in capsys.readouterr().err
    monkeypatch.setattr(cli.backends, "default_device", lambda: H100)
    monkeypatch.setattr("jax_vbgemm._src.tools.calibrate.measure_in_loop", measure)
    assert cli.main(["profile", "--precision", "fp64"]) == 0
    assert "TallSkinny(memory_latency=6e-07, product_latency=4e-09)" in capsys.readouterr().out
