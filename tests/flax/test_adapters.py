"""MultiLoRA with factors, and with tokens of adapters in any order or of none, against plain sums."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import linen as nn
from flax import nnx

from jax_vbgemm.flax import linen as vbl
from jax_vbgemm.flax import nnx as vbx

RANKS, IN, OUT = (2, 5), 6, 4
X = oracle.random((3, 4, IN), "float64", 1)
SCALES = (3.0, -0.5)
IDS = {"tokens": [[1, 0, -1, 0], [0, 0, 1, -1], [-1, 1, 1, 0]], "sequences": [1, -1, 0]}


def layer(lib, scale=SCALES):
    """A layer as a function of (x, ids), its loss's gradient with respect to x, and the factors of each adapter."""
    if lib == "nnx":
        model = vbx.MultiLoRA(
            IN, RANKS, OUT, scale=scale, b_initializer=nnx.initializers.normal(), param_dtype=jnp.float64,
            rngs=nnx.Rngs(0),
        )  # fmt: skip
        factors = [(one.lora_a[...], one.lora_b[...]) for one in model.adapters]
        return (lambda x, *sizes, **ids: model(x, *sizes, **ids)), factors
    model = vbl.MultiLoRA(RANKS, OUT, scale=scale, b_initializer=nn.initializers.normal(), param_dtype=jnp.float64)
    variables = jax.jit(model.init)(jax.random.key(0), X, adapter_ids=np.zeros(3, int))
    kernels = [variables["params"][name]["kernel"] for name in sorted(variables["params"])]
    factors = list(zip(kernels[: len(RANKS)], kernels[len(RANKS) :], strict=True))
    return (lambda x, *sizes, **ids: model.apply(variables, x, *sizes, **ids)), factors


@pytest.mark.parametrize("lib", ["nnx", "linen"])
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_tokens_in_any_order(lib, ids):
    f, factors = layer(lib)
    ids = jnp.array(ids)

    def plain(x):
        each = jnp.broadcast_to(ids.reshape(*ids.shape, *[1] * (2 - ids.ndim)), x.shape[:-1])[..., None]
        results = [scale * (x @ a @ b) for (a, b), scale in zip(factors, SCALES, strict=True)]
        return sum(jnp.where(each == i, result, 0.0) for i, result in enumerate(results))

    def both(f):
        return jax.jit(lambda x: (f(x), jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))(x)))(X)

    for given, wanted in zip(both(lambda x: f(x, adapter_ids=ids)), both(plain), strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lib", ["nnx", "linen"])
def test_factors_of_sorted_tokens(lib):
    f, factors = layer(lib)
    wanted = jnp.concatenate(
        [scale * (x @ a @ b) for x, (a, b), scale in zip((X[:1], X[1:]), factors, SCALES, strict=True)]
    )
    for sizes in ([1, 2], jnp.array([1, 2])):
        np.testing.assert_allclose(f(X, sizes), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f(X), ValueError, "give either group_sizes or adapter_ids: neither is given"),
        (lambda f: f(X, [1, 2], adapter_ids=jnp.zeros(3, int)), ValueError, "both are given"),
        (lambda f: f(X, adapter_ids=jnp.zeros(3)), TypeError, r"adapter_ids is float64\(3,\): it must be integers"),
        (
            lambda f: f(X, adapter_ids=jnp.zeros(4, int)),
            ValueError,
            r"adapter_ids is \(4,\) but the rows of the input are \(3, 4\)",
        ),
        (lambda f: layer("nnx", (1.0,)), ValueError, "scale has 1 entries but there are 2 adapters"),
        (lambda f: layer("nnx", ("1", 2.0)), TypeError, r"scale\[0\] is .* it must be a number"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(layer("nnx")[0])
