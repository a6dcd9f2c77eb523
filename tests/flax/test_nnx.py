"""The layers of jax_vbgemm.flax.nnx against the loop of Flax layers that they stand for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from flax import nnx

from jax_vbgemm.flax import nnx as vbx

WIDTHS = (5, 1, 17, 8)


class LinearLoop(nnx.List):
    """What a user has before: a list of layers, called one after another."""

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
    return kind(6, [1, 4, 2, 8], 7, base_module=base, rngs=rngs, b_initializer=nnx.initializers.normal(), **options)


GROUPS = (3, 0, 4, 1)
PAIRS = {
    "shared": (lambda kind, **o: (vbx.BatchedLinear, LinearLoop)[kind](6, WIDTHS, rngs=nnx.Rngs(1), **o), (2, 3, 6)),
    "separate": (lambda kind, **o: (vbx.BatchedLinear, LinearLoop)[kind]([6, 3, 1, 9], WIDTHS, rngs=nnx.Rngs(1), **o),
                 [(2, 6), (4, 3), (1,), (2, 2, 9)]),
    "conv": (lambda kind, **o: (vbx.BranchedConv1x1, ConvLoop)[kind](6, WIDTHS, rngs=nnx.Rngs(1), **o), (2, 3, 3, 6)),
    "convs": (lambda kind, **o: (vbx.BranchedConv1x1, ConvLoop)[kind]([6, 3, 3, 2], WIDTHS, rngs=nnx.Rngs(1), **o),
              [(2, 3, 3, 6), (1, 1, 3), (2, 2, 2, 2, 3), (1, 4, 4, 2)]),
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
    return sum(jnp.sum(jnp.sin(y.astype(jnp.float32))) for y in apply(model, inputs))


def assert_same(ours, theirs, rtol=2e-5):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(oracle.wide(a), oracle.wide(b), rtol=rtol, atol=rtol)


def state(model):
    return nnx.to_pure_dict(nnx.state(model))


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_seed_gives_the_same_parameters(name):
    ours, loop, _ = pair(name)
    jax.tree.map(np.testing.assert_array_equal, state(ours), state(loop))
    assert [path for path, _ in nnx.to_flat_state(nnx.state(ours))] == [path for path, _ in nnx.to_flat_state(nnx.state(loop))]


@pytest.mark.parametrize("name", PAIRS)
def test_outputs_and_gradients(name):
    ours, loop, inputs = pair(name)
    assert_same(nnx.jit(apply)(ours, inputs), apply(loop, inputs))
    value, gradients = nnx.value_and_grad(loss, argnums=(0, 1))(ours, inputs)
    their_value, their_gradients = nnx.value_and_grad(loss, argnums=(0, 1))(loop, inputs)
    assert_same(value, their_value)
    assert_same(nnx.to_pure_dict(gradients[0]), nnx.to_pure_dict(their_gradients[0]))
    assert_same(gradients[1], their_gradients[1])


@pytest.mark.parametrize("direction", ["ours to loop", "loop to ours"])
@pytest.mark.parametrize("name", ["shared", "convs", "lora"])
def test_a_checkpoint_of_one_loads_into_the_other(name, direction, tmp_path):
    checkpointing = pytest.importorskip("orbax.checkpoint")
    ours, loop, inputs = pair(name)
    source, target = (ours, loop) if direction == "ours to loop" else (loop, ours)
    nnx.update(source, jax.tree.map(lambda x: x * 2 + 1, nnx.state(source)))  # trained
    with checkpointing.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(source))
        checkpointer.wait_until_finished()
        nnx.update(target, checkpointer.restore(tmp_path / "state", nnx.state(target)))
    assert_same(apply(ours, inputs), apply(loop, inputs))
    jax.tree.map(np.testing.assert_array_equal, state(source), state(target))


ACTIVATIONS = [
    "relu", jax.nn.relu, nnx.gelu, functools.partial(nnx.gelu, approximate=False), nnx.swish, jnp.tanh, jax.lax.tanh,
    nnx.sigmoid, jax.nn.softplus, functools.partial(jax.nn.gelu, approximate=True),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=range(len(ACTIVATIONS)))
def test_activations(activation):
    function = jax.nn.relu if activation == "relu" else activation
    ours, loop, inputs = pair("shared")[0], pair("shared", activation=function)[1], pair("shared")[2]
    ours.activation = activation
    assert_same(apply(ours, inputs), apply(loop, inputs))
    gradients, their_gradients = (nnx.to_pure_dict(nnx.grad(loss)(model, inputs)) for model in (ours, loop))
    assert_same(gradients, their_gradients)


@pytest.mark.parametrize("activation", ["relu", nnx.gelu, nnx.silu])
def test_one_call_does_it_all(activation):
    ours, _, inputs = pair("conv", activation=activation)
    graph, parameters = nnx.split(ours)
    text = jax.jit(lambda p, x: nnx.merge(graph, p)(x)).lower(parameters, inputs).as_text()
    assert text.count("custom_call @vbgemm_v1") == 1
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


@pytest.mark.parametrize("name", ["shared", "conv"])
@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_options_are_flaxs(options, name):
    if name == "conv" and options.get("dtype") == jnp.complex64:
        pytest.skip("Flax's convolution of complex numbers has no such dtype on the CPU")
    ours, loop, inputs = pair(name, activation=jnp.tanh, **options)
    tolerance = 2e-2 if jnp.bfloat16 in options.values() else 2e-5
    assert_same(apply(ours, inputs), apply(loop, inputs), tolerance)

    def real_loss(model):
        return sum(jnp.sum(jnp.abs(y).astype(jnp.float64)) for y in apply(model, inputs))

    gradients, their_gradients = (nnx.to_pure_dict(nnx.grad(real_loss)(model)) for model in (ours, loop))
    assert_same(gradients, their_gradients, 4 * tolerance)


def test_promotion_where_the_bias_is_wider_than_the_product():
    options = {"dtype": jnp.float32, "preferred_element_type": jnp.bfloat16}
    ours, loop, inputs = pair("shared", activation=jax.nn.relu, **options)
    with jax.numpy_dtype_promotion("standard"):
        assert_same(apply(ours, inputs), apply(loop, inputs), 2e-2)
        assert all(y.dtype == jnp.float32 for y in apply(ours, inputs))
    with pytest.raises(jax.errors.TypePromotionError if hasattr(jax.errors, "TypePromotionError") else Exception):
        apply(ours, inputs)


def test_metadata():
    options = {"kernel_metadata": {"out_sharding": (None, "model")}, "bias_metadata": {"note": "b"}}
    ours, loop, _ = pair("shared", **options)
    for layer, theirs in zip(ours, loop, strict=True):
        assert layer.kernel.get_metadata() == theirs.kernel.get_metadata()
        assert layer.kernel.get_metadata()["out_sharding"] == (None, "model")
        assert layer.bias.get_metadata()["note"] == "b"


def test_gradients_of_a_shared_input_in_mixed_precision_are_summed_wide():
    ours, loop, inputs = pair("shared", dtype=jnp.bfloat16)

    def of_inputs(model, inputs):
        return jax.grad(lambda x: sum(jnp.sum(y.astype(jnp.float32)) for y in model(x)))(inputs)

    kernels = [np.asarray(layer.kernel[...].astype(jnp.bfloat16), np.float64) for layer in loop]
    truth = np.broadcast_to(sum(kernel.sum(1) for kernel in kernels), inputs.shape)
    error, theirs = (np.abs(np.asarray(of_inputs(model, inputs)) - truth).max() for model in (ours, loop))
    assert error <= theirs
    text = jax.jit(functools.partial(of_inputs, ours)).lower(inputs).as_text()
    assert text.count("custom_call @vbgemm_v1") == 1


def test_existing_layers_of_both_kinds():
    rngs = nnx.Rngs(0)
    layers = [
        nnx.Linear(3, 4, rngs=rngs),
        nnx.Conv(3, 5, (1, 1), rngs=rngs),
        nnx.Conv(3, 2, 1, padding="VALID", strides=None, rngs=rngs),
    ]
    x = oracle.random((2, 4, 4, 3), "float32")
    ours = vbx.batched_linear(layers, x, nnx.relu)
    assert_same(ours, [nnx.relu(layer(x)) for layer in layers])
    assert vbx.batched_linear([], x) == []


def test_sizes_of_0_and_1():
    ours = vbx.BatchedLinear([3, 1, 2], [0, 1, 4], rngs=nnx.Rngs(0))
    loop = LinearLoop([3, 1, 2], [0, 1, 4], rngs=nnx.Rngs(0))
    inputs = [oracle.random(shape, "float32") for shape in [(2, 3), (1,), (0, 2)]]
    assert_same(ours(inputs), loop(inputs))
    with pytest.raises(TypeError, match="without parameters"):
        vbx.BatchedLinear(3, [4], activation=nnx.PReLU(), rngs=nnx.Rngs(0))


class Block(nnx.Module):
    """A residual block whose branches are ours or the loop's."""

    def __init__(self, kind, rngs):
        self.branches = kind(8, [8, 3, 5], activation=nnx.gelu, rngs=rngs)

    def __call__(self, x):
        wide, *narrow = self.branches(x)
        return x + wide + jnp.concatenate(narrow, -1)


def scanned(kind, remat):
    @nnx.split_rngs(splits=4)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs):
        return Block(kind, rngs)

    def forward(x, block):
        return (nnx.remat(Block.__call__) if remat else Block.__call__)(block, x)

    return make(nnx.Rngs(0)), nnx.scan(forward, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)


@pytest.mark.parametrize("remat", [False, True])
def test_scan_and_remat(remat):
    x = oracle.random((3, 8), "float32")
    results = []
    for kind in (vbx.BatchedLinear, LinearLoop):
        model, forward = scanned(kind, remat)
        f = nnx.jit(nnx.value_and_grad(lambda model, x, forward=forward: jnp.sum(forward(x, model))))
        value, gradients = f(model, x)
        results.append((value, nnx.to_pure_dict(gradients)))
    assert_same(*results)


@pytest.mark.parametrize("name", ["conv", "lora"])
def test_training_with_donated_state(name):
    """Both ways to train: nnx.jit over modules, and jax.jit over split state, donated."""
    optimizer = optax.adam(1e-2)
    results = []
    for model in pair(name)[:2]:
        inputs = pair(name)[2]
        graph, parameters = nnx.split(model)
        memory = optimizer.init(parameters)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(parameters, memory, inputs, graph=graph):
            gradients = jax.grad(lambda p: loss(nnx.merge(graph, p), inputs))(parameters)
            updates, memory = optimizer.update(gradients, memory, parameters)
            return optax.apply_updates(parameters, updates), memory

        for _ in range(3):
            parameters, memory = step(parameters, memory, inputs)
        results.append(nnx.to_pure_dict(parameters))

    model = pair(name)[0]
    handle = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def train(model, handle, inputs):
        handle.update(model, nnx.grad(loss)(model, inputs))

    for _ in range(3):
        train(model, handle, inputs)
    assert_same(state(model), results[1], rtol=1e-4)
    assert_same(*results, rtol=1e-4)


def test_vmap_over_models():
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs):
        return vbx.BatchedLinear(4, [3, 2], rngs=rngs)

    models, x = make(nnx.Rngs(0)), oracle.random((5, 4), "float32")
    outputs = nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x)
    for layer, output in zip(models, outputs, strict=True):
        truth = np.asarray(x) @ np.asarray(layer.kernel[...])
        np.testing.assert_allclose(output, truth, rtol=1e-5, atol=1e-6)


def test_lora_in_mixed_precision_is_flaxs_around_the_same_base():
    model, _, inputs = pair("lora", dtype=jnp.bfloat16)
    parts = jnp.split(inputs, np.cumsum(GROUPS)[:-1])
    for adapter in model.adapters:
        adapter.base_module = nnx.data(model.base_module)
    with jax.numpy_dtype_promotion("standard"):  # Flax adds a float32 base to a bfloat16 adapter
        truth = [adapter(part) for adapter, part in zip(model.adapters, parts, strict=True)]
        assert_same(model(inputs, GROUPS), jnp.concatenate(truth), rtol=1e-2)


def test_a_frozen_base_gets_no_gradient():
    model, _, inputs = pair("lora")
    gradients = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model, inputs)
    assert set(nnx.to_pure_dict(gradients)) == {"adapters"}
    assert np.abs(gradients["adapters"][2]["lora_a"][...]).max() > 0
    assert np.abs(gradients["adapters"][1]["lora_a"][...]).max() == 0  # no tokens


LINEAR = functools.partial(vbx.BatchedLinear, rngs=nnx.Rngs(0))
CONV = functools.partial(vbx.BranchedConv1x1, rngs=nnx.Rngs(0))
LORA = functools.partial(vbx.MultiLoRA, rngs=nnx.Rngs(0))
X = jnp.ones((2, 3), jnp.float32)
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
    (lambda: vbx.batched_linear([nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))], X),
     r"batched_linear: layers\[1\] is a LoRALinear"),
    (lambda: vbx.batched_linear([nnx.Linear(3, 4, dot_general=print, rngs=nnx.Rngs(0))], X), r"layers\[0\] has a dot_general"),
    (lambda: vbx.batched_linear([nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(3, 4, precision="high", rngs=nnx.Rngs(0))], X),
     r"layers\[1\] has another precision"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_index(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_types():
    with pytest.raises(TypeError, match=r"group_sizes\[0\] is traced"):
        jax.jit(LORA(3, [1, 1], 5))(X, [1, 1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'sparsity'"):
        LINEAR(3, [4], sparsity=2)
    with pytest.raises(TypeError, match="activation must be"):
        LINEAR(3, [4], activation=3)
