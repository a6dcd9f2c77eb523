"""vb.autotune: on this machine's device, and its choice with made-up times."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.planner.cores import Cores
from jax_vbgemm._src.tools import timing, tune

SHAPES = [(40, 50, 60), vb.Problem(33, 20, 17, batch=2, transpose_a=True), (0, 3, 4)]


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "tuned.json"
    monkeypatch.setenv("VBGEMM_CACHE", str(path))
    return path


@pytest.mark.parametrize("dtype", slow_except(["float32", "complex64"], ["complex64"]))
def test_measured_here_and_taken_by_auto(dtype, file):
    tuned = vb.autotune(SHAPES, dtype=dtype, rounds=1)
    assert tuned.winner in tuned.seconds
    assert min(tuned.seconds.values()) == tuned.seconds[tuned.winner] > 0
    plan = vb.plan(SHAPES, dtype=dtype)
    assert plan.notes[-1] == f"took {tuned.winner}, measured by autotune"
    assert file.exists()


def test_what_was_found_is_short_to_print():
    plan = vb.plan(SHAPES)
    lines = str(vb.Tuned(plan, "sort_split", {"coordinated": 2.5e-3, "sort_split": 1.25e-5})).splitlines()
    assert lines[0] == "Tuned: 'sort_split' is the fastest of 2"
    assert [line.split() for line in lines[1:]] == [["12.5", "us", "sort_split"], ["2500.0", "us", "coordinated"]]
    slower = str(vb.Tuned(plan, "sort_split", {"coordinated": 2.5e-5, "sort_split": 1.25e-5}, "coordinated"))
    assert "is the fastest of 2, 2.00 times as fast as the default plan" in slower
    assert slower.endswith("25.0 us  coordinated, the default")
    assert "nothing was gained" in str(vb.Tuned(plan, "sort_split", {"sort_split": 1.25e-5}, "sort_split"))


def slowest_first(planners, *_):
    """The last candidate wins."""
    return [float(len(planners) - index) for index in range(len(planners))]


@pytest.mark.slow
def test_a_program_lowered_later_follows(file):
    shapes = [(70, 80, 90), (100, 90, 80)]
    rng = np.random.default_rng(0)
    As = [jnp.asarray(rng.standard_normal((m, k)), jnp.float32) for m, _, k in shapes]
    Bs = [jnp.asarray(rng.standard_normal((k, n)), jnp.float32) for _, n, k in shapes]

    def text():
        return jax.jit(lambda As, Bs: vb.batched_matmul(As, Bs)).lower(As, Bs).as_text()

    before = text()
    tuned = tune.tune(shapes, "float32", None, None, 1, None, slowest_first)
    default = "cores" if jax.default_backend() == "cpu" else "makespan"
    assert list(tuned.seconds)[-1] == tuned.winner != tuned.default == default
    assert text() != before
    for C, A, B in zip(jax.jit(vb.batched_matmul)(As, Bs), As, Bs, strict=True):
        np.testing.assert_allclose(C, np.asarray(A) @ np.asarray(B), rtol=1e-4, atol=1e-4)
    # ... in another process too.
    program = f"import jax_vbgemm as vb; print(vb.plan({shapes}, precision='highest').notes[-1])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"took {tuned.winner}, measured by autotune"
    file.unlink()
    assert text() == before


def test_a_path_in_place_of_the_usual(tmp_path):
    tune.tune(SHAPES, "float32", None, jax.devices()[-1], 1, tmp_path / "mine.json", slowest_first)
    assert (tmp_path / "mine.json").exists()


def test_candidates_are_different_plans():
    problems = [vb.Problem(64, 64, 64)] * 4
    h100 = vb.plan(problems, device="h100")
    found = tune.candidate_planners(problems, h100.device, h100.catalogue)
    assert next(iter(found)) == "makespan"
    assert any(name.startswith("makespan only ") for name in found)
    assert len({tune._content(planner(problems, h100.device, h100.catalogue)) for planner in found.values()}) == len(
        found
    )


def test_both_batchings_and_tall_skinny_are_candidates():
    def names(problems):
        h100 = vb.plan(problems, device="h100", precision="highest")
        return tune.candidate_planners(problems, h100.device, h100.catalogue)

    assert {"coordinated threshold", "coordinated binary"} <= set(names([vb.Problem(128, 128, 64)] * 300))
    assert "tall_skinny" in names([vb.Problem(10240, 16, 10240)])  # another tile than makespan's
    many = names([vb.Problem(128, 128, 8, batch=40_000)])  # more tiles than are batched
    assert not any(name.startswith("coordinated ") for name in many)


def test_candidates_are_near_the_best_by_kernels_that_suit():
    # The calibrated costs of row tiles hold for tall problems only, so that they are no candidates for
    # others.
    problems = [vb.Problem(437, 391, 870), vb.Problem(300, 512, 1000)] * 4
    h100 = vb.plan(problems, device="h100", precision="highest")
    found = tune.candidate_planners(problems, h100.device, h100.catalogue)
    assert not any("rows" in name for name in found)
    seconds = [planner(problems, h100.device, h100.catalogue).predicted_seconds for planner in found.values()]
    assert len(found) > 6
    assert max(seconds) <= 1.5 * min(seconds)


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        (SHAPES, {"rounds": 0}, ValueError, "autotune: rounds = 0 must be a whole number from 1 on"),
        ([(0, 1, 2)], {}, ValueError, "autotune: problems has none with any arithmetic"),
        (
            SHAPES,
            {"device": "h100"},
            TypeError,
            "autotune: device = 'h100' must be a jax.Device, .* on a device of this",
        ),
        (SHAPES, {"dtype": "int32"}, NotImplementedError, "autotune: device .* has no kernels for dtype int32"),
        (SHAPES, {"precision": "best"}, ValueError, "best"),
        ([(1, 2, -3)], {}, ValueError, r"problems\[0\] has k = -3"),
    ],
)
def test_errors_name_the_option(shapes, options, error, message, file):
    with pytest.raises(error, match=message):
        vb.autotune(shapes, **options)


def test_nowhere_to_keep_the_winner():
    with pytest.raises(ValueError, match="VBGEMM_CACHE is 'off' and there is no cache="):
        vb.autotune(SHAPES)


def test_a_loop_calls_its_function_so_often():
    count = timing.looped(lambda x: x + 1, 5)(jnp.int32(1))
    assert count == 2  # each iteration's operands are the same
    assert timing.looped(None, 7)() == 7
    assert len(timing.seconds_in_loop([jnp.sin, jnp.cos], (jnp.ones((10, 10)),), 1e-3, rounds=1)) == 2


def test_a_file_that_is_none_of_ours_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "other.json").write_text("{}")

    def measured(*_):
        raise AssertionError("measured")

    for file, error in ((tmp_path / "other.json", ValueError), (tmp_path, OSError)):
        with pytest.raises(error):
            tune.tune([(8, 8, 8)], "float32", None, None, 1, file, measured)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's planner")
def test_k_in_slices_is_tried_on_a_cpu(tmp_path):
    seen = []

    def measured(planners, *_):
        seen.extend(planners)
        return [float(not isinstance(planner, Cores)) for planner in planners]

    found = tune.tune([(16, 16, 10**6)], "float32", None, None, 1, tmp_path / "tuned.json", measured)
    assert any(isinstance(planner, Cores) for planner in seen)
    assert found.winner == "cores"
