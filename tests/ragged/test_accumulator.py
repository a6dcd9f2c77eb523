"""Ragged contractions that are added to an accumulator, and gradients that are."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends

M, K, N, GROUPS = 40, 16, 24, 3
SIZES = jnp.array([21, 0, 15])
NUMBERS = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
DTYPES = pytest.mark.parametrize(
    "dtype", slow_except(["float32", "bfloat16", "float16", "float64", "complex64"], ["float32", "bfloat16"])
)


def operands(dtype, *, transposed=False):
    rhs = oracle.random((GROUPS, N, K) if transposed else (GROUPS, K, N), dtype, 2)
    total = oracle.random(rhs.shape, wide(dtype), 3)
    return oracle.random((M, K), dtype, 1), rhs, total


def wide(dtype):
    return "float32" if jnp.dtype(dtype).itemsize == 2 else dtype


def contraction(lhs, dy, sizes=SIZES, **options):
    options = {"preferred_element_type": wide(lhs.dtype), "precision": "highest", **options}
    return vb.ragged_dot_general(lhs, dy, sizes, NUMBERS, **options)


def assert_close(one, other, tolerance=1e-5):
    one, other = oracle.wide(one), oracle.wide(other)
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, abs(other).max()))


@DTYPES
@pytest.mark.parametrize("offset", [None, 1])
def test_a_contraction_is_added(dtype, offset):
    lhs, _, total = operands(dtype)
    dy = oracle.random((M, N), dtype, 4)
    options = {} if offset is None else {"group_offset": offset, "groups": GROUPS}
    sizes = SIZES if offset is None else jnp.array([5, 21, 0, 10])
    got = jax.jit(lambda total: contraction(lhs, dy, sizes, accumulator=total, **options))(total)
    assert got.dtype == total.dtype
    assert_close(got, total + jax.jit(lambda: contraction(lhs, dy, sizes, **options))())


def test_matrices_without_rows_keep_their_bits():
    lhs, _, total = operands("bfloat16")
    total = total.at[1].set(-0.0)
    got = contraction(lhs, jnp.ones((M, N), "bfloat16"), accumulator=total)
    np.testing.assert_array_equal(got[1], total[1])


def test_more_dimensions():
    """Batch dimensions, several free ones, and contracted dimensions before the ragged one, which are summed."""
    total = oracle.random((GROUPS, 5, 3, 4), "float32", 3)

    def check(lhs_shape, dy_shape, dot, ragged_dimension, sizes):
        lhs, dy = oracle.random(lhs_shape, "float32", 1), oracle.random(dy_shape, "float32", 2)
        numbers = jax.lax.RaggedDotDimensionNumbers(dot, [ragged_dimension], [])
        product = partial(vb.ragged_dot_general, lhs, dy, sizes, numbers, precision="highest")
        assert_close(jax.jit(product)(accumulator=total), total + jax.jit(product)())

    check((2, 5, 3, M), (5, 2, M, 4), (([0, 3], [1, 2]), ([1], [0])), 3, jnp.tile(SIZES, (5, 2, 1)))
    check((5, 3, M), (5, M, 4), (([2], [1]), ([0], [0])), 2, jnp.tile(SIZES, (5, 1)))


@pytest.mark.slow
def test_derivatives_and_vmap_of_the_sum():
    lhs, _, total = operands("float32")
    dy = oracle.random((M, N), "float32", 4)

    def fused(lhs, dy, total):
        return jnp.sin(contraction(lhs, dy, accumulator=total)).sum()

    def plain(lhs, dy, total):
        return jnp.sin(total + contraction(lhs, dy)).sum()

    every = (0, 1, 2)
    second = lambda f: jax.jit(jax.hessian(lambda t: f(lhs * t, dy, total * t)))(jnp.float32(0.7))  # noqa: E731
    for of in (lambda f: jax.jit(jax.grad(f, every))(lhs, dy, total), second):
        for one, other in zip(jax.tree.leaves(of(fused)), jax.tree.leaves(of(plain)), strict=True):
            assert_close(one, other, 1e-4)
    for axes in [(0, None, None), (None, None, 0), (0, None, 0)]:
        mapped = [x if axis is None else jnp.stack([x, -x]) for x, axis in zip((lhs, dy, total), axes, strict=True)]
        assert_close(*(jax.jit(jax.vmap(f, axes))(*mapped) for f in (fused, plain)))
    cotangent = oracle.random(total.shape, "float32", 5)
    (linear,) = jax.linear_transpose(lambda total: contraction(lhs, dy, accumulator=total), total)(cotangent)
    np.testing.assert_array_equal(linear, cotangent)


@DTYPES
@pytest.mark.parametrize("transposed", slow_except([False, True], [True]))
@pytest.mark.parametrize("selection", ["none", "gather", "slots"])
def test_the_gradient_of_rhs_is_added(dtype, transposed, selection):
    lhs, rhs, total = operands(dtype, transposed=transposed)
    options = {"transpose_rhs": transposed, "precision": "highest"}
    index = jnp.asarray(np.random.default_rng(0).permutation(M))
    options |= {"none": {}, "gather": {"gather": index}, "slots": {"gather": (index, jnp.argsort(index)[:, None])}}[
        selection
    ]

    def loss(lhs, rhs, sums=None):
        y = vb.ragged_dot(lhs, rhs, SIZES, rhs_gradient=sums, **options)
        return jnp.sin(y).real.astype("float32").sum()

    @jax.jit
    def added(lhs, rhs, total):
        sums = jax.new_ref(total)
        return *jax.grad(loss, argnums=(0, 1))(lhs, rhs, sums), jax.freeze(sums)

    got, expected = added(lhs, rhs, total), jax.jit(jax.grad(loss, argnums=(0, 1)))(lhs, rhs)
    tolerance = 2e-2 if jnp.dtype(dtype).itemsize == 2 else 1e-5
    assert_close(got[0], expected[0], tolerance)
    assert_close(got[1], expected[1], tolerance)
    assert_close(got[2], total + expected[1].astype(total.dtype), tolerance)


LHS, RHS, TOTAL = operands("float32")
TOKENS = oracle.random((4, M, K), "float32", 5)


EPILOGUES = {
    "bias": {"bias": oracle.random((GROUPS, N), "float32", 6)},
    "scaled": {"activation": "relu", "row_scale": jnp.linspace(-1, 1, M, dtype="float32")},
    "all": {
        "bias": oracle.random((GROUPS, N), "float32", 6),
        "activation": "gelu",
        "row_scale": jnp.ones(M, "float32"),
    },
    "gated": {"gated": True, "activation": "silu", "bias": oracle.random((GROUPS, N), "float32", 6)},
    "a window": {"group_offset": 1, "bias": oracle.random((GROUPS, N), "float32", 6)},
}


@pytest.mark.parametrize("case", slow_except(EPILOGUES, ["gated", "a window"]))
def test_products_with_an_epilogue(case):
    options = EPILOGUES[case] | {"precision": "highest"}
    sizes = jnp.array([5, 21, 0, 10]) if case == "a window" else SIZES
    arrays = {name: value for name, value in options.items() if isinstance(value, jax.Array)}

    def loss(lhs, rhs, arrays, sums=None):
        return jnp.sin(vb.ragged_dot(lhs, rhs, sizes, rhs_gradient=sums, **options | arrays)).sum()

    sums = jax.new_ref(TOTAL)
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    got, expected = gradient(LHS, RHS, arrays, sums), gradient(LHS, RHS, arrays)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_close(one, other)
    assert_close(sums[...], TOTAL + expected[1][1])


def loss_of(x, sums, rhs=RHS):
    return jnp.sin(vb.ragged_dot(x, rhs, SIZES, rhs_gradient=sums, precision="highest")).sum()


def by_jit(sums, step):
    for x in TOKENS:
        jax.jit(step)(x, sums)


def by_scan(sums, step):
    jax.lax.scan(lambda carry, x: (carry, step(x, sums)), None, TOKENS)


def of_uses(sums, step):
    del step  # one derivative of several products with one matrix
    jax.grad(lambda tokens: sum(loss_of(x, sums) for x in tokens))(TOKENS)


def of_a_scan(sums, step):
    del step

    def total(tokens):
        return jax.lax.scan(lambda carry, x: (carry + loss_of(x, sums), None), 0.0, tokens)[0]

    jax.grad(total)(TOKENS)


def of_weights(sums, step):
    del step
    jax.lax.scan(lambda carry, x: (carry, jax.value_and_grad(loss_of, argnums=2)(x, sums, RHS)[0]), None, TOKENS)


def through_jit_and_remat(sums, step):
    del step
    for x in TOKENS:
        jax.grad(jax.jit(jax.checkpoint(loss_of)))(x, sums)


@jax.jit
def gradient_of_rhs(rhs):
    return jax.grad(lambda rhs: sum(loss_of(x, None, rhs) for x in TOKENS))(rhs)


@pytest.mark.parametrize("jit", slow_except([False, True], [True]))
@pytest.mark.parametrize("use", [by_jit, by_scan, of_uses, of_a_scan, of_weights, through_jit_and_remat])
def test_every_use_is_added_once(use, jit):
    def run(total):
        sums = jax.new_ref(total)
        use(sums, jax.grad(loss_of))
        return jax.freeze(sums)

    assert_close((jax.jit(run) if jit else run)(TOTAL), TOTAL + gradient_of_rhs(RHS))


def test_without_a_derivative_nothing_is_added():
    sums = jax.new_ref(TOTAL)
    loss_of(LHS, sums)
    jax.jit(loss_of)(LHS, sums)
    jax.grad(lambda x: jax.lax.stop_gradient(loss_of(x, sums)) + x.sum())(LHS)
    jax.grad(lambda scale: scale * loss_of(LHS, sums))(1.0)  # the product does not depend on it
    np.testing.assert_array_equal(sums[...], TOTAL)


def test_a_mapped_sum():
    totals = jnp.stack([TOTAL, -TOTAL, TOTAL, TOTAL])

    @jax.jit
    def run(totals):
        sums = jax.new_ref(totals)
        jax.vmap(jax.grad(loss_of))(TOKENS, sums)
        return jax.freeze(sums)

    of_rhs = jax.jit(jax.vmap(lambda x: jax.grad(lambda rhs: loss_of(x, None, rhs))(RHS)))(TOKENS)
    assert_close(run(totals), totals + of_rhs)


def test_derivatives_that_would_lose_sums_are_refused():
    sums = jax.new_ref(TOTAL)
    of_squares = lambda f: lambda x: (f(x) ** 2).sum()  # noqa: E731
    with pytest.raises(Exception, match="differentiated value on a non-differentiated"):
        jax.grad(of_squares(lambda x: jax.grad(loss_of)(x, sums)))(LHS)
    with pytest.raises(Exception, match="differentiated value on a non-differentiated"):
        jax.grad(of_squares(lambda rhs: jax.grad(loss_of)(LHS, sums, rhs)))(RHS)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: loss_of(x, sums), [LHS], [LHS])
    with pytest.raises(Exception, match="vmapped value on an unbatched"):
        jax.vmap(lambda x: jax.grad(loss_of)(x, sums))(TOKENS)


@pytest.mark.parametrize("check_vma", slow_except([False, True], [True]))
def test_sums_of_each_device(check_vma):
    """Tokens are divided among devices, weights are not; each device has its own sums, which are added at the end."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec
    tokens = jnp.tile(TOKENS, (jax.device_count(), 1, 1))

    @partial(jax.shard_map, mesh=mesh, in_specs=(p("data"), p()), out_specs=p(), check_vma=check_vma)
    def run(tokens, rhs):
        zeros = jnp.zeros_like(rhs)
        sums = jax.new_ref(jax.lax.pcast(zeros, "data", to="varying"))
        for x in tokens:
            jax.grad(loss_of)(x, sums, rhs)
        return jax.lax.psum(jax.freeze(sums), "data")

    assert_close(jax.jit(run)(tokens, RHS), jax.grad(lambda rhs: sum(loss_of(x, None, rhs) for x in tokens))(RHS))


def test_a_replicated_sum_of_sharded_tokens_is_refused():
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec

    @partial(jax.shard_map, mesh=mesh, in_specs=(p("data"), p()), out_specs=p())
    def run(tokens, rhs):
        sums = jax.new_ref(jnp.zeros_like(rhs))
        jax.grad(loss_of)(tokens[0], sums, rhs)
        return jax.freeze(sums)

    with pytest.raises(Exception, match="data"):
        jax.jit(run)(jnp.tile(TOKENS, (jax.device_count(), 1, 1)), RHS)


def test_the_ordinary_gradient_of_rhs_costs_nothing_where_it_is_not_used():
    def run(total):
        sums = jax.new_ref(total)
        of_tokens = jax.lax.scan(lambda carry, x: (carry, jax.grad(loss_of)(x, sums)), None, TOKENS)
        return jax.freeze(sums), of_tokens

    text = jax.jit(run).lower(TOTAL).compile().as_text()
    assert text.count("custom-call(") == 3, text  # forward, and the gradients of both operands


@pytest.mark.slow
def test_a_scan_over_micro_batches():
    """The sum of a layer's gradients over a scan is that of one batch of all tokens."""
    d, f, experts, batches, tokens = 16, 8, 4, 3, 20
    gate_up, down = oracle.random((experts, d, 2 * f), "bfloat16", 1), oracle.random((experts, f, d), "bfloat16", 2)
    x, logits = (
        oracle.random((batches, tokens, d), "bfloat16", 3),
        oracle.random((batches, tokens, experts), "float32", 4),
    )

    def loss(x, logits, weights, gradients=None):
        y = vb.moe.expert_mlp(x, *weights, vb.moe.route(logits, 2), gradients=gradients)
        return jnp.sin(y.astype("float32")).sum()

    @jax.jit
    def scanned(x, logits):
        sums = tuple(jax.new_ref(jnp.zeros(w.shape, "float32")) for w in (gate_up, down))

        def step(carry, batch):
            return carry, jax.grad(loss)(*batch, (gate_up, down), sums)

        _, of_x = jax.lax.scan(step, None, (x, logits))
        return of_x, *map(jax.freeze, sums)

    def in_float32(x, weights):
        return loss(x.reshape(-1, d).astype("float32"), logits.reshape(-1, experts), weights)

    wide_weights = gate_up.astype("float32"), down.astype("float32")
    of_x, of_weights = jax.jit(jax.grad(in_float32, argnums=(0, 1)))(x, wide_weights)
    for one, other in zip(scanned(x, logits), (of_x, *of_weights), strict=True):
        assert_close(one, other, 3e-2)
    assert scanned(x, logits)[1].dtype == "float32"


def test_what_is_wrong_is_named():
    lhs, rhs, total = operands("bfloat16")
    dy = jnp.ones((M, N), "bfloat16")

    def refused(match, **options):
        with pytest.raises(ValueError, match=re.escape(match)):
            vb.ragged_dot(lhs, rhs, SIZES, **options)

    sums = jax.new_ref(total)
    rule = "must be a jax.Ref of float32(3, 16, 24), for sums of the gradient of rhs"
    refused(f"rhs_gradient is a Ref of float32(3, 16, 23): it {rule}", rhs_gradient=jax.new_ref(total[..., 1:]))
    refused(
        f"rhs_gradient is a Ref of bfloat16(3, 16, 24): it {rule}", rhs_gradient=jax.new_ref(total.astype("bfloat16"))
    )
    with pytest.raises(TypeError, match=re.escape(rule)):
        vb.ragged_dot(lhs, rhs, SIZES, rhs_gradient=total)
    integers = jnp.zeros(rhs.shape, "int32")
    with pytest.raises(ValueError, match="products that have a gradient, but rhs is int32"):
        vb.ragged_dot(lhs.astype("int32"), integers, SIZES, rhs_gradient=jax.new_ref(integers))
    routing, down = vb.moe.route(jnp.ones((M, 3)), 2), jnp.ones((3, 12, 4), "bfloat16")
    for wrong, message in [
        ((sums,), "gradients must be a pair of jax.Ref"),
        ((sums, sums), "gradients[1] is a Ref of float32(3, 16, 24): it must be a jax.Ref of float32(3, 12, 4)"),
        ((total, sums), "gradients[0] must be a jax.Ref of float32(3, 16, 24), for sums of the gradient of gate_up"),
    ]:
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            vb.moe.expert_mlp(lhs, rhs, down, routing, gradients=wrong)
    with pytest.raises(TypeError, match=re.escape("accumulator is a jax.Ref: pass its value, accumulator[...]")):
        contraction(lhs, dy, accumulator=sums)
    with pytest.raises(TypeError, match=re.escape("lhs is a jax.Ref")):
        jax.jit(lambda lhs: vb.ragged_dot(lhs, rhs, SIZES))(jax.new_ref(lhs))
    with pytest.raises(
        ValueError,
        match=re.escape("must have the result's dtype (preferred_element_type) and shape, float32(3, 16, 24)"),
    ):
        contraction(lhs, dy, accumulator=total.astype("bfloat16"))
    rows = jax.lax.RaggedDotDimensionNumbers((([1], [1]), ([], [])), [0], [0])
    with pytest.raises(ValueError, match="an accumulator is for ragged contractions"):
        vb.ragged_dot_general(lhs, rhs, SIZES, rows, accumulator=total)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "in_kernel"),
    [
        ("bfloat16", "float32", True),
        ("float16", "float32", True),
        ("bfloat16", "bfloat16", False),
        ("float32", "float32", False),
    ],
)
def test_the_pipelined_kernel_adds_to_float32(dtype, out_dtype, in_kernel):
    shapes = [((M, K), dtype), ((M, N), dtype), ((GROUPS, K, N), out_dtype)]

    def add(lhs, dy, total):
        return contraction(lhs, dy, accumulator=total, preferred_element_type=out_dtype)

    with vb.target("h100"):
        program = jax.export.export(jax.jit(add), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            *(jax.ShapeDtypeStruct(*shape) for shape in shapes)
        )
    text = program.mlir_module()
    assert backends.RAGGED_TARGET_NAME in text
    assert ("stablehlo.add" not in text) == ("output_operand_alias" in text) == in_kernel


@pytest.mark.gpu
def test_a_gpu_adds_in_place():
    """A donated accumulator is the result's memory, and an accumulator that is needed later keeps its values."""
    lhs, _, total = operands("bfloat16")
    dy = oracle.random((M, N), "bfloat16", 4)
    expected, start = total + contraction(lhs, dy), np.asarray(total)

    def add(total):
        return contraction(lhs, dy, accumulator=total)

    assert_close(jax.jit(add)(total), expected)
    np.testing.assert_array_equal(total, start)
    program = jax.jit(add, donate_argnums=0).lower(total).compile()
    assert program.memory_analysis().alias_size_in_bytes == total.nbytes
    if jax.devices()[0].compute_capability == "9.0":  # elsewhere the contraction is stored, and XLA adds it
        assert program.memory_analysis().temp_size_in_bytes < total.nbytes
    assert_close(program(total), expected)
