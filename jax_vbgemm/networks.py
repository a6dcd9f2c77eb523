"""Whole networks of linear layers, on the parameters of other libraries: ensembles, heads, and a network for each type
of row."""

from jax_vbgemm._src.networks.api import apply
from jax_vbgemm._src.networks.typed import apply_typed

__all__ = ["apply", "apply_typed"]
