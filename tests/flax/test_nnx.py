"""The layers of jax_vbgemm.flax.nnx against the loop of Flax layers that they replace."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from flax import nnx
from oracle import assert_same
from slow_cases import slow_except

from jax_vbgemm.flax import nnx as vbx

WIDTHS = (5, 17)


class LinearLoop(nnx.List):
    """The program without this package: a list of layers, called one after another."""

    def __init__(self, in_features, out_features, *, activation=None, rngs, **options):
        ins = [in_features] * len(out_features) if isinstance(in_features, int) else in_features
        super().__init__([self.layer(i, o, rngs=rngs, **options) for i, o in zip(ins, out_features, strict=True)])
        self.activation = activation or (lambda x: x)

    def layer(self, *args, **kwargs):
        return nnx.Linear(*args, **kwargs)

    def __call__(self, inputs):
        xs = inputs if isinstance(inputs, list) else [inputs] * len(self)
        return [self.activation(layer(x)) for layer, x in zip(self, xs, strict=True)]


class ConvLoop(LinearLoop):
    def layer(self, i, o, **kwargs):
        return nnx.Conv(i, o, (1, 1), **kwargs)


class LoRALoop(nnx.Module):
    def __init__(self, i, ranks, o, *, base_module=None, rngs, **options):
        self.base_module = base_module
        self.adapters = nnx.List([nnx.LoRA(i, rank, o, rngs=rngs, **options) for rank in ranks])

    def __call__(self, x, group_sizes):
        parts = jnp.split(x, np.cumsum(group_sizes)[:-1])
        return jnp.concatenate(
            [self.base_module(part) + adapter(part) for adapter, part in zip(self.adapters, parts, strict=True)]
        )


def lora(kind, **options):
    rngs = nnx.Rngs(3)
    base = nnx.Linear(6, 7, rngs=rngs)
    return kind(6, [1, 4, 8], 7, base_module=base, rngs=rngs, b_initializer=nnx.initializers.normal(), **options)


GROUPS = (3, 0, 5)
PAIRS = {
    "shared": (lambda kind, **o: (vbx.BatchedLinear, LinearLoop)[kind](6, WIDTHS, rngs=nnx.Rngs(1), **o), (2, 3, 6)),
    "separate": (lambda kind, **o: (vbx.BatchedLinear, LinearLoop)[kind]([3, 1], WIDTHS, rngs=nnx.Rngs(1), **o),
                 [(4, 2, 3), (1,)]),
    "conv": (lambda kind, **o: (vbx.BranchedConv1x1, ConvLoop)[kind](6, WIDTHS, rngs=nnx.Rngs(1), **o), (2, 3, 3, 6)),
    "convs": (lambda kind, **o: (vbx.BranchedConv1x1, ConvLoop)[kind]([3, 3], WIDTHS, rngs=nnx.Rngs(1), **o),
              [(1, 1, 3), (2, 2, 2, 2, 3)]),
    "lora": (lambda kind, **o: lora((vbx.MultiLoRA, LoRALoop)[kind], **o), (8, 6)),
}  # fmt: skip


def pair(name, **options):
    """(ours, the loop, inputs)"""
    make, shape = PAIRS[name]
    if isinstance(shape, list):
        inputs = [oracle.random(s, "float32", i) for i, s in enumerate(shape)]
    else:
        inputs = oracle.random(shape, "float32")
    return make(0, **options), make(1, **options), inputs


def apply(model, inputs):
    outputs = model(inputs, GROUPS) if hasattr(model, "adapters") else model(inputs)
    return outputs if isinstance(outputs, list) else [outputs]


def loss(model, inputs):
    outputs = apply(model, inputs)
    return sum(jnp.sum(jnp.abs(jnp.sin(y)).astype(jnp.float32)) for y in outputs), outputs


def results(model, inputs):
    """Outputs (without and with a derivative) and the gradients in parameters and inputs."""
    (value, outputs), gradients = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(model, inputs)
    return apply(model, inputs), outputs, value, nnx.to_pure_dict(gradients[0]), gradients[1]


@nnx.jit
def both(ours, loop, inputs):
    return results(ours, inputs), results(loop, inputs)


def state(model):
    return nnx.to_pure_dict(nnx.state(model))


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_seed_gives_the_same_parameters(name):
    ours, loop, _ = pair(name)
    jax.tree.map(np.testing.assert_array_equal, state(ours), state(loop))
    assert [path for path, _ in nnx.to_flat_state(nnx.state(ours))] == [
        path for path, _ in nnx.to_flat_state(nnx.state(loop))
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_outputs_and_gradients(name):
    assert_same(*both(*pair(name)))


@pytest.mark.parametrize(
    ("name", "direction"),
    slow_except(itertools.product(["convs", "lora"], ["ours to loop", "loop to ours"]), [("lora", "loop to ours")]),
)
def test_a_checkpoint_of_one_loads_into_the_other(name, direction, tmp_path):
    checkpointing = pytest.importorskip("orbax.checkpoint")
    ours, loop, inputs = pair(name)
    source, target = (ours, loop) if direction == "ours to loop" else (loop, ours)
    trained = jax.jit(lambda state: jax.tree.map(lambda x: x * 2 + 1, state))
    nnx.update(source, trained(nnx.state(source)))
    with checkpointing.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(source))
        checkpointer.wait_until_finished()
        nnx.update(target, checkpointer.restore(tmp_path / "state", nnx.state(target)))
    assert_same(*nnx.jit(lambda models, x: [apply(model, x) for model in models])((ours, loop), inputs))
    jax.tree.map(np.testing.assert_array_equal, state(source), state(target))


ACTIVATIONS = [
    "relu", jax.nn.relu, nnx.gelu, functools.partial(nnx.gelu, approximate=False), nnx.swish, jnp.tanh, jax.lax.tanh,
    nnx.sigmoid, jax.nn.softplus, functools.partial(jax.nn.gelu, approximate=True),
]  # fmt: skip


def test_activations():
    layers, inputs = LinearLoop(6, WIDTHS, rngs=nnx.Rngs(0)), oracle.random((4, 6), "float32")
    functions = [jax.nn.relu if activation == "relu" else activation for activation in ACTIVATIONS]

    @jax.jit
    def results(x):
        ours = [vbx.batched_linear(layers, x, activation) for activation in ACTIVATIONS]
        return ours, [[function(y) for y in layers(x)] for function in functions]

    assert_same(*results(inputs))


@pytest.mark.parametrize("activation", ["relu", nnx.gelu, nnx.silu])
def test_one_call_does_it_all(activation):
    ours, _, inputs = pair("conv", activation=activation)
    graph, parameters = nnx.split(ours)
    text = jax.jit(lambda p, x: nnx.merge(graph, p)(x)).lower(parameters, inputs).as_text()
    assert text.count("custom_call @vbgemm_v2") == 1
    assert not any(word in text for word in ("dot_general", "stablehlo.add", "maximum", "tanh", "logistic"))


OPTIONS = [
    {"use_bias": False},
    {"dtype": jnp.bfloat16},
    {"param_dtype": jnp.bfloat16, "dtype": jnp.float32},
    {"param_dtype": jnp.float64, "dtype": jnp.float64},
    {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32, "use_bias": False},
    {"dtype": jnp.complex64},
    {"kernel_init": nnx.initializers.ones, "bias_init": nnx.initializers.normal(), "precision": "highest"},
    {"promote_dtype": lambda arrays, dtype: tuple(x * 2 for x in arrays)},
]


@pytest.mark.parametrize(
    "options", slow_except(OPTIONS, [OPTIONS[index] for index in (1, 3, 4, 5, 7)]), ids=range(len(OPTIONS))
)
def test_options_are_flaxs(options):
    ours, loop, inputs = pair("shared", activation=jnp.tanh, **options)
    assert_same(*both(ours, loop, inputs), rtol=4e-2 if jnp.bfloat16 in options.values() else 5e-5)


def test_options_of_convolutions():
    ours, loop, inputs = pair("conv", activation=nnx.relu, dtype=jnp.bfloat16, use_bias=False)
    assert_same(*both(ours, loop, inputs), rtol=4e-2)


def test_promotion_where_the_bias_is_wider_than_the_product():
    options = {"dtype": jnp.float32, "preferred_element_type": jnp.bfloat16}
    ours, loop, inputs = pair("shared", activation=jax.nn.relu, **options)
    with jax.numpy_dtype_promotion("standard"):
        found, truth = nnx.jit(lambda models, x: [apply(model, x) for model in models])((ours, loop), inputs)
        assert_same(found, truth, 2e-2)
        assert all(y.dtype == jnp.float32 for y in found)


@pytest.mark.multidevice(8)
def test_sharding_metadata():
    """The parameters are sharded as Flax shards them; under plain jit the operation is right by replication."""
    options = {"kernel_metadata": {"out_sharding": (None, "model")}, "bias_metadata": {"note": "b"}}
    with jax.set_mesh(jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))):
        ours, loop = (kind(6, [8, 16], rngs=nnx.Rngs(0), **options) for kind in (vbx.BatchedLinear, LinearLoop))
        for layer, theirs in zip(ours, loop, strict=True):
            assert layer.kernel.get_metadata() == theirs.kernel.get_metadata()
            assert layer.kernel.get_metadata()["out_sharding"] == (None, "model")
            assert layer.kernel[...].sharding.spec == jax.sharding.PartitionSpec(None, "model")
            assert layer.bias.get_metadata()["note"] == "b"
        assert_same(*both(ours, loop, oracle.random((4, 6), "float32")))


def test_existing_layers_of_both_kinds():
    rngs = nnx.Rngs(0)
    layers = [
        nnx.Linear(3, 4, rngs=rngs),
        nnx.Conv(3, 5, (1, 1), rngs=rngs),
        nnx.Conv(3, 2, 1, padding="VALID", strides=None, rngs=rngs),
    ]
    x = oracle.random((2, 4, 4, 3), "float32")

    @nnx.jit
    def both(layers, x):
        return vbx.batched_linear(layers, x, nnx.relu), [nnx.relu(layer(x)) for layer in layers]

    assert_same(*both(layers, x))
    assert vbx.batched_linear([], x) == []


def test_sizes_of_0_and_1():
    options = {"kernel_init": nnx.initializers.ones, "rngs": nnx.Rngs(0)}  # Flax's own default cannot do 0
    ours, loop = (kind([3, 1, 2], [0, 1, 4], **options) for kind in (vbx.BatchedLinear, LinearLoop))
    inputs = [oracle.random(shape, "float32") for shape in [(2, 3), (1,), (0, 2)]]
    assert_same(ours(inputs), loop(inputs))


class Block(nnx.Module):
    """A residual block whose branches are ours or the loop's."""

    def __init__(self, kind, rngs):
        self.branches = kind(8, [8, 3, 5], activation=nnx.gelu, rngs=rngs)

    def __call__(self, x):
        wide, *narrow = self.branches(x)
        return x + wide + jnp.concatenate(narrow, -1)


def scanned(kind):
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs):
        return Block(kind, rngs)

    def forward(x, block):
        return nnx.remat(Block.__call__)(block, x)

    return make(nnx.Rngs(0)), nnx.scan(forward, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)


@pytest.mark.slow
def test_scan_and_remat():
    x = oracle.random((3, 8), "float32")
    models, forwards = zip(*map(scanned, (vbx.BatchedLinear, LinearLoop)), strict=True)

    @nnx.jit
    def both(models, x):
        found = []
        for model, forward in zip(models, forwards, strict=True):
            loss = lambda model, x, forward=forward: jnp.sum(forward(x, model))  # noqa: E731
            value, gradients = nnx.value_and_grad(loss)(model, x)
            found.append((value, nnx.to_pure_dict(gradients)))
        return found

    assert_same(*both(models, x))


def test_training_with_donated_state():
    """Both ways to train: nnx.jit over modules, and jax.jit over split state, donated."""
    optimizer = optax.sgd(1e-2, momentum=0.9)
    trained = []
    for model in pair("lora")[:2]:
        inputs = pair("lora")[2]
        graph, parameters = nnx.split(model)
        memory = jax.jit(optimizer.init)(parameters)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(parameters, memory, inputs, graph=graph):
            gradients = jax.grad(lambda p: loss(nnx.merge(graph, p), inputs)[0])(parameters)
            updates, memory = optimizer.update(gradients, memory, parameters)
            return optax.apply_updates(parameters, updates), memory

        for _ in range(3):
            parameters, memory = step(parameters, memory, inputs)
        trained.append(nnx.to_pure_dict(parameters))

    model = pair("lora")[0]
    handle = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def train(model, handle, inputs):
        handle.update(model, nnx.grad(loss, has_aux=True)(model, inputs)[0])

    for _ in range(3):
        train(model, handle, inputs)
    assert_same(state(model), trained[1], rtol=1e-4)
    assert_same(*trained, rtol=1e-4)


def test_lora_in_mixed_precision_is_flaxs_around_the_same_base():
    model, _, inputs = pair("lora", dtype=jnp.bfloat16)
    parts = jnp.split(inputs, np.cumsum(GROUPS)[:-1])
    for adapter in model.adapters:
        adapter.base_module = nnx.data(model.base_module)
    with jax.numpy_dtype_promotion("standard"):  # Flax adds a float32 base to a bfloat16 adapter
        truth = jax.jit(lambda: [adapter(part) for adapter, part in zip(model.adapters, parts, strict=True)])()
        assert_same(jax.jit(model, static_argnums=1)(inputs, GROUPS), jnp.concatenate(truth), rtol=1e-2)


def test_a_frozen_base_gets_no_gradient():
    model, _, inputs = pair("lora")
    gradients, _ = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam), has_aux=True)(model, inputs)
    assert set(nnx.to_pure_dict(gradients)) == {"adapters"}
    assert np.abs(gradients["adapters"][2]["lora_a"][...]).max() > 0
    assert np.abs(gradients["adapters"][1]["lora_a"][...]).max() == 0  # no tokens


LINEAR = functools.partial(vbx.BatchedLinear, rngs=nnx.Rngs(0))
CONV = functools.partial(vbx.BranchedConv1x1, rngs=nnx.Rngs(0))
LORA = functools.partial(vbx.MultiLoRA, rngs=nnx.Rngs(0))
X = jnp.ones((2, 3), jnp.float32)


def layer(kind=nnx.Linear, **options):
    return kind(3, 4, rngs=nnx.Rngs(0), **options)


ERRORS = [
    (lambda: LINEAR([3, 3], [4, 4, 4]), "BatchedLinear: in_features has 2 entries but out_features has 3"),
    (lambda: LINEAR(3, [4, -1]), r"BatchedLinear: out_features\[1\] is -1"),
    (lambda: LINEAR(3, [4, 4.5]), r"out_features\[1\] is 4.5"),
    (lambda: LINEAR(3, [4], activation="softmax"), "activation must be None, a function, or one of 'relu'"),
    (lambda: LINEAR(3, [4, 5])([X, X, X]), "BatchedLinear: inputs has 3 entries but there are 2 branches"),
    (lambda: LINEAR([3, 5], [4, 5])(X), r"inputs\[1\].*Incompatible input dimension, got 3 but module expects 5"),
    (lambda: LINEAR(3, [4])(jnp.ones(())), r"inputs\[0\] has shape \(\)"),
    (lambda: CONV(3, [4, 4])([X[None], X]), r"BranchedConv1x1: inputs\[1\] has shape \(2, 3\): it needs 3 dimensions"),
    (lambda: CONV(3, [4, 4], strides=2)(X[None]), r"layers\[0\] is not a plain 1x1 convolution"),
    (lambda: LORA(3, [4, 0, 2], 5), r"MultiLoRA: ranks\[1\] is 0: must be an integer of at least 1"),
    (lambda: LORA(3, [], 5), "ranks is empty"),
    (lambda: LORA(3, [4], 5, base_module=3), "`base_module` must be callable"),
    (lambda: LORA(3, [4, 2], 5)(X, [2]), "group_sizes has 1 entries but there are 2 adapters"),
    (lambda: LORA(3, [4, 2], 5)(X, [2, 1]), r"inputs has shape \(2, 3\) but group_sizes add up to 3"),
    (lambda: LORA(3, [4, 2], 5)(X, [3, -1]), r"group_sizes\[1\] is -1"),
    (lambda: LORA(2, [4, 2], 5)(X, [1, 1]), "Incompatible input dimension, got 3 but module expects 2"),
    (lambda: vbx.batched_linear([layer(), layer(nnx.LoRALinear, lora_rank=2)], X),
     r"batched_linear: layers\[1\] is a LoRALinear"),
    (lambda: vbx.batched_linear([layer(dot_general=print)], X), r"layers\[0\] has a dot_general"),
    (lambda: vbx.batched_linear([layer(), layer(precision="high")], X), r"layers\[1\] has another precision"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_index(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_types():
    with pytest.raises(TypeError, match=r"group_sizes\[0\] is traced: .* or pass all sizes as one array"):
        jax.jit(LORA(3, [1, 1], 5))(X, [1, 1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'sparsity'"):
        LINEAR(3, [4], sparsity=2)
    with pytest.raises(TypeError, match=r"BatchedLinear: out_features is 3: expected a sequence of integers"):
        LINEAR(5, 3)
    with pytest.raises(TypeError, match=r"MultiLoRA: ranks is 2: expected"):
        LORA(3, 2, 5)
    with pytest.raises(ValueError, match=r"out_features\[0\] is 'a': must be an integer"):
        LINEAR(3, ["a"])
    assert LINEAR(np.int64(3), [4])(X)[0].shape == (2, 4)
    with pytest.raises(TypeError, match="activation must be"):
        LINEAR(3, [4], activation=3)
    with pytest.raises(TypeError, match="batched_linear: inputs must be an array, but is None"):
        vbx.batched_linear([layer()], None)
    with pytest.raises(TypeError, match=r"batched_linear: inputs\[1\] must be an array, but is 'x'"):
        vbx.batched_linear([layer(), layer()], [X, "x"])
    with pytest.raises(TypeError, match="without parameters"):
        LINEAR(3, [4], activation=nnx.PReLU())
