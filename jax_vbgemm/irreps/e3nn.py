"""The tensor product of `e3nn_jax` with weights for each channel of the result. Needs e3nn-jax."""

try:
    import e3nn_jax as _e3nn_jax  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("jax_vbgemm.irreps.e3nn needs the extra 'irreps': pip install jax-vbgemm[irreps]") from _error

from jax_vbgemm._src.irreps.e3nn_product import tensor_product

__all__ = ["tensor_product"]
