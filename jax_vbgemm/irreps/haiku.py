"""The linear layer of `e3nn_jax.haiku`, as one operation. Needs e3nn-jax and dm-haiku."""

try:
    import e3nn_jax as _e3nn_jax  # noqa: F401
    import haiku as _haiku  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError(
        "jax_vbgemm.irreps.haiku needs the extra 'irreps' and dm-haiku: pip install jax-vbgemm[irreps] dm-haiku"
    ) from _error

from jax_vbgemm._src.irreps.haiku import Linear

__all__ = ["Linear"]
