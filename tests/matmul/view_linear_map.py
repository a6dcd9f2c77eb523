"""An equivariant linear map by views of its arrays, and the same map in jnp."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle

import jax_vbgemm as vb

NODES, CHANNELS, OUT = 5, 4, 3


def features(shape, seed, dtype="float64"):
    return oracle.random(shape, dtype, seed)


def irreps(x, channels):
    """Views of the scalars (node, channel) and the vectors (node, channel, 3) in an array (nodes, 4 channels + 2)."""
    scalars = vb.View.of(x, "node mul -> node mul", window=np.s_[:, :channels])
    vectors = vb.View.of(x, "node (mul c) -> (node c) mul", window=np.s_[:, channels : 4 * channels], c=3)
    return [scalars, vectors]


def linear(x, weights, base, **options):
    """An equivariant linear map of scalars and vectors, written into the first columns of `base`."""
    return vb.batched_gemm(irreps(x, CHANNELS), weights, into=irreps(base, OUT), **options)[0].buffer


def linear_in_jnp(x, weights, base, f=lambda y: y):
    scalars = f(x[:, :CHANNELS] @ weights[0])
    vectors = x[:, CHANNELS : 4 * CHANNELS].reshape(len(x), CHANNELS, 3)
    vectors = f(jnp.einsum("nmc,mo->noc", vectors, weights[1]).reshape(len(x), -1))
    return base.at[:, :OUT].set(scalars).at[:, OUT : 4 * OUT].set(vectors)


ARGUMENTS = (
    features((NODES, 4 * CHANNELS + 2), 1),
    [features((CHANNELS, OUT), 2), features((CHANNELS, OUT), 3)],
    features((NODES, 4 * OUT + 1), 4),
)


def check(ours, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-12), ours, expected)


def calls_of(f, *arguments):
    return jax.jit(f).lower(*arguments).as_text().count("custom_call @vbgemm")
