"""Variable-size batched matrix multiplication for JAX: a list of differently sized products as one operation."""

import importlib
from typing import TYPE_CHECKING

from jax_vbgemm._src.native import installation as _installation  # noqa: F401  (first: raises where something is missing)

# isort: split
from jax_vbgemm import blocksparse, irreps, moe, networks
from jax_vbgemm._src.epilogue import ACTIVATIONS
from jax_vbgemm._src.grouping import group
from jax_vbgemm._src.many_devices.expert_parallel import expert_parallel as expert_parallel  # now moe.expert_parallel
from jax_vbgemm._src.matmul import lowering as _lowering  # noqa: F401  (registers the primitive's rules and lowerings)
from jax_vbgemm._src.matmul import rules as _rules  # noqa: F401
from jax_vbgemm._src.matmul.api import batched_gemm, batched_matmul, batched_matmul_sum, plan
from jax_vbgemm._src.matmul.gram import batched_gram
from jax_vbgemm._src.matmul.packed import RaggedArray, pack
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.native.backends import DISABLE_JAX_EXPORT_CHECKS, available_backends, target
from jax_vbgemm._src.native.version import __version__ as __version__
from jax_vbgemm._src.newton_schulz.orthogonal import newton_schulz
from jax_vbgemm._src.planner import (
    Coordinated,
    DeviceSpec,
    LoadBalanced,
    Plan,
    SortSplit,
    TallSkinny,
    Tile,
    Uniform,
)
from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.ragged import lowering as _ragged_lowering  # noqa: F401
from jax_vbgemm._src.ragged import rules as _ragged_rules  # noqa: F401
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.general import ragged_dot_general
from jax_vbgemm._src.ragged.ragged_matmul import ragged_matmul
from jax_vbgemm._src.scaled.quantize import quantize
from jax_vbgemm._src.scaled.scaled import Scaled
from jax_vbgemm._src.tools.tune import Tuned, autotune

__all__ = [
    "ACTIVATIONS",
    "DISABLE_JAX_EXPORT_CHECKS",
    "Coordinated",
    "DeviceSpec",
    "LoadBalanced",
    "Plan",
    "Problem",
    "RaggedArray",
    "Scaled",
    "SortSplit",
    "TallSkinny",
    "Tile",
    "Tuned",
    "Uniform",
    "View",
    "autotune",
    "available_backends",
    "batched_gemm",
    "batched_gram",
    "batched_matmul",
    "batched_matmul_sum",
    "blocksparse",
    "group",
    "irreps",
    "moe",
    "networks",
    "newton_schulz",
    "pack",
    "plan",
    "quantize",
    "ragged_dot",
    "ragged_dot_general",
    "ragged_matmul",
    "target",
]


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that exists

    def __getattr__(name: str) -> object:
        """jax_vbgemm.flax and jax_vbgemm.optax, imported where they are first used: other packages, which need not be
        installed, are imported with them."""
        if name not in ("flax", "optax"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ImportError as error:
            raise AttributeError(f"import {__name__}.{name}: {error}") from error


def __dir__() -> list[str]:
    """What is public: importing the package also binds its internal modules here."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
