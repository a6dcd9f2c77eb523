"""The layers of jax_vbgemm.flax.linen against the loop of Flax layers that they replace."""

import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from flax import linen as nn
from flax import serialization
from oracle import assert_same
from slow_cases import slow_except

from jax_vbgemm.flax import linen as vbl

WIDTHS = (5, 17)
GROUPS = (3, 0, 5)
RANKS = (1, 4, 8)
NORMAL = nn.initializers.normal()


class Loop(nn.Module):
    """The program without this package: layers called one after another."""

    layer: type
    features: tuple[int, ...]
    activation: object = None
    options: object = flax.core.FrozenDict()

    @nn.compact
    def __call__(self, inputs):
        xs = inputs if isinstance(inputs, list) else [inputs] * len(self.features)
        function = self.activation or (lambda x: x)
        return [function(self.layer(f, **self.options)(x)) for f, x in zip(self.features, xs, strict=True)]


class LoRALoop(nn.Module):
    base_module: nn.Module

    @nn.compact
    def __call__(self, x, group_sizes):
        parts = []
        for i, part in enumerate(jnp.split(x, np.cumsum(group_sizes)[:-1])):
            hidden = nn.Dense(RANKS[i], use_bias=False, kernel_init=NORMAL, name=f"lora_a_{i}")(part)
            up = nn.Dense(7, use_bias=False, kernel_init=NORMAL, name=f"lora_b_{i}")
            parts.append(self.base_module(part) + up(hidden))
        return jnp.concatenate(parts)


def conv(features, **options):
    return nn.Conv(features, (1, 1), **options)


PAIRS = {
    "shared": (vbl.BatchedLinear, nn.Dense, (2, 3, 6)),
    "separate": (vbl.BatchedLinear, nn.Dense, [(4, 2, 3), (1,)]),
    "conv": (vbl.BranchedConv1x1, conv, (2, 3, 3, 6)),
    "convs": (vbl.BranchedConv1x1, conv, [(1, 1, 3), (2, 2, 2, 2, 3)]),
    "lora": None,
}


def pair(name, **options):
    """(ours, the loop, arguments)"""
    if name == "lora":
        lora = vbl.MultiLoRA(RANKS, 7, base_module=nn.Dense(7), a_initializer=NORMAL, b_initializer=NORMAL)
        return lora, LoRALoop(nn.Dense(7)), (oracle.random((8, 6), "float32"),)
    kind, layer, shape = PAIRS[name]
    activation = options.pop("activation", None)
    if isinstance(shape, list):
        inputs = [oracle.random(s, "float32", i) for i, s in enumerate(shape)]
    else:
        inputs = oracle.random(shape, "float32")
    loop = Loop(layer, WIDTHS, activation, flax.core.FrozenDict(options))
    return kind(WIDTHS, activation, **options), loop, (inputs,)


def call(model, variables, inputs):
    outputs = model.apply(variables, *inputs, *([GROUPS] if "LoRA" in type(model).__name__ else []))
    return outputs if isinstance(outputs, list) else [outputs]


def init(*models, inputs):
    """The initial variables of each model."""

    def one(model, key):
        return model.init(key, *inputs, *([GROUPS] if "LoRA" in type(model).__name__ else []))

    return jax.jit(lambda key: [one(model, key) for model in models])(jax.random.key(0))


def loss(model, variables, inputs):
    outputs = call(model, variables, inputs)
    return sum(jnp.sum(jnp.abs(jnp.sin(y)).astype(jnp.float32)) for y in outputs), outputs


def results(model, variables, inputs):
    gradient = jax.value_and_grad(functools.partial(loss, model), argnums=(0, 1), has_aux=True)
    return call(model, variables, inputs), gradient(variables, inputs)


def check(ours, loop, inputs, rtol=2e-5):
    """Asserts equal initial values, and equal outputs and gradients where each has the other's checkpoint."""
    variables, theirs = init(ours, loop, inputs=inputs)
    jax.tree.map(np.testing.assert_array_equal, variables, theirs)
    trained = jax.jit(lambda variables: jax.tree.map(lambda x: x * 2 + 1, variables))(variables)
    loaded = serialization.from_bytes(theirs, serialization.to_bytes(trained))
    back = serialization.from_bytes(variables, serialization.to_bytes(loaded))
    both = jax.jit(lambda v, w, x: (results(ours, v, x), results(loop, w, x)))
    assert_same(*both(back, loaded, inputs), rtol)


# What the layers of linen and of nnx have in common runs by default in the tests of nnx.
@pytest.mark.parametrize("name", slow_except(PAIRS, ["separate", "conv", "lora"]))
def test_checkpoints_outputs_and_gradients(name):
    check(*pair(name))


OPTIONS = [
    {"use_bias": False, "activation": nn.gelu},
    {"dtype": jnp.bfloat16, "activation": nn.relu},
    {"param_dtype": jnp.float64, "dtype": jnp.float64, "activation": nn.softplus},
    {"kernel_init": nn.initializers.ones, "bias_init": NORMAL, "precision": "highest"},
    {"promote_dtype": lambda *arrays, dtype: tuple(None if x is None else x * 2 for x in arrays)},
]


@pytest.mark.parametrize("options", slow_except(OPTIONS, [OPTIONS[1], OPTIONS[4]]), ids=range(len(OPTIONS)))
def test_options_are_flaxs(options):
    check(*pair("shared", **options), rtol=4e-2 if jnp.bfloat16 in options.values() else 5e-5)


def test_one_call_does_it_all():
    ours, _, inputs = pair("conv", activation=nn.silu)
    text = jax.jit(ours.apply).lower(*init(ours, inputs=inputs), *inputs).as_text()
    assert text.count("custom_call @vbgemm_v2") == 1
    assert not any(word in text for word in ("dot_general", "stablehlo.add", "logistic"))


def test_partitioning_metadata():
    options = {"kernel_init": nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))}
    ours, loop, inputs = pair("shared", **options)
    variables, theirs = init(ours, loop, inputs=inputs)
    assert nn.get_partition_spec(variables) == nn.get_partition_spec(theirs)
    check(ours, loop, inputs)


class Inline(nn.Module):
    """A module with other layers, whose loop is written as Flax code or as a call of this package."""

    line: str

    def setup(self):
        self.branches = [nn.Dense(f) for f in WIDTHS]

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(6)(x)
        if self.line == "ours":
            ys = vbl.batched_linear([nn.Dense(f) for f in WIDTHS], x, nn.relu)
            zs = vbl.batched_linear(self.branches, ys)
        elif self.line == "module":
            layer = vbl.BatchedLinear(WIDTHS, nn.relu, names=["Dense_1", "Dense_2"])
            nn.share_scope(self, layer)
            ys = layer(x)
            zs = vbl.batched_linear(self.branches, ys)
        else:
            ys = [nn.relu(nn.Dense(f)(x)) for f in WIDTHS]
            zs = [layer(y) for layer, y in zip(self.branches, ys, strict=True)]
        return [*zs, nn.Dense(2, name="Dense_3")(x)]


@pytest.mark.parametrize("line", slow_except(["ours", "module"], ["module"]))
def test_existing_layers_keep_their_names(line):
    if line == "module":
        ours, loop, x = Inline(line), Inline("loop"), (oracle.random((3, 6), "float32"),)
        (variables,) = init(loop, inputs=x)
        assert_same(*jax.jit(lambda *args: [model.apply(*args) for model in (ours, loop)])(variables, *x))
    else:
        check(Inline(line), Inline("loop"), (oracle.random((3, 6), "float32"),))


class Block(nn.Module):
    ours: bool

    @nn.compact
    def __call__(self, x, _):
        if self.ours:
            wide, *narrow = vbl.BatchedLinear((8, 3, 5), nn.gelu, name="branches")(x)
        else:
            wide, *narrow = Loop(nn.Dense, (8, 3, 5), nn.gelu, name="branches")(x)
        return x + wide + jnp.concatenate(narrow, -1), None


@pytest.mark.slow
def test_scan_and_remat():
    def make(ours):
        block = nn.remat(Block, prevent_cse=False)
        return nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(ours)

    x = oracle.random((3, 8), "float32")

    def results(model, key):
        variables = model.init(key, x, None)
        return variables, jax.value_and_grad(lambda v: jnp.sum(model.apply(v, x, None)[0]))(variables)

    models = make(True), make(False)
    assert_same(*jax.jit(lambda key: [results(model, key) for model in models])(jax.random.key(0)))


def test_training_with_donated_state():
    optimizer = optax.sgd(1e-2, momentum=0.9)
    trained = []
    for model in pair("shared")[:2]:
        inputs = pair("shared")[2]
        (variables,) = init(model, inputs=inputs)
        memory = jax.jit(optimizer.init)(variables)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(variables, memory, model=model, inputs=inputs):
            gradients = jax.grad(lambda v: loss(model, v, inputs)[0])(variables)
            updates, memory = optimizer.update(gradients, memory, variables)
            return optax.apply_updates(variables, updates), memory

        for _ in range(3):
            variables, memory = step(variables, memory)
        trained.append(variables)
    assert_same(*trained, rtol=1e-4)


X = jnp.ones((2, 3), jnp.float32)


def start(model, *args):
    return model.init(jax.random.key(0), *args)


class Calls(nn.Module):
    layers: object

    @nn.compact
    def __call__(self, x):
        return vbl.batched_linear(self.layers(), x)


ERRORS = [
    (lambda: start(vbl.BatchedLinear([4, -1]), X), r"BatchedLinear: features\[1\] is -1"),
    (lambda: start(vbl.BatchedLinear([4, 5]), [X] * 3), "BatchedLinear: inputs has 3 entries but there are 2 branches"),
    (lambda: start(vbl.BatchedLinear([4, 5], names=["q"]), X), "names has 1 entries but features has 2"),
    (lambda: start(vbl.BatchedLinear([4], "softmax"), X), "BatchedLinear: activation must be None, a function, or"),
    (lambda: start(vbl.BranchedConv1x1([4, 5]), [X[None], X]), r"BranchedConv1x1: inputs\[1\] has shape \(2, 3\)"),
    (lambda: start(vbl.MultiLoRA([4, 0], 5), X, [1, 1]), r"MultiLoRA: ranks\[1\] is 0"),
    (lambda: start(vbl.MultiLoRA([4, 2], 5), X, [2]), "group_sizes has 1 entries but there are 2 adapters"),
    (lambda: start(vbl.MultiLoRA([4, 2], 5), X, [1, 2]), "group_sizes add up to 3"),
    (lambda: start(Calls(lambda: [nn.Dense(2), nn.DenseGeneral(2)]), X), r"layers\[1\] is a DenseGeneral"),
    (lambda: start(Calls(lambda: [nn.Dense(2), nn.ConvLocal(2, (1,))]), X), r"layers\[1\] is a ConvLocal"),
    (lambda: start(Calls(lambda: [nn.Conv(2, 3)]), X), r"layers\[0\] is not a plain 1x1 convolution"),
    (lambda: start(Calls(lambda: [nn.Dense(2, dot_general=print)]), X), r"layers\[0\] has a dot_general"),
    (lambda: start(Calls(lambda: [nn.Dense(2), nn.Dense(2, precision="high")]), X), r"layers\[1\] has another"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_index(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_features_that_do_not_fit_are_flaxs_own_error():
    model = vbl.BatchedLinear((4, 5))
    variables = start(model, [X, X])
    with pytest.raises(flax.errors.ScopeParamShapeError, match=r"/Dense_1"):
        model.apply(variables, [X, jnp.ones((2, 7), jnp.float32)])
