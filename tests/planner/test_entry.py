import subprocess
import sys

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import PLANNERS, device_spec, plan_problems, resolve_planner

H100 = device_spec("h100")
SHAPES = [(64, 64, 8), (10, 20, 30)]


def test_planners_have_names():
    assert {"auto", "uniform", "coordinated", "sort_split", "load_balanced", "tall_skinny"} <= set(PLANNERS)
    for name in PLANNERS:
        plan = plan_problems(SHAPES, "float32", H100, name)
        assert plan.planner == name
        plan.validate()
    known = ", ".join(PLANNERS)
    with pytest.raises(ValueError, match=f"unknown name 'skinny'; known are {known}"):
        plan_problems(SHAPES, "float32", H100, "skinny")
    with pytest.raises(TypeError, match="expected a name or a hashable callable"):
        resolve_planner(3)
    with pytest.raises(TypeError, match="expected a name or a hashable callable"):
        resolve_planner(type("Unhashable", (), {"__call__": lambda *_: None, "__hash__": None})())


@pytest.mark.parametrize(
    "planner", ["auto", vb.Coordinated(theta=5), vb.SortSplit(9), vb.LoadBalanced(active_waves={"small": 4})]
)
def test_plans_are_cached_by_shapes_dtype_device_and_planner(planner):
    plan = plan_problems(SHAPES, "float32", H100, planner)
    assert plan_problems(tuple(SHAPES), "float32", device_spec("h100"), planner) is plan
    assert plan_problems(SHAPES, "float64", H100, planner) is not plan
    assert plan_problems(SHAPES, "float32", device_spec("a100"), planner) is not plan
    assert plan_problems(SHAPES[:1], "float32", H100, planner) is not plan


def test_an_error_in_the_sizes_names_the_problem():
    with pytest.raises(ValueError, match=r"plan: problems\[1\] has n = -1: sizes must be non-negative integers"):
        plan_problems([(1, 1, 1), (1, -1, 1)], "float32", H100)
    with pytest.raises(TypeError, match=r"plan: problems\[0\] is of type ndarray: expected a Problem or a tuple"):
        plan_problems([np.ones((30, 40))], "float32", H100)


def test_a_tile_that_is_not_built_is_an_error():
    with pytest.raises(ValueError, match=r"there is no tile \('huge', 128\) for float64; there are small/128"):
        plan_problems(SHAPES, "float64", H100, vb.Uniform(("huge", 128)))
    with pytest.raises(TypeError, match="Uniform: tile = 16 must be a name or a pair"):
        vb.Uniform(16)


def test_a_users_planner():
    def mine(problems, device, catalogue):
        return vb.Plan.from_choices(
            problems, device, catalogue, planner="mine", tiles=[catalogue.find("small", 128)] * len(problems)
        )

    plan = plan_problems(SHAPES, "float32", H100, mine)
    assert plan.planner == "mine"
    assert plan.choices == (("small", 128),) * 2


def test_a_users_plan_is_validated():
    def hole(problems, device, catalogue):
        return vb.Plan.from_blocks(
            problems, device, catalogue, planner="hole", blocks=[[vb.Tile(0, 0, 0, 0, 0, 8, "large")]]
        )

    with pytest.raises(ValueError, match=r"problems\[1\] at batch 0, row 0, col 0, k 0 is not covered"):
        plan_problems(SHAPES, "float32", H100, hole)
    with pytest.raises(TypeError, match="returned dict, not a Plan"):
        plan_problems(SHAPES, "float32", H100, lambda *_: {})

    class Subclass(vb.Uniform):
        def __call__(self, problems, device, catalogue):
            return hole(problems, device, catalogue)

    with pytest.raises(ValueError, match=r"problems\[1\] at batch 0, row 0, col 0, k 0 is not covered"):
        plan_problems(SHAPES, "float32", H100, Subclass())

    def others(problems, device, catalogue):
        return vb.Uniform()(problems[::-1], device, catalogue)

    with pytest.raises(ValueError, match="a plan for other problems or another device"):
        plan_problems(SHAPES, "float32", H100, others)

    def elsewhere(problems, device, catalogue):
        return vb.Uniform()(problems, device_spec("v100"), catalogue)

    with pytest.raises(ValueError, match="a plan for other problems or another device"):
        plan_problems(SHAPES, "float32", H100, elsewhere)


def test_planning_imports_no_jax():
    """The package's __init__ may import jax; the planner's own files must work without it."""
    program = """
import sys, types
package = types.ModuleType("jax_vbgemm"); package.__path__ = [sys.argv[1]]; sys.modules["jax_vbgemm"] = package
from jax_vbgemm._src.planner import plan_problems, device_spec
print(plan_problems([(64, 64, 8)], "float32", device_spec("h100")).num_tiles)
assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib")]
"""
    import jax_vbgemm

    subprocess.run([sys.executable, "-c", program, jax_vbgemm.__path__[0]], check=True, capture_output=True)


@pytest.mark.parametrize("name", PLANNERS)
def test_tests_validate_the_packages_planners_too(name, monkeypatch):
    """A mistake in a planner then shows in every test that plans with it."""

    def hole(problems, device, catalogue):
        return vb.Plan.from_blocks(
            problems, device, catalogue, planner="hole", blocks=[[vb.Tile(0, 0, 0, 0, 0, 8, "small")]]
        )

    monkeypatch.setattr(type(PLANNERS[name]), "__call__", lambda self, *given: hole(*given))
    with pytest.raises(ValueError, match="is not covered"):
        plan_problems([(999, 64, 8)], "float32", H100, name, tuned=False)
