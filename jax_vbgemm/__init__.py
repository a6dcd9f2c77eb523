"""Variable-size batched matrix multiplication for JAX: a list of differently sized products as one operation."""

try:
    from jax_vbgemm import _core as _core
except ModuleNotFoundError as _error:
    raise ImportError(
        f"jax_vbgemm was imported from {__path__[0]}, where its extension module is missing. If that is a source tree, "
        "install it with `pip install -e .` or start Python elsewhere; otherwise install the package again."
    ) from _error

from jax_vbgemm import lowering as _lowering  # noqa: F401  (registers the primitive's rules and lowerings)
from jax_vbgemm import rules as _rules  # noqa: F401
from jax_vbgemm.api import batched_gemm as batched_gemm
from jax_vbgemm.api import batched_matmul as batched_matmul
from jax_vbgemm.api import batched_matmul_sum as batched_matmul_sum
from jax_vbgemm.api import plan as plan
from jax_vbgemm.backends import DISABLE_JAX_EXPORT_CHECKS as DISABLE_JAX_EXPORT_CHECKS
from jax_vbgemm.backends import available_backends as available_backends
from jax_vbgemm.backends import target as target
from jax_vbgemm.gram import batched_gram as batched_gram
from jax_vbgemm.grouping import group as group
from jax_vbgemm.orthogonal import newton_schulz as newton_schulz
from jax_vbgemm.planner import Coordinated as Coordinated
from jax_vbgemm.planner import DeviceSpec as DeviceSpec
from jax_vbgemm.planner import LoadBalanced as LoadBalanced
from jax_vbgemm.planner import Plan as Plan
from jax_vbgemm.planner import SortSplit as SortSplit
from jax_vbgemm.planner import TallSkinny as TallSkinny
from jax_vbgemm.planner import Tile as Tile
from jax_vbgemm.planner import Uniform as Uniform
from jax_vbgemm.problem import Problem as Problem
from jax_vbgemm.tune import Tuned as Tuned
from jax_vbgemm.tune import autotune as autotune

__version__ = "0.1.0"
