"""The linear layer of `e3nn_jax.flax`, as one operation. Needs e3nn-jax and flax."""

try:
    import e3nn_jax as _e3nn_jax  # noqa: F401
    import flax as _flax  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("jax_vbgemm.irreps.flax needs the extra 'irreps': pip install jax-vbgemm[irreps]") from _error

from jax_vbgemm._src.irreps.flax import Linear

__all__ = ["Linear"]
