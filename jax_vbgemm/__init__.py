"""Variable-size batched matrix multiplication for JAX: a list of differently sized products as one operation."""

try:
    from jax_vbgemm import _core as _core
except ModuleNotFoundError as _error:
    raise ImportError(
        f"jax_vbgemm was imported from {__path__[0]}, where its extension module is missing. If that is a source tree, "
        "install it with `pip install -e .` or start Python elsewhere; otherwise install the package again."
    ) from _error

from jax_vbgemm._src.backends import DISABLE_JAX_EXPORT_CHECKS as DISABLE_JAX_EXPORT_CHECKS
from jax_vbgemm._src.backends import available_backends as available_backends
from jax_vbgemm._src.backends import target as target
from jax_vbgemm._src.grouping import group as group
from jax_vbgemm._src.matmul import lowering as _lowering  # noqa: F401  (registers the primitive's rules and lowerings)
from jax_vbgemm._src.matmul import rules as _rules  # noqa: F401
from jax_vbgemm._src.matmul.api import batched_gemm as batched_gemm
from jax_vbgemm._src.matmul.api import batched_matmul as batched_matmul
from jax_vbgemm._src.matmul.api import batched_matmul_sum as batched_matmul_sum
from jax_vbgemm._src.matmul.api import plan as plan
from jax_vbgemm._src.matmul.gram import batched_gram as batched_gram
from jax_vbgemm._src.newton_schulz import newton_schulz as newton_schulz
from jax_vbgemm._src.planner import Coordinated as Coordinated
from jax_vbgemm._src.planner import DeviceSpec as DeviceSpec
from jax_vbgemm._src.planner import LoadBalanced as LoadBalanced
from jax_vbgemm._src.planner import Plan as Plan
from jax_vbgemm._src.planner import SortSplit as SortSplit
from jax_vbgemm._src.planner import TallSkinny as TallSkinny
from jax_vbgemm._src.planner import Tile as Tile
from jax_vbgemm._src.planner import Uniform as Uniform
from jax_vbgemm._src.problem import Problem as Problem
from jax_vbgemm._src.tools.tune import Tuned as Tuned
from jax_vbgemm._src.tools.tune import autotune as autotune

__version__ = "0.1.0"
