"""Optimizers for optax that treat all weight matrices together. Needs the extra: pip install jax-vbgemm[optax]."""

try:
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("jax_vbgemm.optax needs the extra 'optax': pip install jax-vbgemm[optax]") from _error

from jax_vbgemm._src.optax.apply import apply_updates
from jax_vbgemm._src.optax.muon import muon, orthogonalize, scale_by_muon, scale_by_shape
from jax_vbgemm._src.optax.packed import PackedTree, pack_state, pack_tree, unpack_state
from jax_vbgemm._src.optax.shampoo import ShampooState, shampoo
from jax_vbgemm._src.optax.soap import SoapState, scale_by_soap, soap
from jax_vbgemm._src.optax.splitting import MuonSplit
from jax_vbgemm._src.optax.variants import NorMuonState, add_cautious_decayed_weights, scale_by_normuon

__all__ = [
    "MuonSplit",
    "NorMuonState",
    "PackedTree",
    "ShampooState",
    "SoapState",
    "add_cautious_decayed_weights",
    "apply_updates",
    "muon",
    "orthogonalize",
    "pack_state",
    "pack_tree",
    "scale_by_muon",
    "scale_by_normuon",
    "scale_by_shape",
    "scale_by_soap",
    "shampoo",
    "soap",
    "unpack_state",
]


def __dir__() -> list[str]:
    """What is public."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
