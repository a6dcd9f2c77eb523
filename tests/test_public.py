"""The packages' public names, and the examples of their docstrings."""

import doctest
import importlib
import inspect
import operator
import sys

import jax
import pytest
from slow_cases import slow_except

import jax_vbgemm
from jax_vbgemm._src.tools import tune

PACKAGES = (
    "jax_vbgemm",
    "jax_vbgemm.blocksparse",
    "jax_vbgemm.flax",
    "jax_vbgemm.flax.linen",
    "jax_vbgemm.flax.nnx",
    "jax_vbgemm.irreps",
    "jax_vbgemm.irreps.e3nn",
    "jax_vbgemm.irreps.equinox",
    "jax_vbgemm.irreps.flax",
    "jax_vbgemm.irreps.haiku",
    "jax_vbgemm.irreps.nnx",
    "jax_vbgemm.moe",
    "jax_vbgemm.networks",
    "jax_vbgemm.optax",
)


NEEDED = {
    "jax_vbgemm.flax": ["flax"],
    "jax_vbgemm.flax.linen": ["flax"],
    "jax_vbgemm.flax.nnx": ["flax"],
    "jax_vbgemm.irreps.e3nn": ["e3nn_jax"],
    "jax_vbgemm.irreps.equinox": ["e3nn_jax", "equinox"],
    "jax_vbgemm.irreps.flax": ["e3nn_jax", "flax"],
    "jax_vbgemm.irreps.haiku": ["e3nn_jax", "haiku"],
    "jax_vbgemm.irreps.nnx": ["cuequivariance_jax", "flax"],
    "jax_vbgemm.optax": ["optax"],
}


def package(name):
    for needed in NEEDED.get(name, ()):
        pytest.importorskip(needed)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_what_is_public(name):
    found = package(name)
    assert list(found.__all__) == sorted(found.__all__, key=lambda x: (not x.isupper(), not x[0].isupper(), x))
    for public in found.__all__:
        thing = getattr(found, public)
        assert inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing) or public.isupper()
        assert inspect.getdoc(thing)


@pytest.mark.parametrize("name", ["flax", "optax"])
def test_packages_with_extras_are_attributes(name, monkeypatch):
    found = package(f"jax_vbgemm.{name}")
    monkeypatch.delattr(jax_vbgemm, name)
    assert getattr(jax_vbgemm, name) is found
    monkeypatch.setitem(sys.modules, f"jax_vbgemm.{name}", None)  # as where the extra is not installed
    with pytest.raises(AttributeError, match=f"import jax_vbgemm.{name}: "):
        getattr(jax_vbgemm, name)


@pytest.mark.parametrize("name", ["jax_vbgemm", "jax_vbgemm.flax", "jax_vbgemm.optax"])
def test_dir_shows_no_internal_module(name):
    found = package(name)
    shown = {x for x in dir(found) if not x.startswith("__")}
    assert shown == set(found.__all__)


def test_an_old_name_stays_for_one_release():
    assert jax_vbgemm.expert_parallel is jax_vbgemm.moe.expert_parallel


FUNCTIONS = [
    (name, public)
    for name, names in {
        "jax_vbgemm": (
            "autotune", "available_backends", "batched_gemm", "batched_gram", "batched_matmul", "batched_matmul_sum",
            "group", "newton_schulz", "pack", "plan", "quantize", "ragged_dot", "ragged_dot_general", "ragged_matmul",
            "target",
        ),
        "jax_vbgemm.blocksparse": ("einsum", "pack", "tensordot"),
        "jax_vbgemm.flax.linen": ("batched_linear",),
        "jax_vbgemm.flax.nnx": ("batched_linear",),
        "jax_vbgemm.moe": (
            "balanced_bias", "clamped_swiglu", "combine", "dispatch", "expert_mlp", "expert_parallel", "gated_dot",
            "load_balance_loss", "quantize_experts", "route", "router_z_loss",
        ),
        "jax_vbgemm.irreps.e3nn": ("tensor_product",),
        "jax_vbgemm.networks": ("apply", "apply_typed"),
        "jax_vbgemm.optax": (
            "add_cautious_decayed_weights", "apply_updates", "muon", "orthogonalize", "pack_state", "pack_tree",
            "scale_by_muon", "scale_by_normuon", "scale_by_shape", "scale_by_soap", "shampoo", "soap", "unpack_state",
        ),
    }.items()
    for public in names
]  # fmt: skip


CLASSES = [("jax_vbgemm", name) for name in ("RaggedArray", "Scaled", "View", "View.of")] + [
    *(
        (f"jax_vbgemm.flax.{api}", name)
        for api in ("linen", "nnx")
        for name in ("BatchedLinear", "BranchedConv1x1", "HeteroLinear", "MixtureOfExperts", "MultiLoRA")
    ),
    ("jax_vbgemm.blocksparse", "BlockArray"),
    ("jax_vbgemm.irreps", "LinearMap"),
    ("jax_vbgemm.irreps", "SymmetricContraction"),
    ("jax_vbgemm.irreps", "TensorProduct"),
    ("jax_vbgemm.irreps.equinox", "Linear"),
    ("jax_vbgemm.irreps.flax", "Linear"),
    ("jax_vbgemm.irreps.haiku", "Linear"),
    ("jax_vbgemm.irreps.nnx", "IrrepsIndexedLinear"),
    ("jax_vbgemm.irreps.nnx", "IrrepsLinear"),
    *(("jax_vbgemm.optax", name) for name in ("MuonSplit", "NorMuonState", "PackedTree", "ShampooState", "SoapState")),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_function_is_among_those_whose_examples_run(name):
    found = package(name)
    public = {x for x in found.__all__ if inspect.isfunction(getattr(found, x))}
    assert public == {function for owner, function in FUNCTIONS if owner == name}


# Each of their examples runs dozens of operations, outside of jit a program each.
LONG = [
    ("jax_vbgemm", "ragged_matmul"),
    ("jax_vbgemm.flax.nnx", "MixtureOfExperts"),
    *(("jax_vbgemm.flax.linen", name) for name in ("batched_linear", "BranchedConv1x1", "MixtureOfExperts")),
    ("jax_vbgemm.flax.linen", "MultiLoRA"),
    ("jax_vbgemm.irreps.nnx", "IrrepsIndexedLinear"),
    *(("jax_vbgemm.moe", name) for name in ("combine", "expert_mlp", "load_balance_loss", "router_z_loss")),
    *(
        ("jax_vbgemm.optax", name)
        for name in ("muon", "pack_tree", "scale_by_muon", "scale_by_soap", "shampoo", "soap")
    ),
]


@pytest.mark.parametrize(
    ("name", "public"), slow_except(FUNCTIONS + CLASSES, [case for case in FUNCTIONS + CLASSES if case not in LONG])
)
def test_the_example_runs(name, public, tmp_path, monkeypatch):
    monkeypatch.setenv("VBGEMM_CACHE", str(tmp_path / "tuned.json"))
    monkeypatch.setattr(tune, "measure", lambda planners, *_: [1.0] * len(planners))  # measuring takes seconds
    thing = operator.attrgetter(public)(package(name))
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, public, globs={})
    assert found.examples
    runner = doctest.DocTestRunner(verbose=False)
    report = []
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):  # as users have them
        assert runner.run(found, out=report.append).failed == 0, "".join(report)
