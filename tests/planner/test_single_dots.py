"""Which members of a batch become XLA's single dots, without a GPU."""

from pathlib import Path

import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.single_dots import dot_seconds, split
from jax_vbgemm._src.tools.shapes import read_problems

H100, CPU = device_spec("h100"), device_spec("cpu")


def muon(*sizes):
    """The three products of a Newton-Schulz step for matrices (m, n), m <= n."""
    return (
        tuple(vb.Problem(m, m, n) for m, n in sizes),
        tuple(vb.Problem(m, m, m) for m, n in sizes),
        tuple(vb.Problem(m, n, m) for m, n in sizes),
    )


LLAMA = [(4096, 4096), (4096, 14336)]
SMALL = [(16, 144)] * 30 + [(9, 80)] * 20 + [(64, 64)] * 20


@pytest.mark.parametrize("device", [H100, CPU], ids=lambda device: device.name)
@pytest.mark.parametrize("precision", ["default", "highest"])
def test_small_matrices_are_a_batch_and_large_ones_dots(device, precision):
    assert split(muon(*LLAMA), "float32", precision, device).alone == (True, True)
    assert not any(split(muon(*SMALL), "float32", precision, device).alone)
    mixed = split(muon(*SMALL, *LLAMA), "float32", precision, device)
    assert mixed.alone == (False,) * len(SMALL) + (True, True)
    assert mixed.seconds < min(mixed.batched_seconds, mixed.dots_seconds)


def test_what_leaves_is_what_is_larger():
    sizes = [(64, 576), (512, 4608), (128, 1152), (256, 2304)] * 4
    result = split(muon(*sizes), "float32", "default", H100)
    out = {size for size, alone in zip(sizes, result.alone, strict=True) if alone}
    assert all(size in out for size in sizes if size > min(out, default=(9999, 0)))
    assert result.seconds <= min(result.batched_seconds, result.dots_seconds)


def test_nothing_to_split():
    assert split(((), (), ()), "float32", "default", H100).alone == ()
    assert split((), "float32", "default", H100).alone == ()
    assert split(((vb.Problem(0, 0, 0),),), "float32", "default", H100).alone == (False,)


@pytest.mark.parametrize(("model", "step"), [("yolo26n", 4481e-6), ("resnet50", 5046e-6), ("gpt2_small", 15111e-6)])
def test_dots_cost_what_optax_takes_on_an_h100(model, step):
    """A measured step of optax.contrib.muon, five Newton-Schulz iterations, jax 0.11.2."""
    workloads = Path(__file__).parents[2] / "benchmarks" / "workloads"
    problems = [
        p for kind in ("gram", "square", "apply") for p in read_problems(workloads / f"muon_{model}_{kind}.txt")
    ]
    predicted = 5 * sum(dot_seconds(problem, "float32", "default", H100) for problem in problems)
    assert 0.8 < predicted / step < 1.25


def test_where_no_dot_was_measured_the_tensor_cores_count():
    large, mi210, mi300x = vb.Problem(8192, 8192, 8192), device_spec("mi210"), device_spec("mi300x")
    flops = 2 * 8192**3
    assert dot_seconds(large, "float32", "highest", mi210) == pytest.approx(flops / 45.3e12, rel=0.02)
    assert dot_seconds(large, "float16", "default", mi210) == pytest.approx(flops / 181e12, rel=0.02)
    assert dot_seconds(large, "float32", "default", mi300x) == pytest.approx(flops / 653.7e12, rel=0.1)


def test_an_h200_is_an_h100_with_faster_memory():
    flat, deep = vb.Problem(16384, 16384, 64), vb.Problem(8192, 8192, 8192)
    seconds = {device: [dot_seconds(p, "float32", "default", device_spec(device)) for p in (flat, deep)]
               for device in ("h100", "h200")}  # fmt: skip
    assert seconds["h100"][0] == pytest.approx(1.6 * seconds["h200"][0], rel=0.01)
    assert seconds["h100"][1] == seconds["h200"][1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "complex64", "complex128"])
@pytest.mark.parametrize("device", ["h100", "a100", "v100", "mi210", "cpu"])
def test_every_dtype_and_device_has_a_rate(dtype, device):
    small, large = (dot_seconds(vb.Problem(s, s, s), dtype, "default", device_spec(device)) for s in (16, 4096))
    assert 0 < small < large
    assert large <= dot_seconds(vb.Problem(4096, 4096, 4096), dtype, "highest", device_spec(device))
