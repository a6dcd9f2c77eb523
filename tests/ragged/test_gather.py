"""ragged_dot that reads rows of lhs by index."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.experimental import checkify
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged import select_rows

ROWS, M, K, N, GROUPS = 7, 30, 16, 24, 3
SIZES = jnp.array([11, 0, 15])
MORE_SIZES = jnp.array([4, 11, 0, 9, 2])  # of which the groups 1 to 3 have weights
INDEX = jnp.asarray(np.random.default_rng(0).integers(0, ROWS, M))
LHS, RHS = oracle.random((ROWS, K), "float32", 1), oracle.random((GROUPS, K, N), "float32", 2)
# Every row of lhs is taken by as many rows of the product.
EVEN = np.random.default_rng(3).permutation(4 * ROWS) % ROWS
EVEN, SLOTS = jax.device_put((EVEN, np.stack([np.flatnonzero(row == EVEN) for row in range(ROWS)])))

HIGHEST = {"precision": "highest"}
OPTIONS = {
    "plain": {},
    "an epilogue": {"activation": "silu", "bias": jnp.ones((GROUPS, N), "float32")},
    "gated": {"gated": True, "activation": "gelu"},
    "scaled": {"row_scale": jnp.linspace(-1, 1, M, dtype="float32")},
    "a window": {"group_offset": 1},
}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), slow_except([("float32", 1e-4), ("bfloat16", 5e-2)], [("bfloat16", 5e-2)])
)
@pytest.mark.parametrize("case", slow_except(OPTIONS, ["gated", "a window"]))
def test_the_product_and_its_derivatives_are_those_of_copied_rows(case, dtype, tolerance):
    """In bfloat16 a GPU's kernel may read the rows."""
    options = HIGHEST | OPTIONS[case]
    if "bias" in options:
        options["bias"] = options["bias"].astype(dtype)
    sizes = MORE_SIZES if case == "a window" else SIZES
    lhs, rhs = LHS.astype(dtype), RHS.astype(dtype)

    def by_index(lhs, rhs):
        return vb.ragged_dot(lhs, rhs, sizes, gather=INDEX, **options)

    def copied(lhs, rhs):
        return vb.ragged_dot(lhs[INDEX], rhs, sizes, **options)

    def grad(f):
        return jax.grad(lambda *x: jnp.sin(f(*x)).astype("float32").sum(), argnums=(0, 1))

    def second(f):
        return jax.grad(lambda *x: sum(jnp.sin(g).astype("float32").sum() for g in grad(f)(*x)), argnums=(0, 1))

    for of in [lambda f: f, grad, *([second] if dtype == "float32" else [])]:
        got, expected = (jax.tree.leaves(jax.jit(of(f))(lhs, rhs)) for f in (by_index, copied))
        for one, other in zip(got, expected, strict=True):
            one, other = oracle.wide(one), oracle.wide(other)
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, abs(other).max()))


@pytest.mark.parametrize("mapped", slow_except(["lhs", "gather", "both", "sizes"], ["both", "sizes"]))
def test_vmap(mapped):
    lhs, rhs = LHS.astype("bfloat16"), RHS.astype("bfloat16")  # on some GPUs the kernel reads rows by index
    two = {
        "lhs": jnp.stack([lhs, 2 * lhs]),
        "gather": jnp.stack([INDEX, INDEX[::-1]]),
        "sizes": jnp.stack([SIZES, SIZES[::-1]]),
    }
    moved = {"lhs", "gather"} if mapped == "both" else {mapped}
    values = {"lhs": lhs, "gather": INDEX, "sizes": SIZES}
    given = {name: two[name] if name in moved else value for name, value in values.items()}

    def product(given):
        return vb.ragged_dot(given["lhs"], rhs, given["sizes"], gather=given["gather"], **HIGHEST)

    axes = {name: 0 if name in moved else None for name in given}
    got, alone = jax.jit(jax.vmap(product, in_axes=(axes,)))(given), jax.jit(product)
    for i in range(2):
        one = {name: value[i] if name in moved else value for name, value in given.items()}
        np.testing.assert_allclose(oracle.wide(got[i]), oracle.wide(alone(one)), rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_the_transpose_of_a_gathered_product():
    transposed = jax.linear_transpose(lambda lhs: vb.ragged_dot(lhs, RHS, SIZES, gather=INDEX, **HIGHEST), LHS)
    ct = oracle.random((M, N), "float32", 5)
    (got,) = transposed(ct)
    (expected,) = jax.vjp(lambda lhs: vb.ragged_dot(lhs[INDEX], RHS, SIZES, **HIGHEST), LHS)[1](ct)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_pair_has_a_gradient_without_a_scatter():
    sizes = jnp.array([10, 8, 10])

    def loss(gather):
        return lambda lhs: jnp.sin(vb.ragged_dot(lhs, RHS, sizes, gather=gather, **HIGHEST)).sum()

    of_pair, of_index = (jax.jit(jax.grad(loss(gather))).lower(LHS) for gather in ((EVEN, SLOTS), EVEN))
    np.testing.assert_allclose(of_pair.compile()(LHS), of_index.compile()(LHS), rtol=1e-4, atol=1e-4)
    assert "scatter" not in of_pair.as_text()
    assert "scatter" in of_index.as_text()


@pytest.mark.parametrize(
    ("k", "n", "dtype", "in_kernel"),
    [
        (64, 2048, "bfloat16", True),
        (64, 2056, "bfloat16", False),  # slower than a copy
        (4096, 512, "bfloat16", False),  # thread blocks in pairs
        (64, 512, "float32", False),
    ],
)
def test_the_pipelined_kernel_reads_rows_by_index(k, n, dtype, in_kernel):
    shapes = [((128, k), dtype), ((2, k, n), dtype), ((2,), "int32"), ((1024,), "int32")]

    def product(lhs, rhs, sizes, gather):
        return vb.ragged_dot(lhs, rhs, sizes, gather=gather)

    with vb.target("h100"):
        program = jax.export.export(jax.jit(product), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            *(jax.ShapeDtypeStruct(*shape) for shape in shapes)
        )
    text = program.mlir_module()
    assert backends.RAGGED_TARGET_NAME in text
    assert (f"1024x{k}x" not in text) == in_kernel


BAD = {
    "three arrays": ((INDEX, SLOTS, SLOTS), ValueError, "gather has 3 arrays"),
    "a list of arrays": ([EVEN, SLOTS], TypeError, "must be a tuple"),
    "slots of too few terms": ((EVEN, SLOTS[:, 1:]), ValueError, r"slots is \(7, 3\) but gather is \(28,\)"),
    "slots of another lhs": ((EVEN, SLOTS[1:]), ValueError, r"slots is \(6, 4\)"),
    "slots that are no integers": ((EVEN, SLOTS.astype("float32")), TypeError, "slots is float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_selections(case):
    gather, error, message = BAD[case]
    with pytest.raises(error, match=message):
        vb.ragged_dot(LHS, RHS, SIZES, gather=gather)


def test_checkify_reports_slots_that_are_no_inverse():
    def product(slots):
        return vb.ragged_dot(LHS, RHS, jnp.array([10, 8, 10]), gather=(EVEN, slots))

    checked = checkify.checkify(jax.jit(product), errors=checkify.user_checks)
    assert checked(SLOTS)[0].get() is None
    for wrong in (SLOTS[::-1], SLOTS.at[0, 1].set(SLOTS[0, 0])):
        assert "slots is not the inverse of gather" in checked(wrong)[0].get()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("columns", [16, 7])
def test_rows_that_move_as_words_are_the_same(dtype, columns):
    """Programs for CUDA have the words, which this runs on any platform."""
    x, rows = oracle.random((5, columns), "float32").astype(dtype), jnp.array([3, 9, -1, 0], jnp.int32)
    for mode in ("clip", "fill"):
        words, plain = select_rows._moved_in_words(x, rows, mode), select_rows._moved(x, rows, mode)
        assert words.dtype == plain.dtype
        np.testing.assert_array_equal(*(np.asarray(y).view(np.uint8) for y in (words, plain)))


def kernel_calls(function, shapes, platform="cuda"):
    """How many copies are the kernel's, in a program that is lowered on any machine; shapes: of index, back, x."""
    operands = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    program = jax.export.export(jax.jit(function), platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        *operands
    )
    return program.mlir_module().count("custom_call @vbgemm_rows_by_index_v1")


def many_copies(columns=1024, terms=1, dtype="bfloat16", times=8, rows=4096):
    return ((rows * times, terms), "int32"), ((rows, times), "int32"), ((rows, columns), dtype)


def copied(index, back, x):
    return select_rows.select_rows(x, index, back)


@pytest.mark.parametrize("platform", backends.GPU_PLATFORMS)
def test_many_rows_are_copied_by_a_kernel(platform):
    assert kernel_calls(copied, many_copies(), platform) == 1
    batch = [((2, *shape), dtype) for shape, dtype in many_copies()]
    assert kernel_calls(jax.vmap(copied), batch, platform) == 1
    # The transpose is a sum, which XLA computes.
    gradient = jax.grad(lambda x, index, back: copied(index, back, x).astype("float32").sum())
    assert kernel_calls(lambda index, back, x: gradient(x, index, back), many_copies(), platform) == 0


def test_other_rows_are_copied_by_xla():
    fewer = many_copies(rows=select_rows.LEAST_BYTES // (2 * 1024 * 8) - 1)
    once = many_copies(times=1, rows=32768)
    for shapes in (fewer, once, many_copies(columns=1023), many_copies(terms=2), many_copies(dtype="complex64")):
        assert kernel_calls(copied, shapes) == 0
    assert kernel_calls(copied, many_copies(), "cpu") == 0


@pytest.mark.multidevice(2)
def test_copies_on_several_devices():
    """Under plain jit XLA copies rows on the shards; inside shard_map each device calls the kernel."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    sharded = jax.jit(copied, in_shardings=jax.sharding.NamedSharding(mesh, spec))
    assert kernel_calls(sharded, many_copies()) == 0
    split = jax.shard_map(copied, mesh=mesh, in_specs=spec, out_specs=spec)
    assert kernel_calls(split, many_copies(rows=8192)) == 1
