"""A pytest plugin for optax's own tests of muon: it replaces optax.contrib's muon by this package's."""

import optax.contrib
from optax.contrib import _muon

from jax_vbgemm.optax import muon, orthogonalize, scale_by_muon


def orthogonalize_one(x, ns_coeffs, ns_steps=5, preconditioning="frobenius", eps=1e-8, dimension_numbers=None):
    return orthogonalize([x], ns_coeffs, ns_steps, preconditioning, eps, [dimension_numbers])[0]


for module in (_muon, optax.contrib):
    module.muon, module.scale_by_muon = muon, scale_by_muon
_muon.orthogonalize_via_newton_schulz = orthogonalize_one
