"""Variable-size batched matrix multiplication for JAX: a list of differently sized products as one operation."""

from jax_vbgemm._src import installation as _installation  # noqa: F401  (first: raises where something is missing)
from jax_vbgemm._src.backends import DISABLE_JAX_EXPORT_CHECKS as DISABLE_JAX_EXPORT_CHECKS
from jax_vbgemm._src.backends import available_backends as available_backends
from jax_vbgemm._src.backends import target as target
from jax_vbgemm._src.matmul import lowering as _lowering  # noqa: F401  (registers the primitive's rules and lowerings)
from jax_vbgemm._src.matmul import rules as _rules  # noqa: F401
from jax_vbgemm._src.matmul.api import batched_gemm as batched_gemm
from jax_vbgemm._src.matmul.api import batched_matmul as batched_matmul
from jax_vbgemm._src.matmul.api import plan as plan
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
from jax_vbgemm._src.version import __version__ as __version__
