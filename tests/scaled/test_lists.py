"""`batched_matmul` and `batched_gemm` of `Scaled` factors, against float64 of the numbers that these stand for."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.factors import Flags, checked_sizes
from jax_vbgemm._src.matmul.scaled_choice import Product, choose
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.single_dots import dots_of
from jax_vbgemm._src.ragged import plan
from jax_vbgemm._src.ragged.cost import predicted_seconds
from jax_vbgemm._src.scaled.scaled import blocks_in

KINDS = [("float8_e4m3fn", "float8_e5m2"), ("int8", "int8"), ("int4", "int8")]
# Blocks of lhs (m, k) and of rhs (n, k).
BLOCKS = [
    ((-1, -1), (-1, -1)), ((1, -1), (1, -1)), ((3, -1), (2, -1)), ((1, 128), (128, 128)), ((1, 32), (1, 32)),
    ((1, -1), (128, 128)),
]  # fmt: skip
H100 = device_spec("h100")
# An H100 on which calls of ragged_dot cost no time, so that small products are such calls too.
GROUPED = dataclasses.replace(H100, ragged_rules=dataclasses.replace(H100.ragged_rules, product_seconds=0.0))
TARGETS = [pytest.param(GROUPED, id="grouped"), "cpu"]
SIZES = [(0, 3, 4), (3, 1, 0), (5, 0, 3), (1, 1, 1), (127, 7, 129), (13, 128, 127), (2, 129, 256)]  # m, n, k


def random(shape, seed=0):
    return oracle.random(shape, "float32", seed)


def scaled(shape, kind, block, seed=0):
    """Random values and scales, without a program for each shape; -1 stands for a whole dimension."""
    rng = np.random.default_rng([seed, *shape])
    integer = kind.startswith("int")
    values = rng.integers(-7, 8, shape) if kind == "int4" else rng.integers(-127, 128, shape) if integer else None
    values = oracle.random(shape, kind, seed) if values is None else jax.device_put(values.astype(jnp.dtype(kind)))
    block = tuple(max(size, 1) if each == -1 else each for size, each in zip(shape[-len(block) :], block, strict=True))
    sizes = (1,) * (len(shape) - len(block)) + block
    scales = rng.uniform(0.1, 2, [-(-size // each) for size, each in zip(shape, sizes, strict=True)])
    return vb.Scaled(values, jax.device_put(scales.astype(np.float32)), block)


def wide(x):
    if not isinstance(x, vb.Scaled):
        return oracle.wide(x)
    scales = oracle.wide(x.scales)
    for axis, (size, each) in enumerate(zip(x.shape, x.sizes, strict=True)):
        scales = np.repeat(scales, each, axis=axis).take(range(size), axis=axis)
    return oracle.wide(x.values) * scales


def assert_products(found, As, Bs, dtype, *, transpose_a=False, transpose_b=False):
    """Each result is the product of the numbers, rounded once to dtype."""
    for c, a, b in zip(found, As, Bs, strict=True):
        truth, scale = oracle.matmul(wide(a), wide(b), transpose_a, transpose_b)
        assert (c.shape, c.dtype) == (truth.shape, dtype)
        rounding = 4 * oracle.ROUNDING["float32"] + oracle.unit_roundoff(np.dtype(dtype).name)
        assert (np.abs(oracle.wide(c) - truth) <= rounding * scale).all()


def operands(lhs, rhs):
    """Factors of all sizes, (m, k) and (n, k), of which each kind of blocks has some."""
    As, Bs = [], []
    for seed, (m, n, k) in enumerate(SIZES):
        for a, b in BLOCKS[seed % 2 :: 2]:
            As.append(scaled((m, k), lhs, a, seed))
            Bs.append(scaled((n, k), rhs, b, seed + 50))
    return As, Bs


@pytest.mark.parametrize(("lhs", "rhs"), KINDS)
def test_products_of_all_shapes_and_blocks(lhs, rhs, request):
    if lhs == "int4" and jax.default_backend() == "gpu":
        reason = "XLA widens and transposes int4 in one kernel, wrongly in some processes (docs/limits.md)"
        request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=False))
    As, Bs = operands(lhs, rhs)

    @jax.jit
    def both(As, Bs):
        once = vb.batched_matmul(As, Bs, transpose_b=True)
        As, Bs = [a.mT for a in As], [b.mT for b in Bs]
        return once, vb.batched_matmul(As, Bs, transpose_a=True, preferred_element_type=np.float32)

    once, of_transposes = both(As, Bs)
    assert_products(once, As, Bs, jnp.bfloat16, transpose_b=True)
    assert_products(of_transposes, As, Bs, np.float32, transpose_b=True)


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "int4"])
def test_weights_alone_and_factors_without_scales(kind):
    """One Scaled is rounded to the dtype of the other factor; products without any are what they are."""
    x, y = random((3, 5, 64), 1).astype(jnp.bfloat16), random((3, 7), 2)
    w = scaled((9, 64), kind, (1, -1), 3)
    v = scaled((4, 3), kind, (2, 2), 4)
    wide_w, wide_v = w.dequantized(jnp.bfloat16), v.dequantized()
    found = vb.batched_matmul({"w": x, "v": v, "y": y}, {"w": w.mT, "v": y, "y": y.mT})
    expected = vb.batched_matmul({"w": x, "v": wide_v, "y": y}, {"w": wide_w.mT, "v": y, "y": y.mT})
    oracle.assert_same(found, expected)
    (shared, again) = vb.batched_matmul(x, [w, w], transpose_b=True, preferred_element_type=np.float32)
    oracle.assert_same(shared, jnp.matmul(x, wide_w.mT, preferred_element_type=np.float32), rtol=2**-7)
    oracle.assert_same(shared, again)


def stacked(kind="int8", blocks=((1, -1), (1, -1)), lhs=(3, 20, 256), rhs=(3, 32, 256)):
    return scaled(lhs, kind, blocks[0], 1), scaled(rhs, kind, blocks[1], 2)


def primitives_of(f, *args):
    return [eqn.primitive.name for eqn in jax.make_jaxpr(f)(*args).eqns]


@pytest.mark.parametrize("blocks", [*BLOCKS[:4], ((-1, -1, -1), (-1, 128, 128))])
@pytest.mark.parametrize(("lhs", "rhs"), [((3, 20, 256), (3, 32, 256)), ((3, 20, 256), (32, 256)), ((20, 256),) * 2])
def test_stacks_of_matrices_are_groups(blocks, lhs, rhs):
    rhs = (*rhs[:-2], 32, 256)
    blocks = [block[-min(len(block), len(shape)) :] for block, shape in zip(blocks, (lhs, rhs), strict=True)]
    a, b = stacked("float8_e4m3fn", blocks, lhs, rhs)

    def product(a, b):
        return vb.batched_matmul(a, b, transpose_b=True)

    with vb.target(GROUPED):
        assert "ragged_dot" in primitives_of(product, a, b)
        assert_products([jax.jit(product)(a, b)], [a], [b], jnp.bfloat16, transpose_b=True)
    with vb.target("cpu"):  # which has no kernel of 8 bits for groups
        assert "ragged_dot" not in primitives_of(product, a, b)


@pytest.mark.parametrize("target", TARGETS)
def test_an_epilogue_follows_the_scales(target):
    Cs, bias = [random((3, 20, 32), 5).astype(jnp.bfloat16)], [random((32,), 6).astype(jnp.bfloat16)]
    for a, b in (stacked(), stacked(blocks=((1, 128), (128, 128)))):
        with vb.target(target):
            (found,) = vb.batched_gemm(
                [a], [b], Cs, alpha=jnp.float32(0.5), beta=2, bias=bias, activation="relu", transpose_b=True
            )
        product, scale = oracle.matmul(wide(a), wide(b), transpose_b=True)
        truth = np.maximum(0.5 * product + 2 * wide(Cs[0]) + wide(bias[0]), 0)
        assert found.dtype == jnp.bfloat16
        assert (np.abs(wide(found) - truth) <= 2.0**-8 * (np.abs(truth) + 1e-3 * scale)).all()
    weird = vb.batched_gemm([a], [b], Cs, beta=1, activation=jnp.square, transpose_b=True)
    np.testing.assert_allclose(wide(weird[0]), (product + wide(Cs[0])) ** 2, rtol=0.03, atol=0.1)


def test_results_go_into_views():
    a, b = stacked(lhs=(20, 256), rhs=(32, 256))
    buffer = jnp.zeros((2, 20, 32), jnp.bfloat16)
    views = [vb.View(buffer, (20, 32), offset=i * 640) for i in range(2)]
    for target in (GROUPED, "cpu"):
        with vb.target(target):
            found = vb.batched_matmul([a, a], [b, b], transpose_b=True, into=views)
            first = vb.batched_matmul([a], [b], transpose_b=True, into=views[:1])
        expected = vb.batched_matmul([a], [b], transpose_b=True)[0]
        for view in (*found, *first):
            oracle.assert_same(view.dense(), expected, rtol=2**-7)
        assert not np.any(first[0].buffer[1])


def test_values_are_read_through_views():
    a, b = stacked(lhs=(20, 256), rhs=(32, 256))
    both = jnp.concatenate([a.values, a.values], axis=1)
    window = vb.Scaled(vb.View(both, (20, 256), (512, 1), 256), a.scales, a.block)
    wanted = vb.batched_matmul([a], [b], transpose_b=True)
    for target in (GROUPED, "cpu"):
        with vb.target(target):
            oracle.assert_same(vb.batched_matmul([window], [b], transpose_b=True), wanted, rtol=2**-7)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_gradients(kind, target):
    """In scales, and in a factor without scales, beside those of widened factors."""
    a, b = stacked(kind, lhs=(3, 5, 32), rhs=(3, 16, 32))
    c, d = stacked(kind, ((1, 16), (16, 16)), (4, 32), (16, 32))
    x, factor = random((6, 16), 7), [random(shape, 8) for shape in ((3, 5, 16), (4, 16), (6, 32))]

    def loss(a_scales, b_scales, c_scales, x, dense):
        As = [vb.Scaled(a.values, a_scales, a.block), vb.Scaled(c.values, c_scales, c.block), x]
        Bs = [vb.Scaled(b.values, b_scales, b.block), d, d]
        if dense:
            As, Bs = ([y.dequantized() if isinstance(y, vb.Scaled) else y for y in ys] for ys in (As, Bs))
        transposes = [True, True, False]
        Cs = vb.batched_matmul(As, Bs, transpose_b=transposes, preferred_element_type=np.float32)
        return sum(jnp.vdot(f, C**2) for f, C in zip(factor, Cs, strict=True))

    with vb.target(target):
        found, expected = (
            jax.jit(jax.grad(loss, argnums=range(4)), static_argnums=4)(a.scales, b.scales, c.scales, x, dense)
            for dense in (False, True)
        )
    oracle.assert_same(found, expected, rtol=1e-4)


def test_vmap_and_scan():
    a, b = stacked(lhs=(4, 5, 32), rhs=(4, 16, 32))

    def product(a, b):
        return vb.batched_matmul([a, a], [b, b], transpose_b=True)

    at_once = product(a, b)
    one_by_one = jax.lax.scan(lambda _, ab: (None, product(*ab)), None, (a, b))[1]
    for found in (jax.vmap(product)(a, b), one_by_one):
        oracle.assert_same(found, at_once)


def choice(
    blocks=((1, -1), (1, -1)), kinds=("int8", "int8"), lhs=(3, 20, 256), n=32, count=1, target=GROUPED,
    implementation=None, **flags
):  # fmt: skip
    """What multiplies stacks of lhs (m, k) and of rhs (n, k), as text."""
    shapes = lhs, (3, n, lhs[-1])
    a, b = (
        jnp.zeros(shape, kind) if kind == "bfloat16" else scaled(shape, kind, block)
        for shape, kind, block in zip(shapes, kinds, blocks, strict=True)
    )
    flags = Flags(False, True, False)._replace(**flags)
    if not flags.transpose_b:
        b = b.mT
    with vb.target(target):
        product = Product(a, b, flags, checked_sizes(a, b, flags), None)
        return ": ".join(choose([product] * count, None, implementation)[-1])


def test_the_choice_says_why():
    along_k = (1, 128), (128, 128)
    assert choice() == "narrow: scales hold for all of K, and a kernel of its own is faster by prediction"
    assert choice(target="h100") == "sums: scales hold for all of K, and the call is faster by prediction"
    assert choice(along_k) == "narrow: scales change along K, and a kernel of its own is faster by prediction"
    assert choice(along_k, count=8, target="h100").startswith("wide: scales change along K, and the call is faster")
    assert choice(implementation="xla") == "sums: scales hold for all of K, and the caller wants XLA's products"
    assert choice(along_k, ("float8_e5m2", "float8_e4m3fn")).startswith("narrow: scales change along K")
    assert choice(kinds=("bfloat16", "int4")) == "narrow: one factor has no scales"
    assert "a100 has no pipelined kernel" in choice(target="a100")
    assert choice(along_k, target="a100").startswith("wide: scales change along K, and a100 has no pipelined kernel")
    assert "no multiples of 16" in choice(n=33)
    assert "with transpose_b" in choice(transpose_b=False)
    assert "has no rows of its own for each matrix" in choice(lhs=(1, 20, 256))
    assert "these dtypes and blocks" in choice(((1, 32), (1, 32)))
    assert choice(kinds=("int4", "int4")).startswith("wide: no kernel multiplies int4 by int4")
    assert choice(lhs=(3, 0, 256)) == "wide: a size is 0 or symbolic"
    assert choice(lhs=(3, 1, 2**17), n=1).startswith("wide: int32 does not hold all sums of 131072 products of int8")
    assert choice(lhs=(3, 1, 2**17 - 1), n=1).startswith("sums")
    assert "so many rows" in choice(kinds=("bfloat16", "int8"), lhs=(3, 2000, 256))


def test_without_measured_rates_only_single_products_and_scales_along_k_are_groups():
    rules = dataclasses.replace(H100.ragged_rules, rates=())
    target = dataclasses.replace(H100, ragged_rules=rules)
    assert choice(target=target) == "narrow: scales hold for all of K"
    assert choice(target=target, count=2) == "sums: scales hold for all of K, and all products are one call"
    assert choice(((1, 128), (128, 128)), target=target, count=2) == "narrow: scales change along K"


def square(n, kind, blocks):
    """A product of n x n matrices as a program sees it while it is traced."""
    sizes = [tuple(n if each == -1 else min(each, n) for each in block) for block in blocks]
    array = jax.ShapeDtypeStruct((n, n), kind)
    a, b = (vb.Scaled(array, jax.ShapeDtypeStruct(blocks_in((n, n), each), np.float32), each) for each in sizes)
    flags = Flags(False, True, False)
    return Product(a, b, flags, checked_sizes(a, b, flags), None)


# Microseconds of 8 products of n x n matrices in a list, on an H200: those of a call, and each by itself.
MEASURED = {
    ("int8", (1, -1), (1, -1)): {64: (5, 31), 256: (8, 50), 512: (19, 61), 1024: (54, 83), 2048: (283, 131),
                                 4096: (1834, 734)},
    ("float8_e4m3fn", (1, -1), (1, -1)): {64: (4, 29), 256: (7, 50), 512: (24, 62), 1024: (68, 86), 2048: (443, 156),
                                          4096: (2954, 926)},
    ("float8_e4m3fn", (1, 128), (128, 128)): {256: (27, 45), 1024: (130, 88), 2048: (644, 146), 4096: (4001, 935)},
}  # fmt: skip


# The same of 16 rows of bfloat16 and (n, n) weights of int8, and the number of products.
MEASURED_WEIGHTS = {(8, 256): (19, 72), (8, 1024): (32, 118), (32, 1024): (119, 455), (8, 4096): (255, 316)}


def test_lists_of_weights_alone_are_one_call():
    device = device_spec("h200")
    flags = Flags(False, True, False)
    with vb.target(device):
        for (count, n), (in_call, alone) in MEASURED_WEIGHTS.items():
            assert in_call < alone
            x = jax.ShapeDtypeStruct((16, n), jnp.bfloat16)
            weights = [square(n, "int8", ((1, -1), (1, -1))).rhs for _ in range(count)]
            products = [Product(x, w, flags, checked_sizes(x, w, flags), None) for w in weights]
            assert {found.how for found in choose(products, None, None)} == {"wide"}
            assert choose(products[:1], None, None)[0].how == "narrow"
            one = plan.Product(False, True, False, 16, n, n, 1, 1, 16, "int8")
            assert 0.7 < count * 1e6 * predicted_seconds("bfloat16", device, one) / alone < 1.4
        # Many groups fill the device: they are faster by themselves than widened in memory.
        x, w = jax.ShapeDtypeStruct((128, 2, 2048), jnp.bfloat16), jax.ShapeDtypeStruct((128, 1536, 2048), np.int8)
        w = vb.Scaled(w, jax.ShapeDtypeStruct((128, 1536, 1), np.float32), (1, 2048))
        products = [Product(x, w, flags, checked_sizes(x, w, flags), None) for _ in range(2)]
        assert {found.how for found in choose(products, None, None)} == {"narrow"}


def test_two_int4_weights_are_one_byte():
    """Where reading the weights bounds the time: on a device whose memory is slow."""
    device = device_spec("h200")
    device = dataclasses.replace(device, dots=dataclasses.replace(dots_of(device), bandwidth=1e9))
    one = plan.Product(False, True, False, 1, 4096, 4096, 1, 1, 1, "int8")
    of_int8, of_int4 = (predicted_seconds("bfloat16", device, one._replace(weights=name)) for name in ("int8", "int4"))
    assert of_int4 == pytest.approx(of_int8 / 2, rel=0.01)


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_the_faster_way_is_chosen_for_each_size(case):
    """Also where products of all sizes are one call: each kind of scales has one batch."""
    kind, *blocks = case
    device = device_spec("h200")
    with vb.target(device):
        products = {n: [square(n, kind, blocks) for _ in range(8)] for n in MEASURED[case]}
        together = choose(list(itertools.chain(*products.values())), None, None)[::8]
        for (n, (in_call, alone)), chosen in zip(MEASURED[case].items(), together, strict=True):
            expected = "narrow" if alone < in_call else "wide" if blocks[0][1] == 128 else "sums"
            assert {found.how for found in choose(products[n], None, None)} == {expected}
            assert chosen.how == expected
            one = plan.Product(False, True, False, n, n, n, 1, 1, n)
            assert 0.75 < 8e6 * predicted_seconds(kind, device, one) / alone < 1.5


def test_sums_of_int8_at_the_bound_of_int32():
    a, b = (
        vb.Scaled(jnp.full((1, k), -128, jnp.int8), jnp.ones((1, 1), jnp.float32), (1, k)) for k in (2**17 - 1, 2**17)
    )
    found = vb.batched_matmul([a, b], [a, b], transpose_b=True, preferred_element_type=np.float32)
    np.testing.assert_array_equal(np.ravel(found), np.float32([16384 * (2**17 - 1), 2**31]))


def test_sums_without_scales_are_not_taken_for_symmetric():
    """Each kernel may compute half of a symmetric result: of products of the numbers, not of the values."""
    for blocks, symmetric in (((1, -1), (1, -1)), False), (((1, 32), (1, 32)), True):
        a, _ = stacked(blocks=blocks, lhs=(40, 64))
        sign = jnp.where(jnp.arange(40) % 2 == 0, 1, -1)[:, None]
        b = vb.Scaled(a.values * sign.astype(np.int8), a.scales * sign.astype(np.float32), a.block)

        def product(a, b):
            return vb.batched_matmul([a], [b], transpose_b=True, symmetric=True)

        assert_products(product(a, b), [a], [b], jnp.bfloat16, transpose_b=True)
        (call,) = (eqn for eqn in jax.make_jaxpr(product)(a, b).eqns if eqn.primitive.name == "batched_matmul")
        assert [term.symmetric for term in call.params["batched"].terms] == [symmetric]


def test_dot_algorithms_of_float8():
    a, b = stacked("float8_e4m3fn")
    for name in ("ANY_F8_ANY_F8_F32", "ANY_F8_ANY_F8_F32_FAST_ACCUM"):
        found = vb.batched_matmul([a], [b], transpose_b=True, precision=name)
        oracle.assert_same(found, vb.batched_matmul([a], [b], transpose_b=True), rtol=2**-7)
        with pytest.raises(
            ValueError, match=rf"{name} is for two Scaled 8-bit floats, but As\[1\] is float64 and Bs\[1\] Scaled"
        ):
            vb.batched_matmul([a, jnp.ones((2, 256))], [b, b], transpose_b=[True, True], precision=name)


def test_errors():
    a, b = stacked(lhs=(4, 6), rhs=(5, 6))

    def raises(error, match, As, Bs, f=vb.batched_matmul, **options):
        with pytest.raises(error, match=match):
            f(As, Bs, **options)

    raises(ValueError, r"batched_matmul: As\[1\] is \(4, 6\) but Bs\[1\] is \(5, 6\): inner dimensions 6 and 5", [a, a],
           [b.mT, b])  # fmt: skip
    raises(ValueError, r"Bs\['w'\] is \(5, 6\), Bs\['w'\] transposed: inner", {"w": a.mT}, {"w": b}, transpose_b=True)
    raises(ValueError, r"batched_gemm: As\[0\] is int32 beside a Scaled: it must be floating-point of 16 bits or more",
           [jnp.ones((4, 6), np.int32)], [b.mT], vb.batched_gemm)  # fmt: skip
    raises(ValueError, r"Bs\[0\] is float8_e5m2 beside a Scaled", [a], [jnp.ones((6, 5), jnp.float8_e5m2)])
    raises(ValueError, "both need rank 2 or more", [a], [scaled((6,), "int8", (1,))])
    raises(ValueError, "As has 1 entry but Bs has 2 entries", [a], [b, b])
    raises(ValueError, "preferred_element_type is int32: a product of two Scaled factors is floating", [a], [b.mT],
           preferred_element_type=np.int32)  # fmt: skip
    raises(ValueError, "preferred_element_type is int32", a, b, lambda a, b, **o: vb.ragged_dot(
        a, vb.Scaled(b.values[None], b.scales[None], b.block), jnp.array([4]), transpose_rhs=True, **o
    ), preferred_element_type=np.int32)  # fmt: skip
    raises(ValueError, r"Cs\[0\] is \(4, 4\) but result\[0\] is \(4, 5\)", [a], [b], vb.batched_gemm,
           Cs=[jnp.ones((4, 4))], beta=1, transpose_b=True)  # fmt: skip
    raises(ValueError, r"into\[0\] is float64\(4, 5\) but result\[0\] is bfloat16\(4, 5\)", [a], [b], transpose_b=True,
           into=[vb.View(jnp.ones((4, 5)), (4, 5))])  # fmt: skip
    raises(ValueError, "implementation must be None", [a], [b], transpose_b=True, implementation="fast")
    with pytest.raises(TypeError, match="batched_gram: Xs has a Scaled: batched_matmul and batched_gemm take Scaled"):
        vb.batched_gram([a])
    raises(TypeError, "batched_matmul and batched_gemm take Scaled", [a], [b], vb.batched_matmul_sum, out=[0])
    wrong = jax.tree.map(lambda x: x[:3], a)
    wrong = jax.tree.unflatten(jax.tree.structure(a), [wrong.values, a.scales])
    raises(ValueError, r"batched_matmul: As\[0\]: Scaled: scales is float32\(4, 1\) but values is \(3, 6\)", [wrong],
           [b.mT])  # fmt: skip
    wrong = jax.tree.unflatten(jax.tree.structure(a), [a.values, "scales"])
    raises(TypeError, r"^batched_matmul: As\[0\].scales must be", [wrong], [b.mT])
    wrong = jax.tree.unflatten(jax.tree.structure(a), [a.values[:3], a.scales])
    sizes = jnp.array([3])
    raises(ValueError, r"ragged_dot: lhs: Scaled: scales is", wrong, jnp.ones((1, 6, 5)),
           lambda a, b: vb.ragged_dot(a, b, sizes))  # fmt: skip


@pytest.mark.parametrize("blocks", [((1, -1), (1, -1)), ((1, 128), (128, 128))])
def test_a_source_that_does_not_count_may_hold_nan(blocks):
    a, b = stacked(blocks=blocks)
    Cs = [jnp.full((3, 20, 32), jnp.nan, jnp.bfloat16)]
    with jax.debug_nans(True):
        (found,) = vb.batched_gemm([a], [b], Cs, beta=jnp.float32(0), transpose_b=True)
    oracle.assert_same(found, vb.batched_matmul([a], [b], transpose_b=True)[0])


def test_not_a_number_reaches_its_row_alone():
    a, b = stacked("float8_e4m3fn", lhs=(20, 256), rhs=(32, 256))
    a = vb.Scaled(a.values.at[3, 5].set(jnp.nan), a.scales.at[7, 0].set(jnp.nan), a.block)
    for target in (GROUPED, "cpu"):
        with vb.target(target):
            found = vb.batched_matmul([a], [b], transpose_b=True)[0]
        np.testing.assert_array_equal(np.isnan(oracle.wide(found)).all(axis=1), np.isin(np.arange(20), (3, 7)))
        assert np.isnan(oracle.wide(found)).sum() == 64


@pytest.mark.multidevice(4)
def test_shard_map_and_explicit_axes():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    a, b = stacked(lhs=(4, 20, 256), rhs=(4, 32, 256))

    def product(a, b):
        return vb.batched_matmul([a, a], [b, b], transpose_b=True)

    P = jax.sharding.PartitionSpec
    divided = jax.jit(jax.shard_map(product, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x")))
    oracle.assert_same(divided(a, b), product(a, b))
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        scales = jax.device_put(a.scales, jax.NamedSharding(mesh, P("x")))
        values = jax.device_put(a.values, jax.NamedSharding(mesh, P("x")))
        for x, what in ((vb.Scaled(a.values, scales, a.block), r"As\[0\].scales"),
                        (vb.Scaled(values, a.scales, a.block), r"As\[0\]")):  # fmt: skip
            with pytest.raises(ValueError, match=what + " is sharded over the explicit mesh axes 'x'"):
                product(x, b)
