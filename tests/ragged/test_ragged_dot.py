"""vb.ragged_dot against float64: sizes and shapes, epilogues, dtypes, containment, bad input."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import ragged_loop
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import FUNCTIONS
from jax_vbgemm._src.ragged import reference

IMPLEMENTATIONS = (None, "xla")


def operands(m: int, k: int, n: int, g: int, dtype: Any = "float64") -> tuple[jax.Array, jax.Array]:
    return oracle.random((m, k), dtype), oracle.random((g, k, n), dtype, seed=1)


def close(result: Any, truth: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(oracle.wide(result), oracle.wide(truth), rtol=0, atol=tolerance)


sizes_of_calls = st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))


@given(
    shape=sizes_of_calls,
    data=st.data(),
    transpose=st.booleans(),
    wide_sizes=st.booleans(),
    implementation=st.sampled_from(IMPLEMENTATIONS),
)
def test_any_sizes_give_the_loop_over_static_groups(shape, data, transpose, wide_sizes, implementation):
    m, k, n, g = shape
    # Negative ones, and sums far above m, included.
    sizes = data.draw(st.lists(st.integers(-3, 2 * m // g + 3), min_size=g, max_size=g))
    lhs, rhs = operands(m, k, n, g)
    stored = jnp.swapaxes(rhs, 1, 2) if transpose else rhs
    group_sizes = jnp.array(sizes, jnp.int64 if wide_sizes else jnp.int32)
    f = jax.jit(functools.partial(vb.ragged_dot, transpose_rhs=transpose, implementation=implementation))
    close(f(lhs, stored, group_sizes), ragged_loop.truth(lhs, rhs, sizes))


@given(
    shape=sizes_of_calls,
    offset=st.integers(-4, 9),
    total=st.integers(1, 8),
    activation=st.sampled_from([None, *FUNCTIONS]),
    extras=st.sets(st.sampled_from(["bias", "row_scale"])),
    seed=st.integers(0, 99),
    implementation=st.sampled_from(IMPLEMENTATIONS),
)
def test_epilogue_and_window_of_groups(shape, offset, total, activation, extras, seed, implementation):
    m, k, n, g = shape
    lhs, rhs = operands(m, k, n, g)
    sizes = ragged_loop.random_sizes(np.random.default_rng(seed), m, total)
    options = {"bias": oracle.random((g, n), "float64", 2), "row_scale": oracle.random((m,), "float64", 3)}
    options = {name: options[name] for name in extras}
    f = jax.jit(functools.partial(vb.ragged_dot, activation=activation, implementation=implementation))
    result = f(lhs, rhs, jnp.asarray(sizes), group_offset=jnp.array([offset]), **options)
    close(result, ragged_loop.truth(lhs, rhs, sizes, group_offset=offset, activation=activation, **options))


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.silu, jax.lax.tanh])
def test_an_activation_may_be_a_function(function):
    lhs, rhs = oracle.random((4, 3), "float64", 1), oracle.random((2, 3, 5), "float64", 2)
    sizes = jnp.array([1, 3])
    result = vb.ragged_dot(lhs, rhs, sizes, activation=function)
    np.testing.assert_allclose(result, function(vb.ragged_dot(lhs, rhs, sizes)), rtol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dtype", "preferred"),
    slow_except(
        [*((dtype, None) for dtype in oracle.DTYPES), ("bfloat16", "float32"), ("float16", "float32")],
        [("complex64", None), ("bfloat16", "float32")],
    ),
)
def test_dtypes(dtype, preferred, implementation):
    m, k, n, g = 90, 37, 50, 5
    lhs, rhs = operands(m, k, n, g, dtype)
    sizes = [20, 0, 31, 7, 25]
    row_scale = jnp.full((m,), 2, jnp.float32 if dtype in ("bfloat16", "float16") else dtype)
    f = jax.jit(functools.partial(vb.ragged_dot, preferred_element_type=preferred, implementation=implementation))
    result = f(lhs, rhs, jnp.array(sizes), row_scale=row_scale)
    assert result.dtype == (preferred or dtype)
    lhs, rhs, result = map(np.asarray, (lhs, rhs, result))  # slices of arrays of JAX are programs
    for w, (begin, end) in enumerate(ragged_loop.group_rows(sizes, m)):
        oracle.check([result[begin:end]], [2 * lhs[begin:end]], [rhs[w]])
    assert not result[83:].any()


def test_integers_go_through_xla():
    lhs, rhs = jnp.arange(12, dtype=jnp.int8).reshape(6, 2), jnp.ones((2, 2, 3), jnp.int8)
    result = vb.ragged_dot(lhs, rhs, jnp.array([2, 3]), preferred_element_type=jnp.int32)
    assert result.dtype == jnp.int32
    np.testing.assert_array_equal(result[:, 0], [1, 5, 9, 13, 17, 0])


@pytest.mark.parametrize("dtype", slow_except(["float32", "bfloat16", "int8", "float8_e4m3fn"], ["bfloat16"]))
def test_xla_copies_the_weights_of_a_few_tiles_at_once(dtype, monkeypatch):
    monkeypatch.setattr(reference, "_SMALL_COPY", 0)
    m, k, n, g = 300, 64, 32, 20
    # Small integers, which all of these dtypes hold and whose sums are exact.
    lhs, rhs = (
        (2 * oracle.random(shape, "float32", i)).round().astype(dtype) for i, shape in enumerate([(m, k), (g, k, n)])
    )
    sizes = [40, 0, 1, 130, *[7] * 16]
    wide = jnp.int32 if dtype == "int8" else jnp.float32
    f = functools.partial(vb.ragged_dot, implementation="xla", preferred_element_type=wide)
    compiled = jax.jit(lambda *operands: f(*operands)).lower(lhs, rhs, jnp.array(sizes)).compile()
    close(compiled(lhs, rhs, jnp.array(sizes)), ragged_loop.truth(lhs, rhs, sizes))
    # The weights of all 57 tiles would take 2.85 * 4 bytes for each entry of rhs, in bfloat16 half of that and rows.
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * 4 * rhs.size
    turned = jax.jit(jax.vmap(lambda rhs: f(lhs, rhs, jnp.array(sizes), transpose_rhs=True)))
    close(turned(jnp.stack([rhs, -rhs]).swapaxes(2, 3))[1], ragged_loop.truth(lhs, -rhs, sizes))


@pytest.mark.parametrize("preferred", [None, "float32"])
def test_float4(preferred):
    lhs, rhs = jnp.ones((40, 2), "float4_e2m1fn"), jnp.full((2, 2, 3), 1.5, "float4_e2m1fn")
    f = jax.jit(functools.partial(vb.ragged_dot, preferred_element_type=preferred))
    result = f(lhs, rhs, jnp.array([1, 38]))
    assert result.dtype == (preferred or "float4_e2m1fn")
    np.testing.assert_array_equal(oracle.wide(result), np.repeat([[3.0, 0.0]], [39, 1], axis=1).T * np.ones((1, 3)))
    product = vb.batched_matmul([lhs], [rhs[0]], preferred_element_type=preferred)[0]
    np.testing.assert_array_equal(oracle.wide(product), np.full((40, 3), 3))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.slow
def test_many_groups_of_few_rows(implementation):
    g, k, n = 65536, 3, 2
    sizes = np.random.default_rng(0).integers(0, 2, g)
    m = int(sizes.sum()) + 5
    lhs, rhs = operands(m, k, n, g)
    result = vb.ragged_dot(lhs, rhs, jnp.asarray(sizes), implementation=implementation)
    truth = np.einsum("mk,mkn->mn", lhs[: m - 5], rhs[np.repeat(np.arange(g), sizes)])
    close(result[: m - 5], truth)
    assert not np.asarray(result[m - 5 :]).any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("extremes", [[2**31 - 1, 2**31 - 1, 5], [-(2**31), 3, 2**31 - 1]])
def test_sizes_beyond_any_sum(extremes, implementation):
    lhs, rhs = operands(10, 4, 3, 3)
    result = vb.ragged_dot(lhs, rhs, jnp.array(extremes, jnp.int32), implementation=implementation)
    close(result, ragged_loop.truth(lhs, rhs, extremes))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "uint64"])
def test_sizes_of_other_integer_types(dtype):
    lhs, rhs = operands(300, 2, 3, 3)
    sizes = [100, 50, 127 if dtype == "int8" else jnp.iinfo(dtype).max]
    for implementation in IMPLEMENTATIONS:
        result = vb.ragged_dot(lhs, rhs, jnp.array(sizes, dtype), implementation=implementation)
        close(result, ragged_loop.truth(lhs, rhs, sizes))


@pytest.mark.parametrize("implementation", slow_except(IMPLEMENTATIONS, [None]))
@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (4, 0, 2, 2), (4, 3, 0, 2), (4, 3, 2, 0)])
def test_nothing_to_multiply(shape, implementation):
    m, k, n, g = shape
    lhs, rhs = operands(m, k, n, g)
    f = jax.jit(
        jax.value_and_grad(
            lambda lhs, rhs: vb.ragged_dot(
                lhs, rhs, jnp.full((g,), 1), bias=jnp.ones((g, n)), implementation=implementation
            ).sum(),
            argnums=(0, 1),
        )
    )
    total, (d_lhs, d_rhs) = f(lhs, rhs)
    assert total == min(m, g) * n  # the bias alone
    assert d_lhs.shape == lhs.shape
    assert d_rhs.shape == rhs.shape


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_stays_in_its_group(implementation):
    m, k, n, g = 40, 6, 5, 4
    sizes = jnp.array([10, 0, 12, 8])
    lhs, rhs = operands(m, k, n, g)
    bias, scale = oracle.random((g, n), "float64", 2), oracle.random((m,), "float64", 3)
    # In weights of a group without rows, in rows behind the last group, and in all that belongs to group 2.
    lhs, rhs, bias, scale = (np.array(x) for x in (lhs, rhs, bias, scale))
    lhs[10:22], lhs[30:] = np.inf, np.nan
    rhs[1:3] = bias[1:3] = scale[10:22] = scale[30:] = np.nan

    def f(lhs: Any, rhs: Any, bias: Any, scale: Any) -> Any:
        return vb.ragged_dot(
            lhs, rhs, sizes, bias=bias, row_scale=scale, activation="tanh", implementation=implementation
        )

    @jax.jit
    def both(cotangent: Any, *given: Any) -> Any:
        result, pull = jax.vjp(f, *given)
        return result, pull(cotangent)

    cotangent = np.ones((m, n))
    cotangent[10:22] = cotangent[30:] = np.nan
    result, (d_lhs, d_rhs, d_bias, d_scale) = jax.device_get(both(cotangent, lhs, rhs, bias, scale))
    assert np.isnan(result[10:22]).all()
    clean = np.r_[0:10, 22:30]
    assert np.isfinite(result[clean]).all()
    assert not result[30:].any()
    for gradient in (d_rhs, d_bias):
        assert np.isfinite(gradient[[0, 3]]).all()
        assert not gradient[1].any()
    assert np.isfinite(d_lhs[clean]).all()
    assert not d_lhs[30:].any()
    assert np.isfinite(d_scale[clean]).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_same_bits_in_every_run(implementation):
    lhs, rhs = operands(3000, 64, 80, 16, "float32")
    f = jax.jit(
        jax.value_and_grad(
            lambda lhs, rhs, sizes: jnp.sum(vb.ragged_dot(lhs, rhs, sizes, implementation=implementation) ** 2),
            argnums=(0, 1),
        )
    )
    sizes = jnp.asarray(ragged_loop.random_sizes(np.random.default_rng(3), 3000, 16))
    first = f(lhs, rhs, sizes)
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, f(lhs, rhs, sizes), first)


def test_one_program_serves_all_sizes():
    traces = 0

    @jax.jit
    def f(lhs: Any, rhs: Any, sizes: Any) -> Any:
        nonlocal traces
        traces += 1
        return vb.ragged_dot(lhs, rhs, sizes)

    lhs, rhs = operands(30, 4, 5, 3)
    for sizes in ([10, 10, 10], [30, 0, 0], [0, 0, 0], [1, 2, 3]):
        close(f(lhs, rhs, jnp.array(sizes)), ragged_loop.truth(lhs, rhs, sizes))
    assert traces == 1


@pytest.mark.parametrize("hint", [1, 400, [1, 20, 9]])
def test_a_hint_changes_no_value(hint):
    lhs, rhs = operands(30, 4, 5, 3)
    sizes = jnp.array([10, 3, 10])
    for implementation in IMPLEMENTATIONS:
        result = vb.ragged_dot(lhs, rhs, sizes, group_size_hint=hint, implementation=implementation)
        close(result, ragged_loop.truth(lhs, rhs, [10, 3, 10]))


F32 = jnp.float32


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lhs": jnp.ones((4,))}, ValueError, r"lhs must be \(m, k\).* they are \(4,\), \(2, 3, 5\) and \(2,\)"),
        ({"rhs": jnp.ones((2, 4, 5))}, ValueError, r"lhs is \(4, 3\) but rhs is \(2, 4, 5\): inner dimensions 3 and 4"),
        ({"transpose_rhs": True}, ValueError, r"rhs is \(2, 3, 5\), transposed: inner dimensions 3 and 5 must match"),
        ({"group_sizes": jnp.ones((3,), int)}, ValueError, r"rhs is \(2, 3, 5\) but group_sizes is \(3,\)"),
        ({"group_sizes": jnp.ones((2,))}, TypeError, r"group_sizes is float64\(2,\): it must be integers"),
        ({"group_sizes": jnp.ones((2,), bool)}, TypeError, r"group_sizes is bool\(2,\): it must be integers"),
        ({"group_offset": 1.5}, TypeError, r"group_offset is float64\(\): it must be integers"),
        ({"group_offset": jnp.array([1, 2])}, ValueError, r"group_offset has shape \(2,\): it must be \(\) or \(1,\)"),
        ({"rhs": jnp.ones((2, 3, 5), F32)}, ValueError, r"lhs is float64\(4, 3\) but rhs is float32\(2, 3, 5\)"),
        ({"bias": jnp.ones((5,))}, ValueError, r"bias is \(5,\) but must be \(g, n\), \(2, 5\)"),
        ({"bias": jnp.ones((2, 5), F32)}, ValueError, r"bias is float32, which does not promote to float64"),
        ({"row_scale": jnp.ones((5,))}, ValueError, r"row_scale is \(5,\) but must be \(m,\), \(4,\)"),
        ({"activation": "swish"}, ValueError, r"activation must be None, a function, or one of 'relu'.*, not 'swish'"),
        ({"activation": jax.nn.elu}, ValueError, r"activation .*elu.* is none of 'relu', .*: apply it to the result"),
        ({"transpose_rhs": 1}, TypeError, r"transpose_rhs must be a bool, not 1"),
        ({"implementation": "cuda"}, ValueError, r"implementation must be None, 'kernel' or 'xla', not 'cuda'"),
        ({"precision": "best"}, ValueError, r"ragged_dot: precision: unknown name 'best'"),
        ({"group_size_hint": [1]}, ValueError, r"group_size_hint is \[1\]: it must be one size, or one for each of"),
        ({"group_size_hint": 1.5}, TypeError, r"group_size_hint must be an integer or a sequence of integers, not 1.5"),
        (
            {"group_size_hint": True},
            TypeError,
            "group_size_hint must be an integer or a sequence of integers, not True",
        ),
        ({"group_size_hint": [1, True]}, TypeError, "group_size_hint must be an integer or a sequence of integers"),
        ({"lhs": "rows"}, TypeError, r"ragged_dot: lhs must be an array, but is 'rows'"),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {"lhs": jnp.ones((4, 3)), "rhs": jnp.ones((2, 3, 5)), "group_sizes": jnp.ones((2,), int), **change}
    with pytest.raises(error, match=message):
        vb.ragged_dot(**arguments)


@pytest.mark.parametrize("kind", [int, np.int64, lambda x: np.array([x])])
def test_integers_of_the_host_beyond_32_bits_saturate(kind):
    """Without x64 JAX refuses or wraps them."""
    x, w = jnp.ones((2, 1), F32), jnp.ones((1, 1, 1), F32)
    with jax.enable_x64(False):
        for offset in (2**40, -(2**40)):
            assert not vb.ragged_dot(x, w, [2, 0], group_offset=kind(offset)).any()
        for size, rows in ((2**40, 2), (2**32, 2), (-(2**40), 0), (2**32 + 1, 2)):
            assert vb.ragged_dot(x, w, np.reshape(kind(size), 1)).sum() == rows
        rows = jnp.arange(1.0, 3.0)[:, None]
        gathered = vb.ragged_dot(rows, w, [2], gather=np.array([2**40, -(2**40)]))
        np.testing.assert_array_equal(gathered[:, 0], [2, 1])
        routing = vb.moe.route(jnp.zeros((1, 3)), experts=np.array([[2**40, -(2**40)]]))
        assert (routing.experts.tolist(), routing.clamped) == ([[2, 0]], 2)


def test_the_kernel_is_never_replaced_silently():
    lhs, rhs = jnp.ones((4, 3), int), jnp.ones((2, 3, 5), int)
    with pytest.raises(
        NotImplementedError, match="ragged_dot: implementation='kernel', but there is no kernel for int64"
    ):
        vb.ragged_dot(lhs, rhs, jnp.array([1, 2]), implementation="kernel")
