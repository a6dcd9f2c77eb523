"""What `networks.apply` and `apply_typed` refuse, and what the functions in a tree have to be."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from oracle import assert_same
from small_networks import IN, ROWS, WithActivation, network

from jax_vbgemm import networks

ONE, X = network((IN, 3, 2)), np.ones((ROWS, IN))
RNGS = nnx.Rngs(0)
LINEAR = nnx.Linear(IN, IN, rngs=RNGS)
TABLE = {
    "no list": (lambda: networks.apply(np.ones((2, 2)), X, None), TypeError, "a list of one"),
    "inner": (
        lambda: networks.apply([ONE, [*ONE, *ONE]], X, None),
        ValueError,
        r"networks\[1\]\[2\] is \(4, 3\) after networks\[1\]\[1\], which is \(3, 2\): 2 features don't fit 4",
    ),
    "input": (
        lambda: networks.apply({"C": ONE}, np.ones((ROWS, 3)), None),
        ValueError,
        r"networks\['C'\] has the input \(5, 3\), but networks\['C'\]\[0\] is \(4, 3\): the last axis must be 4",
    ),
    "keys": (lambda: networks.apply({"C": ONE}, {"H": X}, None), ValueError, "keys"),
    "count": (lambda: networks.apply([ONE], [X, X], None), ValueError, "2 entries but there are 1 networks"),
    "stack": (
        lambda: networks.apply([network((IN, 2), stack=(3,))], np.ones((2, ROWS, IN)), None),
        ValueError,
        "those of the stack",
    ),
    "stacks": (
        lambda: networks.apply([[*network((IN, 2), stack=(3,)), *network((2, 1))]], X, None),
        ValueError,
        "leading axes",
    ),
    "bias": (lambda: networks.apply([[(np.ones((4, 2)), np.ones((3,)))]], X, None), ValueError, r"must be \(2,\)"),
    "array": (
        lambda: networks.apply([[np.ones((4, 2))]], X, None),
        ValueError,
        r"\[0\]\[0\] is an array .*batched_gemm",
    ),
    "vector": (lambda: networks.apply([{"kernel": np.ones(4)}], X, None), ValueError, "no matrix"),
    "number": (lambda: networks.apply([[3.0]], X, None), ValueError, "is 3.0"),
    "empty": (lambda: networks.apply([[]], X, None), ValueError, r"networks\[0\] has no linear layer"),
    "order": (
        lambda: networks.apply([{"up": {"kernel": np.ones((4, 4))}, "down": {"kernel": np.ones((4, 4))}}], X, None),
        ValueError,
        "'down', 'up', whose order is not known",
    ),
    "norm": (
        lambda: networks.apply([{"scale": np.ones(4), "bias": np.ones(4)}], X, None),
        ValueError,
        r"\['scale'\] is an array \(4,\)|\['bias'\] is an array",
    ),
    "conv": (
        lambda: networks.apply([nnx.Conv(IN, 2, (1, 1), rngs=nnx.Rngs(0))], X, None),
        ValueError,
        "a Conv: .*batched_linear",
    ),
    "dtype": (
        lambda: networks.apply([nnx.Linear(IN, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))], X, None),
        ValueError,
        "dtype=",
    ),
    "function": (
        lambda: networks.apply([eqx.nn.MLP(IN, 2, 3, 1, jax.nn.gelu, key=jax.random.key(0))], X, "relu"),
        ValueError,
        r"networks\[0\].activation is the function gelu, but the call has activation='relu'",
    ),
    "dropout": (lambda: networks.apply([[ONE, eqx.nn.Dropout()]], X, None), ValueError, r"networks\[0\]\[1\].p is 0.5"),
    "precision": (
        lambda: networks.apply([nnx.Linear(IN, 2, precision="highest", rngs=nnx.Rngs(0))], X, None),
        ValueError,
        r"networks\[0\] has precision='highest': the call must have it",
    ),
    "no dtype": (lambda: networks.apply([ONE], X, None, dtype="float31"), TypeError, "dtype is 'float31'"),
    "unknown": (lambda: networks.apply([ONE], X, "swish"), ValueError, "swish"),
    "depth": (
        lambda: networks.apply_typed([ONE, network((IN, 2))], X, None, types=np.zeros(ROWS, int)),
        ValueError,
        r"networks\[1\] has 1 layers from 4 to 2 features, but networks\[0\] has 2 layers",
    ),
    "neither": (lambda: networks.apply_typed([ONE], X, None), ValueError, "either types"),
    "types": (lambda: networks.apply_typed([ONE], X, None, types=np.zeros(3, int)), ValueError, r"types is \(3,\)"),
    "float types": (lambda: networks.apply_typed([ONE], X, None, types=np.zeros(ROWS)), TypeError, "integers"),
    "sizes": (lambda: networks.apply_typed([ONE], X, None, group_sizes=np.zeros(2, int)), ValueError, "1 networks"),
    "one network": (
        lambda: networks.apply(ONE, X, None),
        ValueError,
        r"networks\[1\] .*\(one network is a list of one",
    ),
    "one typed network": (
        lambda: networks.apply_typed(ONE, X, None, types=np.zeros(ROWS, int)),
        ValueError,
        r"networks\[1\] .*\(one network is a list of one",
    ),
    "typed dict": (
        lambda: networks.apply_typed({"O": ONE, "H": ONE}, X, None, types=np.zeros(ROWS, int)),
        TypeError,
        "networks is a dict: it must be a list",
    ),
    "no types": (lambda: networks.apply_typed([], X, None, types=np.zeros(ROWS, int)), ValueError, "is empty"),
    "narrow x": (
        lambda: networks.apply_typed([ONE], X[:, 1:], None, types=np.zeros(ROWS, int)),
        ValueError,
        "last axis",
    ),
}


MODULES = {
    "einsum": (nnx.Einsum("ab,bc->ac", (IN, IN), rngs=RNGS), "is a Einsum"),
    "general": (nnx.LinearGeneral(IN, IN, axis=0, rngs=RNGS), "is a LinearGeneral"),
    "equinox conv": (eqx.nn.Conv1d(IN, IN, 1, use_bias=False, key=jax.random.key(0)), "is a Conv1d"),
    "nnx norm": (nnx.LayerNorm(IN, use_bias=False, use_scale=False, rngs=RNGS), "LayerNorm"),
    "nnx dropout": (nnx.Dropout(0.5), "Dropout"),
    "norm": (eqx.nn.LayerNorm(IN, use_weight=False, use_bias=False), "LayerNorm"),
    "element type": (nnx.Linear(IN, IN, preferred_element_type=jnp.float32, rngs=RNGS), "preferred_element_type"),
}


@pytest.mark.parametrize("case", MODULES)
def test_modules_that_are_no_linear_layer_are_refused(case):
    module, message = MODULES[case]
    layers = [LINEAR, module, LINEAR]
    for modules in (layers, eqx.nn.Sequential(layers) if isinstance(module, eqx.Module) else nnx.Sequential(*layers)):
        with pytest.raises(ValueError, match=message):
            networks.apply([modules], X, None)


@pytest.mark.parametrize("case", TABLE)
def test_errors_name_the_network_and_the_rule(case):
    call, kind, message = TABLE[case]
    with pytest.raises(kind, match=message) as found:
        call()
    assert str(found.value).startswith("networks.apply")


def mlp(activation, final):
    return eqx.nn.MLP(IN, 2, 8, 2, activation, final_activation=final, key=jax.random.key(0))


def sequential(*functions):
    """Three linear layers, each followed by one of the lists of functions."""
    keys = jax.random.split(jax.random.key(0), 3)
    nodes = [[eqx.nn.Linear(IN, IN, key=key), *map(eqx.nn.Lambda, fs)] for key, fs in zip(keys, functions, strict=True)]
    return eqx.nn.Sequential([*nodes[0], *nodes[1], *nodes[2]])


SILU = [jax.nn.silu]


@pytest.mark.parametrize(
    ("network", "final", "message"),
    [
        (lambda: mlp(jax.nn.silu, jax.nn.silu), None, r"\.final_activation is the function silu"),
        (lambda: mlp(jnp.tanh, jax.nn.silu), "tanh", r"\.activation is the function tanh"),
        (lambda: mlp(lambda x: x, lambda x: x), None, r"layers\[0\] has no activation after it"),
        (lambda: mlp(jax.nn.silu, lambda x: x), "tanh", r"layers\[2\] has no .* final_activation='tanh'"),
        (lambda: WithActivation(mlp(None, None).layers, lambda x: x), None, r"\.activation is the function <lambda>"),
        (lambda: sequential([], SILU, []), None, r"\.layers\[0\] has no activation after it, .* activation='silu'"),
        (lambda: sequential([], [], []), None, "has no activation after it"),
        (lambda: sequential(SILU, SILU * 2, []), None, r"\.layers\[4\]\.fn is the function silu"),
        (lambda: sequential(SILU, SILU, SILU), None, r"\.layers\[5\]\.fn is the function silu"),
        (lambda: sequential(SILU, SILU, []), "tanh", r"\.layers\[4\] has no activation"),
        (lambda: nnx.Sequential(LINEAR, nnx.silu, LINEAR, LINEAR), None, r"\.layers\[2\] has no activation after it"),
        (lambda: nnx.Sequential(LINEAR, nnx.gelu, LINEAR), None, r"\.layers\[1\] is the function gelu"),
        (lambda: [jax.nn.silu, *ONE], None, r"networks\[0\]\[0\] is the function silu"),
        (lambda: [ONE[0], jax.nn.silu, ONE[1], network((2, 1))[0]], None, r"networks\[0\]\[2\] has no activation"),
    ],
)
def test_functions_of_a_tree_stand_where_the_call_applies_them(network, final, message):
    with pytest.raises(ValueError, match=message):
        networks.apply([network()], X, "silu", final_activation=final)


def test_functions_of_a_tree_that_are_those_of_the_call():
    identity = [eqx.nn.Identity()]
    accepted = [
        (mlp(jax.nn.silu, jnp.tanh), "tanh"),
        (sequential(SILU, identity + SILU, identity), None),
        (sequential(SILU, SILU, [jnp.tanh]), "tanh"),
    ]
    for model, final in accepted:
        assert_same(networks.apply([model], X, "silu", final_activation=final), [jax.vmap(model)(X)])
    layers = mlp(jax.nn.silu, jnp.tanh).layers  # with an activation whose end is not known
    assert_same(
        networks.apply([WithActivation(layers, jax.nn.silu)], X, "silu", final_activation="tanh"),
        networks.apply([mlp(jax.nn.silu, jnp.tanh)], X, "silu", final_activation="tanh"),
    )


def test_a_variable_without_an_array_is_no_bias():
    """As in nnx.Linear of older versions of Flax."""
    linear = nnx.Linear(IN, 2, use_bias=False, rngs=RNGS)
    linear.bias = nnx.Param(None)
    x = X.astype(np.float32)
    assert_same(networks.apply([linear], x, None), [x @ linear.kernel[...]], 1e-6)


def test_no_networks():
    assert networks.apply([], X, "relu") == []
