"""Optimizers for optax that treat all weight matrices together. Needs the extra: pip install jax-vbgemm[optax]."""

from jax_vbgemm._src.optax.apply import apply_updates as apply_updates
from jax_vbgemm._src.optax.muon import muon as muon
from jax_vbgemm._src.optax.muon import orthogonalize as orthogonalize
from jax_vbgemm._src.optax.muon import scale_by_muon as scale_by_muon
from jax_vbgemm._src.optax.muon import scale_by_shape as scale_by_shape
