"""`batched_matmul_sum`: values, one rounding, programs, derivatives, vmap, segments, errors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src import planner

SIZE = st.sampled_from([1, 2, 5, 17, 33, 70])
DEPTHS = st.lists(
    st.tuples(st.sampled_from([0, 1, 3, 16, 40, 333]), st.booleans(), st.booleans()), min_size=1, max_size=4
)
SUMS = st.lists(st.tuples(SIZE, SIZE, DEPTHS, st.sampled_from([(), (3,)])), min_size=1, max_size=3)


def factors(sums, dtype):
    """As, Bs, their transposes and `out`, the terms of different results in turn."""
    terms = [(i, m, n, batch, *deep) for i, (m, n, depths, batch) in enumerate(sums) for deep in depths]
    order = sorted(range(len(terms)), key=lambda t: (t % 3, t))
    As, Bs, ta, tb, out = [], [], [], [], []
    for t in order:
        i, m, n, batch, k, a, b = terms[t]
        As.append(oracle.random((*batch, *((k, m) if a else (m, k))), dtype, t))
        Bs.append(oracle.random(((n, k) if b else (k, n)), dtype, 100 + t))
        ta, tb, out = [*ta, a], [*tb, b], [*out, i]
    return As, Bs, ta, tb, out


def truth(As, Bs, ta, tb, out):
    """The sums in float64 and the scale of their rounding errors."""
    sums = {}
    for a, b, left, right, result in zip(As, Bs, ta, tb, out, strict=True):
        value, scale = oracle.matmul(a, b, left, right)
        total = sums.get(result, (0, 0))
        sums[result] = total[0] + value, total[1] + scale
    return [sums[result] for result in range(len(sums))]


def check(results, expected):
    for result, (value, scale) in zip(results, expected, strict=True):
        assert result.shape == value.shape
        allowed = oracle.ROUNDING[result.dtype.name] * scale + float(jnp.finfo(result.dtype).smallest_subnormal)
        assert (np.abs(oracle.wide(result) - value) <= allowed).all()


def in_slices(problems, device, catalogue):
    """Every problem with three K slices, independent of where its products begin."""
    blocks = []
    for index, p in enumerate(problems):
        cuts = sorted({0, p.k // 3, 2 * p.k // 3 + 1, p.k}) if p.k > 2 else [0, p.k]
        for batch in range(p.batch):
            for row in range(0, p.m, 48):
                for col in range(0, p.n, 64):
                    for begin, end in itertools.pairwise(cuts):
                        blocks.append([vb.Tile(index, batch, row, col, begin, end, "cpu-small")])
    return vb.Plan.from_blocks(problems, device, catalogue, planner="in_slices", blocks=blocks)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@settings(max_examples=6)
@given(SUMS)
def test_values(dtype, sums):
    As, Bs, ta, tb, out = factors(sums, dtype)
    results = vb.batched_matmul_sum(As, Bs, out, transpose_a=ta, transpose_b=tb)
    check(results, truth(As, Bs, ta, tb, out))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="tiles of the CPU")
@pytest.mark.parametrize("dtype", ["float32", "complex128", "bfloat16"])
@settings(max_examples=5)
@given(SUMS)
def test_values_where_k_is_split_across_products(dtype, sums):
    As, Bs, ta, tb, out = factors(sums, dtype)
    results = vb.batched_matmul_sum(As, Bs, out, transpose_a=ta, transpose_b=tb, planner=in_slices)
    check(results, truth(As, Bs, ta, tb, out))


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_sum_is_rounded_once(implementation):
    """1000 and -1000 cancel in float32; each product rounded to bfloat16 would leave nothing of the 1/256."""
    As = [jnp.full((4, 1), x, jnp.bfloat16) for x in (1000, 1 / 256, -1000)]
    Bs = [jnp.ones((1, 4), jnp.bfloat16)] * 3
    (result,) = vb.batched_matmul_sum(As, Bs, [0, 0, 0], implementation=implementation)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(result, np.full((4, 4), 1 / 256))


@pytest.mark.parametrize("dtype", slow_except(oracle.DTYPES, ["float32", "complex128", "bfloat16"]))
@pytest.mark.parametrize("shape", [(2000, 3), (1100, 1), (1, 900), (4, 1500), (3, 2)])
def test_products_of_few_columns_go_their_own_ways(shape, dtype):
    """Each of K = 2 (interleaved steps), 40 and 1000 (dot products), with and without an epilogue."""
    (m, n), depths = shape, (40, 2, 1000)
    As = [oracle.random((m, k), dtype, k) for k in depths]
    Bs = [oracle.random((n, k), dtype, 1 + k) for k in depths]
    expected = truth(As, Bs, [False] * 3, [True] * 3, [0] * 3)
    ones = [np.ones((m, n), jnp.dtype(dtype))]

    @jax.jit
    def both(As, Bs):
        add = functools.partial(vb.batched_matmul_sum, As, Bs, [0] * 3, transpose_b=True)
        return add(), add(alpha=2.0, bias=ones)

    sums, doubled = both(As, Bs)
    check(sums, expected)
    ((value, scale),) = expected
    check(doubled, [(2 * value + 1, 2 * scale + 1)])


def example(dtype="float64"):
    sums = [(5, 7, [(3, False, True), (9, True, False), (2, False, False)], ()), (4, 4, [(6, False, False)], (2,)),
            (1, 9, [(1, True, True), (8, False, False)], ())]  # fmt: skip
    return factors(sums, dtype)


def test_one_call_without_additions():
    As, Bs, ta, tb, out = example("float32")

    def sums(As, Bs):
        return vb.batched_matmul_sum(As, Bs, out, transpose_a=ta, transpose_b=tb)

    program = jax.jit(sums).lower(As, Bs).as_text()
    assert program.count("custom_call @vbgemm_v2") == 1
    assert "stablehlo.add" not in program
    assert "dot_general" not in program
    gradient = jax.jit(jax.vjp(sums, As, Bs)[1]).lower(sums(As, Bs)).as_text()
    assert gradient.count("custom_call @vbgemm_v2") == 1
    tangent = jax.jit(lambda *ab: jax.jvp(sums, ab, ab)).lower(As, Bs).as_text()
    assert "stablehlo.add" not in tangent  # a tangent's two terms are one sum


EPILOGUES = {
    "alpha": {"alpha": [2.0, -1.0, 0.5]},
    "source": {"beta": 0.5, "Cs": [oracle.random(s, "float64", 5) for s in ((5, 7), (2, 4, 4), (1, 9))]},
    "bias": {"bias": [oracle.random((7,), "float64", 6), None, oracle.random((1, 1), "float64", 7)]},
    "all": {
        "alpha": jnp.asarray([0.3, 0.2, 0.1]), "beta": jnp.asarray([1.0, 0.0, 2.0]), "activation": "tanh",
        "Cs": [oracle.random(s, "float64", 8) for s in ((5, 7), (2, 4, 4), (1, 9))],
    },
}  # fmt: skip


@pytest.mark.parametrize("options", EPILOGUES.values(), ids=EPILOGUES)
@pytest.mark.parametrize("plan", ["auto", in_slices])
def test_epilogues_come_after_the_sum(options, plan):
    As, Bs, ta, tb, out = example()
    if plan is in_slices and jax.default_backend() != "cpu":
        return
    ours = vb.batched_matmul_sum(As, Bs, out, transpose_a=ta, transpose_b=tb, planner=plan, **options)
    alphas = np.broadcast_to(options.get("alpha", 1), 3)
    betas = np.broadcast_to(options.get("beta", 0), 3)
    for index, (result, (value, _)) in enumerate(zip(ours, truth(As, Bs, ta, tb, out), strict=True)):
        expected = alphas[index] * value
        if "Cs" in options:
            expected = expected + betas[index] * oracle.wide(options["Cs"][index])
        if options.get("bias", [None] * 3)[index] is not None:
            expected = expected + np.asarray(options["bias"][index])
        expected = np.tanh(expected) if "activation" in options else expected
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def loss(implementation):
    _, _, ta, tb, out = example()

    def function(As, Bs):
        sums = vb.batched_matmul_sum(
            As, Bs, out, alpha=0.7, activation="silu", transpose_a=ta, transpose_b=tb, implementation=implementation
        )
        return sum(jnp.sum(x**2 * jnp.linspace(-1, 1, x.size).reshape(x.shape)) for x in sums)

    return function


def assert_equal(ours, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), ours, expected)


@pytest.mark.slow
def test_derivatives_of_two_orders_and_vmap():
    As, Bs, *_ = example()
    ours, plain = loss(None), loss("xla")
    assert_equal(*(jax.jit(jax.grad(f, (0, 1)))(As, Bs) for f in (ours, plain)))

    def along(function):
        return lambda As, Bs: jax.jvp(lambda A: jax.grad(function)(A, Bs), (As,), (As,))[1]

    assert_equal(*(jax.jit(along(f))(As, Bs) for f in (ours, plain)))
    batches = [jnp.stack([a, 2 * a, -a]) for a in As]
    mapped = [jax.jit(jax.vmap(jax.grad(function), (0, None))) for function in (ours, plain)]
    assert_equal(mapped[0](batches, Bs), mapped[1](batches, Bs))


def test_segments_name_blocks_by_key():
    a = {("u", 0): oracle.random((3, 4), "float64", 1), ("u", 1): oracle.random((3, 5), "float64", 2)}
    b = [oracle.random((4, 6), "float64", 3), oracle.random((6, 5), "float64", 4)]
    segments = {(0, 1): [(("u", 0), 0), (("u", 1), 1)], (0, 0): [(("u", 0), 0)]}
    results = vb.batched_matmul_sum(
        a, b, segments=segments, transpose_b=[False, True], alpha={(0, 0): 2.0, (0, 1): 1.0}
    )
    np.testing.assert_allclose(results[0, 1], a["u", 0] @ b[0] + a["u", 1] @ b[1].T, rtol=1e-12)
    np.testing.assert_allclose(results[0, 0], 2 * (a["u", 0] @ b[0]), rtol=1e-12)
    (listed,) = vb.batched_matmul_sum(a, b, segments=[segments[0, 0]])
    np.testing.assert_allclose(listed, a["u", 0] @ b[0], rtol=1e-12)
    call = jax.make_jaxpr(lambda a, b: vb.batched_matmul_sum(a, b, segments=segments, transpose_b=[False, True]))(a, b)
    (equation,) = [eqn for eqn in call.eqns if eqn.primitive.name == "batched_matmul"]
    assert len(equation.invars) == 4  # each block once


def test_what_is_not_finite_stays_in_its_result():
    As, Bs, ta, tb, out = example()
    As[1] = As[1].at[0, 0].set(jnp.nan)
    results = vb.batched_matmul_sum(As, Bs, out, transpose_a=ta, transpose_b=tb)
    for result, (value, _) in zip(results, truth(As, Bs, ta, tb, out), strict=True):
        np.testing.assert_array_equal(np.isnan(result), np.isnan(value))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="tiles of the CPU")
def test_a_sum_of_too_many_tiles_is_added_by_xla():
    """Each of its tiles would need a record."""
    a, b = [oracle.random((4000, 8, 8), "float32", i) for i in (1, 2)]
    As, Bs, out = [a, b, b], [b, a, b], [0, 0, 0]
    (result,) = vb.batched_matmul_sum(As, Bs, out, alpha=2.0)
    np.testing.assert_allclose(result, 2 * (a @ b + b @ a + b @ b), rtol=1e-5, atol=1e-5)
    program = jax.jit(lambda As, Bs: vb.batched_matmul_sum(As, Bs, out)).lower(As, Bs).as_text()
    assert "stablehlo.add" in program


def test_symmetric_sums_are_flagged_as_wholes():
    x, y = oracle.random((40, 7), "float64", 1), oracle.random((40, 9), "float64", 2)
    seen = []

    def plan(problems, device, catalogue):
        seen.extend(problems)
        return planner.Uniform()(problems, device, catalogue)

    (result,) = vb.batched_matmul_sum([x, y], [x, y], [0, 0], transpose_b=True, symmetric=True, planner=plan)
    np.testing.assert_allclose(result, x @ x.T + y @ y.T, rtol=1e-12)
    assert [(p.m, p.n, p.k, p.symmetric) for p in seen] == [(40, 40, 16, True)]


A, B = jnp.ones((3, 4)), jnp.ones((4, 5))
WRONG = [
    (ValueError, "give either out.* or segments", [A], [B], {}),
    (ValueError, "give either out.* or segments", [A], [B], {"out": [0], "segments": [[(0, 0)]]}),
    (ValueError, r"out has 1 entries but there are 2 terms", [A, A], [B, B], {"out": [0]}),
    (ValueError, r"out has 2 but not 1: each result needs a term", [A, A], [B, B], {"out": [0, 2]}),
    (ValueError, r"out\[1\] is -1", [A, A], [B, B], {"out": [0, -1]}),
    (TypeError, "out must be integers", [A], [B], {"out": [0.5]}),
    (ValueError, r"As\[1\] x Bs\[1\] is \(3, 6\) but As\[0\] x Bs\[0\] is \(3, 5\).*result\[0\] must have one shape",
     [A, A], [B, jnp.ones((4, 6))], {"out": [0, 0]}),
    (ValueError, r"As\[1\] x Bs\[1\] multiplies float64 but As\[0\] x Bs\[0\] float32.*result\[0\] must have one dtype",
     [A.astype("float32"), A], [B.astype("float32"), B], {"out": [0, 0]}),
    (ValueError, r"As\[1\] is \(3, 4\) but Bs\[1\] is \(5, 4\): inner dimensions 4 and 5",
     [A, A], [B, B.T], {"out": [0, 0]}),
    (ValueError, r"segments name As\['y'\], which does not exist", {"x": A}, [B], {"segments": [[("y", 0)]]}),
    (ValueError, r"segments\['r'\] is empty", [A], [B], {"segments": {"r": []}}),
    (TypeError, r"segments\[0\] is .*must be a list of pairs", [A], [B], {"segments": [[(0, 0, 0)]]}),
    (TypeError, "segments must be a list or a dict", [A], [B], {"segments": 3}),
    (ValueError, r"As\['x'\] is \(3, 4\) but Bs\[0\] is \(5, 4\): inner dimensions",
     {"x": A}, [B.T], {"segments": [[("x", 0)]]}),
    (ValueError, r"As\['x'\] x Bs\[1\] is \(3, 6\).*result\['r'\] must have one shape",
     {"x": A}, [B, jnp.ones((4, 6))], {"segments": {"r": [("x", 0), ("x", 1)]}}),
    (ValueError, r"result\[0\] is 3 x 5, but a symmetric result must be square",
     [A], [B], {"out": [0], "symmetric": True}),
    (ValueError, r"Cs must have the structure of the results",
     [A, A], [B, B], {"out": [0, 0], "Cs": [1, 2], "beta": 1}),
    (ValueError, r"alpha has shape \(2,\), but there are 1", [A, A], [B, B], {"out": [0, 0], "alpha": np.ones(2)}),
    (ValueError, r"bias\[0\] is given for a symmetric result",
     [A, A], [A, A], {"out": [0, 0], "transpose_b": True, "symmetric": True, "bias": [jnp.ones(3)]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "As", "Bs", "options"), WRONG)
def test_errors_name_the_term_and_the_rule(kind, message, As, Bs, options):
    with pytest.raises(kind, match="^batched_matmul_sum: .*" + message):
        vb.batched_matmul_sum(As, Bs, **options)


def test_nothing_to_sum():
    assert vb.batched_matmul_sum([], [], []) == []
    assert vb.batched_matmul_sum({}, {}, segments={}) == {}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bfloat16"])
@pytest.mark.parametrize("k", [257, 600])
def test_interleaved_factors_that_come_from_memory(dtype, k):
    """Three components lie among each other, in rows so far apart that the products advance along K together."""
    m, n, components, row = 20, 70, 3, 8192
    x, y = (oracle.random((k, row), dtype, seed) for seed in (1, 2))

    def parts(buffer, columns):
        return [vb.View(buffer, (k, columns), (row, components), offset=i) for i in range(components)]

    (got,) = vb.batched_matmul_sum(
        parts(x, m),
        parts(y, n),
        [0] * components,
        transpose_a=True,
        preferred_element_type="float32" if dtype == "bfloat16" else dtype,
    )
    as_rows = [oracle.wide(v)[:, : components * c].reshape(k, c * components) for v, c in ((x, m), (y, n))]
    expected = sum(as_rows[0][:, i::components].T @ as_rows[1][:, i::components] for i in range(components))
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(oracle.wide(got), expected, rtol=tolerance, atol=tolerance * 100)


@pytest.mark.parametrize("rows", [(8192, 1024), (1024, 8192), (4000, 1024), (8192, 8192)])
@pytest.mark.parametrize("strides", [(3, 3), (3, 4)])
def test_bits_do_not_depend_on_how_a_sum_is_cut(rows, strides):
    """Whether interleaved factors are added K part by K part is the same for all tiles."""
    k, size = 300, 200
    x, y = (oracle.random((k, row), "float32", seed) for seed, row in enumerate(rows, 1))
    As = [vb.View(x, (k, size), (rows[0], stride), offset=i) for i, stride in enumerate(strides)]
    Bs = [vb.View(y, (k, size), (rows[1], strides[0]), offset=i) for i in range(len(strides))]
    results = [
        vb.batched_matmul_sum(As, Bs, [0, 0], transpose_a=True, planner=planner)[0]
        for planner in ("uniform", "coordinated", "sort_split", "load_balanced")
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
