"""The linear layer of `e3nn_jax.equinox`, as one operation. Needs e3nn-jax and equinox."""

try:
    import e3nn_jax as _e3nn_jax  # noqa: F401
    import equinox as _equinox  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError(
        "jax_vbgemm.irreps.equinox needs the extra 'irreps' and equinox: pip install jax-vbgemm[irreps] equinox"
    ) from _error

from jax_vbgemm._src.irreps.equinox import Linear

__all__ = ["Linear"]
