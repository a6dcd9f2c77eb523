"""The linear layers of `cuequivariance_jax.nnx`, as one operation. Needs cuequivariance-jax and flax."""

try:
    import cuequivariance_jax as _cuequivariance_jax  # noqa: F401
    import flax as _flax  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("jax_vbgemm.irreps.nnx needs the extra 'irreps': pip install jax-vbgemm[irreps]") from _error

from jax_vbgemm._src.irreps.nnx import IrrepsIndexedLinear, IrrepsLinear

__all__ = ["IrrepsIndexedLinear", "IrrepsLinear"]
