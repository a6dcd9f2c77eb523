"""batched_gemm: errors and their messages."""

import jax.numpy as jnp
import numpy as np
import pytest
from gemm_operands import operands, small

import jax_vbgemm as vb

ERRORS = [
    ({"beta": 1}, None, "beta must be the number 0 where there is no C, but Cs is None"),
    ({"beta": jnp.float64(0)}, None, "beta must be the number 0"),
    ({"alpha": jnp.ones(3)}, None, r"alpha has shape \(3,\), but there are 2 problems"),
    ({"alpha": jnp.ones((2, 2))}, None, "alpha has shape"),
    ({"beta": vb.View(jnp.ones(9), (3,))}, None, r"beta has shape \(3,\), but there are 2 problems"),
    ({"alpha": [1.0]}, None, "alpha must have the structure of As"),
    ({"alpha": [1.0, jnp.ones(2)]}, None, r"alpha\[1\] has shape \(2,\): it must be a number"),
    ({"alpha": 1j}, None, r"alpha\[0\] is complex, but result\[0\] is float64"),
    ({"activation": "elu"}, None, "activation must be None, a function, or one of 'relu'.*not 'elu'"),
    ({"bias": [jnp.ones(5), jnp.ones(5)]}, None, r"bias\[0\] is \(5,\) but result\[0\] is \(3, 4\): it must broadcast"),
    ({"beta": 1}, lambda Cs: [Cs[0], Cs[1].T], r"Cs\[1\] is \(5, 1\) but result\[1\] is \(1, 5\): it must have"),
    ({"beta": 1}, lambda Cs: Cs[:1], "Cs must have the structure of As"),
    ({"beta": 1}, lambda Cs: [c.astype("complex128") for c in Cs], r"Cs\[0\] is complex128, which does not promote"),
    ({"beta": 1}, lambda Cs: [Cs[0], Cs[1].astype("float32")], r"Cs\[1\] is float32, which does not promote"),
    ({}, lambda Cs: [Cs[0], Cs[1].T], r"Cs\[1\] is \(5, 1\) but result\[1\] is \(1, 5\): it must have"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "change", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors(options, change, message):
    As, Bs, Cs, _ = small()
    with pytest.raises(ValueError, match=message):
        vb.batched_gemm(As, Bs, change(Cs) if change else None, **options)


@pytest.mark.parametrize("number", [2**63, 10**400, -(2**63) - 1, 1e30, np.uint64(2**63)])
def test_integers_out_of_range(number):
    A, B = [jnp.full((2, 2), 1)], [jnp.eye(2, dtype=int)]
    with pytest.raises(ValueError, match=r"batched_gemm: alpha\[0\] is .*, but result\[0\] is int64: it must lie in"):
        vb.batched_gemm(A, B, alpha=number)
    with pytest.raises(ValueError, match=r"batched_gemm: beta\[0\] is .*, but result\[0\] is int64: it must lie in"):
        vb.batched_gemm(A, B, A, beta=number)
    As, Bs, Cs, _ = small()
    with pytest.raises(
        ValueError, match=r"beta\[1\] is an integer of 1329 bits, but result\[1\] is float64: it is beyond"
    ):
        vb.batched_gemm(As, Bs, Cs, beta=[1, 10**400])


def test_integer_results_take_whole_numbers_alone():
    A, B = [jnp.full((2, 2), 3)], [jnp.eye(2, dtype=int)]
    np.testing.assert_array_equal(vb.batched_gemm(A, B, alpha=2.0)[0], np.full((2, 2), 6))
    for alpha in (0.5, jnp.float32(2)):
        with pytest.raises(ValueError, match=r"alpha\[0\] is .*, but result\[0\] is int64"):
            vb.batched_gemm(A, B, alpha=alpha)
    with pytest.raises(ValueError, match=r"activation='tanh', but result\[0\] is int64: it must be real and floating"):
        vb.batched_gemm(A, B, activation="tanh")


@pytest.mark.parametrize("options", [{"precision": "foo"}, {"preferred_element_type": "foo"}])
def test_an_option_is_not_blamed_on_a_leaf(options):
    for As, Bs, *_ in (small(), ([], [])):
        with pytest.raises((TypeError, ValueError), match=rf"batched_gemm: {next(iter(options))}.*foo"):
            vb.batched_gemm(As, Bs, **options)


def test_a_wrong_structure_is_told_without_the_arrays():
    As, Bs, _, _ = small()
    with pytest.raises(ValueError, match=r"bias must have the structure of As: As is a list but bias is an array$"):
        vb.batched_gemm(As, Bs, bias=jnp.ones(33))


def test_errors_name_the_leaf_as_the_user_would():
    As, Bs, Cs, _ = ({"w": leaves[0]} for leaves in small())
    for options, message in (
        ({"Cs": {"w": Cs["w"].T}, "beta": 1}, r"Cs\['w'\] is "),
        ({"bias": {"w": jnp.ones(7)}}, r"bias\['w'\] is "),
        ({"alpha": {"w": 1j}}, r"alpha\['w'\] is complex"),
    ):
        with pytest.raises(ValueError, match=message):
            vb.batched_gemm(As, Bs, **options)


def test_wrong_types():
    As, Bs, _, _ = small()
    with pytest.raises(TypeError, match=r"Cs\[1\] must be an array, but is 'x'"):
        vb.batched_gemm(As, Bs, [jnp.zeros((3, 4)), "x"])
    with pytest.raises(TypeError, match=r"alpha\[0\] must be a number, not 'x'"):
        vb.batched_gemm(As, Bs, alpha=np.array(["x", "y"], object))
    with pytest.raises(TypeError, match=r"alpha\[1\] must be a number, not 'x'"):
        vb.batched_gemm(As, Bs, alpha=[1.0, "x"])
    As, Bs, _, _ = operands("complex64", [(2, 2, 2)])
    with pytest.raises(ValueError, match=r"activation='relu', but result\[0\] is complex64: it must be real"):
        vb.batched_gemm(As, Bs, activation="relu")
