"""The layers beside those of e3nn-jax and cuequivariance-jax: the same parameters, results and derivatives."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

from jax_vbgemm.irreps import LinearMap

NEQUIP = "32x0o+8x1e+16x0e+8x1o+4x2e+16x0e"  # neither sorted nor grouped


@pytest.fixture(autouse=True)
def as_users_have_jax():
    """JAX's default promotion, as neither package works with the strict modes of this suite."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def segmented_polynomial():
    """`cuequivariance_jax.segmented_polynomial`, if a call of it alone, without this package, runs in this JAX.

    That of cuequivariance-jax 0.13 does not run in JAX 0.12, which calls its rule for dead code with one more argument.
    """
    cue, cuex = pytest.importorskip("cuequivariance"), pytest.importorskip("cuequivariance_jax")
    scalar = cue.Irreps("O3", "1x0e")
    polynomial, ones = cue.descriptors.linear(scalar, scalar).polynomial, jnp.ones((1, 1))
    results = [jax.ShapeDtypeStruct((1, 1), ones.dtype)]
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            cuex.segmented_polynomial(polynomial, [ones, ones], results, method="naive")
    except Exception as error:
        pytest.skip(f"cuequivariance-jax {cuex.__version__} does not run in JAX {jax.__version__}: {error}")
    return cuex.segmented_polynomial


def assert_same(found, expected, tolerance=1e-10):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert f.shape == e.shape
        assert f.dtype == e.dtype
        np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance)


def assert_same_derivatives(found, expected, parameters, x):
    """Compares the derivatives, by parameters, of an energy and of its forces' squares."""

    def gradients(apply, parameters, x):
        def energy(parameters, x):
            return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(apply(parameters, x)))

        def loss(parameters, x):
            return sum(jnp.sum(f**2) for f in jax.tree.leaves(jax.grad(energy, 1)(parameters, x)))

        return jax.grad(energy, (0, 1))(parameters, x), jax.grad(loss)(parameters, x)

    assert_same(*jax.jit(lambda *args: [gradients(f, *args) for f in (found, expected)])(parameters, x), 1e-8)


def assert_same_layers(layers, *inputs, tolerance=1e-10):
    """Compares initial parameters, which it returns, and results of ours and e3nn's layer."""
    flags = []

    def own():  # an IrrepsArray keeps its chunks, which are tracers inside of jit
        return map(copy.copy, inputs)

    @jax.jit
    def results(variables):  # the inputs are constants, as jit forgets which of their irreps are zeros
        ys = [layer.apply(variables, *own()) for layer in layers]
        flags.append([y.zero_flags for y in ys])
        return ys

    ours, variables = jax.jit(lambda key: [layer.init(key, *own()) for layer in layers])(jax.random.key(1))
    assert_same(ours, variables)
    y, expected = results(variables)
    assert y.irreps == expected.irreps
    assert flags[0][0] == flags[0][1]
    assert_same(y, expected, tolerance)
    return variables


OPTIONS = {
    "plain": {},
    "biases": {"biases": True},
    "forced": {"force_irreps_out": True},
    "channels": {"channel_out": 3},
    "as they are": {"simplify_irreps_internally": False, "path_normalization": "path"},
    "instructions": {
        "simplify_irreps_internally": False, "instructions": [(1, 2), (5, 0)],
        "gradient_normalization": "element",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    slow_except(OPTIONS.values(), [OPTIONS["biases"]]),
    ids=OPTIONS,
)
def test_linear_of_e3nn_in_flax(options):
    e3nn = pytest.importorskip("e3nn_jax")
    pytest.importorskip("flax")
    from jax_vbgemm.irreps.flax import Linear

    rows = (2, 3) if "channel_out" in options else (3,)
    x = e3nn.normal(NEQUIP, jax.random.key(0), rows, dtype=jnp.float64)
    if "instructions" in options:
        options = options | {"irreps_in": x.irreps}
    ours, theirs = (layer("5x0e+2x2e+3x1e+4x3o", **options) for layer in (Linear, e3nn.flax.Linear))
    variables = assert_same_layers((ours, theirs), x)
    if options in ({}, {"biases": True}):
        assert_same_derivatives(ours.apply, theirs.apply, variables, x)


@pytest.mark.slow
def test_linear_of_e3nn_with_zeros_and_integers():
    e3nn = pytest.importorskip("e3nn_jax")
    pytest.importorskip("flax")
    from jax_vbgemm.irreps.flax import Linear

    x = e3nn.from_chunks("4x0e+2x1o+3x0e", [jnp.ones((5, 4, 1)), None, jnp.ones((5, 3, 1))], (5,))
    for options in ({"force_irreps_out": True}, {"simplify_irreps_internally": False}):
        layers = [layer("2x1o+3x0e", **options) for layer in (Linear, e3nn.flax.Linear)]
        assert_same_layers(layers, x, tolerance=1e-5)
    x = e3nn.IrrepsArray("2x0e", jnp.arange(6).reshape(3, 2))
    assert_same_layers((Linear("2x0e"), e3nn.flax.Linear("2x0e")), x, tolerance=1e-6)


@pytest.mark.parametrize("irreps", slow_except(["8x0e+8x1o+8x2e+8x3o", NEQUIP], [NEQUIP]))
@pytest.mark.slow
def test_weights_that_rows_choose_or_mix_in_e3nn(irreps):
    e3nn = pytest.importorskip("e3nn_jax")
    pytest.importorskip("flax")
    from jax_vbgemm.irreps.flax import Linear

    x = e3nn.normal(irreps, jax.random.key(0), (4,), dtype=jnp.float64)
    indices = jax.device_put(np.array([2, 0, 0, 2]))
    layers = [layer("4x0e+2x1o+3x2e", num_indexed_weights=3) for layer in (Linear, e3nn.flax.Linear)]
    assert_same_layers(layers, indices, x)
    ours, theirs = (layer("4x0e+2x1o+3x2e") for layer in (Linear, e3nn.flax.Linear))
    assert_same_layers((ours, theirs), oracle.random((4, 5), "float64", 1), x)
    with pytest.raises(ValueError, match="num_indexed_weights"):
        ours.init(jax.random.key(1), indices, x)


def test_linear_of_e3nn_in_haiku():
    e3nn = pytest.importorskip("e3nn_jax")
    hk = pytest.importorskip("haiku")
    from jax_vbgemm.irreps.haiku import Linear

    def network(layer):
        def run(x, indices):
            y = layer("5x0e+2x2e+3x1e", biases=True, name="first")(x)
            return layer("4x0e+1x1e", num_indexed_weights=3, name="second")(indices, y)

        return hk.without_apply_rng(hk.transform(run))

    x, indices = e3nn.normal(NEQUIP, jax.random.key(0), (4,), dtype=jnp.float64), jnp.array([2, 0, 1, 2])
    networks = network(Linear), network(e3nn.haiku.Linear)
    ours, parameters = jax.jit(lambda *args: [network.init(*args) for network in networks])(
        jax.random.key(1), x, indices
    )
    assert_same(ours, parameters)
    assert_same(*jax.jit(lambda *args: [network.apply(*args) for network in networks])(parameters, x, indices))


EQUINOX = {
    "plain": {"channel_out": 3}, "biases": {"biases": True, "gradient_normalization": "element"},
    "indexed": {"linear_type": "indexed", "num_indexed_weights": 3, "force_irreps_out": True},
    "mixed": {"linear_type": "mixed", "weights_dim": 5},
}  # fmt: skip


@pytest.mark.parametrize("kind", slow_except(EQUINOX, ["biases", "indexed"]))
def test_linear_of_e3nn_in_equinox(kind):
    e3nn, eqx = pytest.importorskip("e3nn_jax"), pytest.importorskip("equinox")
    from jax_vbgemm.irreps.equinox import Linear

    options = {"irreps_in": NEQUIP, "irreps_out": "5x0e+2x2e+3x1e+4x3o", "input_dtype": jnp.float64, **EQUINOX[kind]}
    ours, theirs = (layer(**options, key=jax.random.key(1)) for layer in (Linear, e3nn.equinox.Linear))
    assert type(ours) is not type(theirs)
    x = e3nn.normal(NEQUIP, jax.random.key(0), (4,), dtype=jnp.float64)
    chosen = {"indexed": [jnp.array([2, 0, 0, 2])], "mixed": [oracle.random((4, 5), "float64", 1)]}.get(kind, [])
    flags = []

    def results(layers, array):
        ys = [layer(*chosen, e3nn.IrrepsArray(NEQUIP, array)) for layer in layers]
        flags.append([y.zero_flags for y in ys])
        return ys

    assert_same(ours._weights, theirs._weights)
    y, expected = eqx.filter_jit(results)((ours, theirs), x.array)
    assert y.irreps == expected.irreps
    assert flags[0][0] == flags[0][1]
    assert_same(y, expected)
    if kind == "biases":

        def applied(layer):
            def apply(weights, array):
                return eqx.tree_at(lambda layer: layer._weights, layer, weights)(e3nn.IrrepsArray(NEQUIP, array)).array

            return apply

        assert_same_derivatives(applied(ours), applied(theirs), ours._weights, x.array)


def test_a_layer_of_equinox_is_exported_with_any_number_of_nodes():
    e3nn = pytest.importorskip("e3nn_jax")
    pytest.importorskip("equinox")
    from jax_vbgemm.irreps.equinox import Linear

    options = {"irreps_in": "3x0e+2x1o", "irreps_out": "2x0e+4x1o", "input_dtype": jnp.float64}
    first = Linear(**options, key=jax.random.key(0))
    second = Linear(**options, linear_type="indexed", num_indexed_weights=3, key=jax.random.key(1))

    def energy(x, species):
        x = e3nn.IrrepsArray("3x0e+2x1o", x)
        return jnp.sum(jnp.sin(first(x).array) * second(species, x).array)

    (nodes,) = jax.export.symbolic_shape("nodes")
    f = jax.jit(jax.value_and_grad(energy))
    arguments = jax.ShapeDtypeStruct((nodes, 9), "float64"), jax.ShapeDtypeStruct((nodes,), "int32")
    program = jax.export.deserialize(jax.export.export(f)(*arguments).serialize())
    for n in (1, 6):
        x, species = oracle.random((n, 9), "float64", n), jnp.arange(n, dtype=jnp.int32) % 3
        assert_same(program.call(x, species), f(x, species))


def test_equinox_layers_refuse_what_their_type_does_not_take():
    e3nn = pytest.importorskip("e3nn_jax")
    pytest.importorskip("equinox")
    from jax_vbgemm.irreps.equinox import Linear

    layer = Linear(irreps_in="3x0e", irreps_out="2x0e", key=jax.random.key(0))
    x = e3nn.normal("3x0e", jax.random.key(0), (4,))
    with pytest.raises(ValueError, match="linear_type is 'vanilla', but indices of weights are given"):
        layer(jnp.zeros(4, int), x)
    with pytest.raises(ValueError, match="x has the irreps 2x1o, but irreps_in is 3x0e"):
        layer(e3nn.normal("2x1o", jax.random.key(0), (4,)))


def test_irreps_that_don_t_fit_are_named():
    e3nn = pytest.importorskip("e3nn_jax")
    pytest.importorskip("flax")
    from jax_vbgemm.irreps.flax import Linear

    x = e3nn.normal("3x0e+2x1o", jax.random.key(0), (4,))
    with pytest.raises(ValueError, match=r"x has the irreps 3x0e\+2x1o, but irreps_in is 2x1o"):
        Linear("0e", irreps_in="2x1o").init(jax.random.key(1), x)
    with pytest.raises(ValueError, match="simplify_irreps_internally=False"):
        Linear("0e", instructions=[(0, 0)]).init(jax.random.key(1), x)


@pytest.mark.parametrize("layout", slow_except(["mul_ir", "ir_mul"], ["ir_mul"]))
def test_descriptor_of_cuequivariance(segmented_polynomial, layout):
    cue, cuex = pytest.importorskip("cuequivariance"), pytest.importorskip("cuequivariance_jax")
    irreps_in, irreps_out = cue.Irreps("O3", "3x0e+5x1o+2x0e"), cue.Irreps("O3", "2x1o+4x1o+2x0e+3x2e")
    polynomial = cue.descriptors.linear(irreps_in, irreps_out).polynomial
    linear = LinearMap(irreps_in, irreps_out, layout=layout)
    w, x = oracle.random((linear.num_weights,), "float64", 0), oracle.random((4, linear.dim_in), "float64", 1)

    def theirs(w, x):
        (y,) = segmented_polynomial(polynomial, [w, x], [jax.ShapeDtypeStruct((4, -1), x.dtype)], method="naive")
        return y

    def turned(w, x):
        x = cuex.RepArray(irreps_in, x, cue.mul_ir).change_layout(cue.ir_mul).array
        return cuex.RepArray(irreps_out, theirs(w, x), cue.ir_mul).change_layout(cue.mul_ir).array

    expected = theirs if layout == "ir_mul" else turned
    assert_same(*jax.jit(lambda w, x: (linear(w, x), expected(w, x)))(w, x))
    if layout == "ir_mul":
        assert_same_derivatives(linear, theirs, w, x)


@pytest.mark.parametrize("group", ["SO3", "SU2"])
def test_groups_of_cuequivariance(segmented_polynomial, group):
    cue, cuex = pytest.importorskip("cuequivariance"), pytest.importorskip("cuequivariance_jax")
    irreps_in, irreps_out = cue.Irreps(group, "3x0+5x1"), cue.Irreps(group, "2x1+4x0")
    polynomial = cue.descriptors.linear(irreps_in, irreps_out).polynomial
    linear = LinearMap(irreps_in, irreps_out, layout="ir_mul")
    w, x = oracle.random((3, linear.num_weights), "float64", 0), oracle.random((5, linear.dim_in), "float64", 1)
    counts = np.array([2, 0, 3])

    @jax.jit
    def both(w, x, counts):
        results, repeats = [jax.ShapeDtypeStruct((5, -1), x.dtype)], [cuex.Repeats(counts), None, None]
        (y,) = segmented_polynomial(polynomial, [w, x], results, repeats, method="naive")
        return linear(w, x, counts=counts), y

    assert_same(*both(w, x, counts))


def features(irreps, rows):
    return {ir: oracle.random((*rows, mul, ir.dim), "float64", i) for i, (mul, ir) in enumerate(irreps)}


@pytest.mark.parametrize("scale", slow_except([1.0, 0.7], [0.7]))
def test_linear_of_cuequivariance_in_nnx(scale):
    cue, cuex = pytest.importorskip("cuequivariance"), pytest.importorskip("cuequivariance_jax")
    nnx = pytest.importorskip("flax.nnx")
    from jax_vbgemm.irreps.nnx import IrrepsLinear

    irreps_in, irreps_out = cue.Irreps("O3", "8x0e+4x1o+2x2e"), cue.Irreps("O3", "3x0e+2x0o+5x1o")
    ours, theirs = (
        layer(irreps_in, irreps_out, scale, dtype=jnp.float64, rngs=nnx.Rngs(0))
        for layer in (IrrepsLinear, cuex.nnx.IrrepsLinear)
    )
    assert_same(nnx.state(ours), nnx.state(theirs))
    x = features(irreps_in, (2, 3))
    assert_same(*nnx.jit(lambda layers, x: [layer(x) for layer in layers])((ours, theirs), x))
    graph, state = nnx.split(ours)
    their_graph, _ = nnx.split(theirs)
    assert_same_derivatives(lambda s, x: nnx.merge(graph, s)(x), lambda s, x: nnx.merge(their_graph, s)(x), state, x)


def test_indexed_linear_of_cuequivariance_in_nnx(segmented_polynomial):
    cue, cuex = pytest.importorskip("cuequivariance"), pytest.importorskip("cuequivariance_jax")
    nnx = pytest.importorskip("flax.nnx")
    from jax_vbgemm.irreps.nnx import IrrepsIndexedLinear

    irreps_in, irreps_out = cue.Irreps("O3", "8x0e+4x1o+2x2e"), cue.Irreps("O3", "3x0e+5x1o")
    ours, theirs = (
        layer(irreps_in, irreps_out, 3, 0.7, dtype=jnp.float64, rngs=nnx.Rngs(0))
        for layer in (IrrepsIndexedLinear, cuex.nnx.IrrepsIndexedLinear)
    )
    assert_same(nnx.state(ours), nnx.state(theirs))
    x, counts = features(irreps_in, (5,)), jnp.array([2, 0, 3])

    # cuequivariance's layer runs on a GPU only; this is its definition.
    def definition(w, x, counts):
        flat = cuex.ir_dict.dict_to_flat(irreps_in, {ir: v.swapaxes(-1, -2) for ir, v in x.items()})
        results, repeats = [jax.ShapeDtypeStruct((5, -1), flat.dtype)], [cuex.Repeats(counts), None, None]
        (y,) = segmented_polynomial(theirs.poly, [w, flat], results, repeats, method="naive")
        return cuex.ir_dict.flat_to_dict(irreps_out, y, layout="ir_mul")

    both = nnx.jit(lambda layer, w, x, counts: (layer(x, counts), definition(w, x, counts)))
    assert_same(*both(ours, theirs.w[...], x, counts), 1e-6)
