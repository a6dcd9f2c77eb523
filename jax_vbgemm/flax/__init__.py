"""Flax layers of different sizes as one operation: `jax_vbgemm.flax.nnx` and `jax_vbgemm.flax.linen`.

Both have `batched_linear` (any list of Flax's own Linear/Dense and 1x1 Conv layers), `BatchedLinear`, `BranchedConv1x1`
and `MultiLoRA`, whose parameters are those of the loop of Flax layers that they stand for, and `HeteroLinear` and
`MixtureOfExperts`, whose parameters are those of the einsum that they stand for.
"""

try:
    import flax as _flax  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("jax_vbgemm.flax needs the extra 'flax': pip install jax-vbgemm[flax]") from _error

from jax_vbgemm.flax import linen, nnx

__all__ = ["linen", "nnx"]


def __dir__() -> list[str]:
    """What is public."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
