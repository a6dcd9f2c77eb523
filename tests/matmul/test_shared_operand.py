"""One array against a tree is the shared operand of all products."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb


def x(*shape, dtype="float32"):
    return oracle.random(shape, dtype)


def custom_call(f, *args):
    (line,) = (line for line in jax.jit(f).lower(*args).as_text().splitlines() if "custom_call @vbgemm_v2" in line)
    return line


def num_operands(line):
    return line.split("@vbgemm_v2(")[1].split(")")[0].count("%") - 1  # the first is the descriptors


@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 5)])
def test_a_shared_left_and_right_operand(shape):
    shared, Bs = x(*shape), {"q": x(5, 3), "rest": [x(5, 7), None, x(5, 1)]}
    Cs = vb.batched_matmul(shared, Bs)
    assert jax.tree.structure(Cs) == jax.tree.structure(Bs)
    oracle.check(jax.tree.leaves(Cs), [shared] * 3, jax.tree.leaves(Bs))
    As = [x(3, 4), x(7, 4)]
    oracle.check(vb.batched_matmul(As, x(4, 5)), As, [x(4, 5)] * 2)
    oracle.check(vb.batched_matmul(As, np.asarray(x(4, 5))), As, [x(4, 5)] * 2)


def test_it_enters_the_call_once():
    assert num_operands(custom_call(vb.batched_matmul, x(4, 5), [x(5, 3), x(5, 7)])) == 3
    assert num_operands(custom_call(lambda Bs: vb.batched_matmul(np.ones((4, 5), "float32"), Bs), [x(5, 3)] * 2)) == 3


def test_it_is_converted_once():
    with jax.numpy_dtype_promotion("standard"):
        line = custom_call(vb.batched_matmul, x(4, 5, dtype="bfloat16"), [x(5, 3), x(5, 7), x(5, 2)])
    assert num_operands(line) == 4


def test_its_gradient_is_the_sum_of_all():
    shared, Bs = x(4, 5), [x(5, 3), x(5, 7)]

    def f(matmul):
        return lambda shared, Bs: sum(jnp.sum(c**2) for c in matmul(shared, Bs))

    ours = jax.jit(jax.grad(f(vb.batched_matmul), (0, 1)))(shared, Bs)
    oracle_grads = jax.jit(jax.grad(f(lambda a, Bs: [a @ b for b in Bs]), (0, 1)))(shared, Bs)
    assert ours[0].shape == shared.shape
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, oracle_grads)
    program = jax.jit(jax.grad(f(vb.batched_matmul))).lower(shared, Bs).as_text()
    assert program.count("custom_call @vbgemm_v2") == 2  # the results, and one cotangent for all


def test_gemm_takes_its_options_in_the_structure_of_the_tree():
    shared, Bs = x(4, 5), {"u": x(3, 5), "v": x(7, 5)}
    Cs = jax.tree.map(lambda b: x(4, b.shape[0]), Bs)
    got = vb.batched_gemm(shared, Bs, Cs, alpha={"u": 2.0, "v": 1.0}, beta=1, transpose_b={"u": True, "v": True})
    wanted = {key: alpha * shared @ Bs[key].T + Cs[key] for key, alpha in (("u", 2.0), ("v", 1.0))}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, wanted)
    got = vb.batched_gemm([x(2, 4), x(3, 4)], x(4, 5), bias=[x(5), None])
    np.testing.assert_allclose(got[0], x(2, 4) @ x(4, 5) + x(5)[None], rtol=1e-5, atol=1e-5)


def test_a_structure_without_leaves_gives_it_back():
    assert vb.batched_matmul(x(4, 5), []) == []


def test_a_stack_as_long_as_the_tree_is_refused():
    with pytest.raises(ValueError, match=r"As is one array of shape \(2, 4, 5\) against the 2 leaves of Bs.*list\(x\)"):
        vb.batched_matmul(x(2, 4, 5), [x(5, 3), x(5, 3)])
    with pytest.raises(ValueError, match=r"batched_gemm: Bs is one array of shape \(2, 5, 3\) against the 2 leaves of"):
        vb.batched_gemm([x(4, 5), x(4, 5)], x(2, 5, 3))
    assert vb.batched_matmul(x(1, 4, 5), [x(5, 3)])[0].shape == (1, 4, 3)  # either way the only product
    assert vb.batched_matmul(x(3, 4, 5), [x(5, 3), x(5, 3)])[0].shape == (3, 4, 3)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((x(4, 5), [x(5, 2), x(6, 2)]), r"As is \(4, 5\) but Bs\[1\] is \(6, 2\): inner dimensions 5 and 6"),
        (([x(4, 5), x(4, 6)], x(5, 2)), r"As\[1\] is \(4, 6\) but Bs is \(5, 2\): inner dimensions 6 and 5"),
        ((x(5), [x(5, 2)]), r"As is \(5,\) but Bs\[0\] is \(5, 2\): both need rank 2 or more"),
        ((x(4, 5), None), "Bs is None, but As is an array"),
    ],
)
def test_errors_name_it_without_an_index(operands, message):
    with pytest.raises(ValueError, match=message):
        vb.batched_matmul(*operands)


def test_an_array_of_another_dtype_is_converted_once_however_often_it_is_given():
    half, whole, scale = x(5, 5, dtype="bfloat16"), x(5, 5), jnp.bfloat16(2)

    def f(half, whole, scale):
        As, Bs, Cs = [half, whole, whole], [whole, half, whole], [half, half, whole]
        return vb.batched_gemm(As, Bs, Cs, alpha=scale, beta=[scale, 1, scale], bias=[half, None, None])

    with jax.numpy_dtype_promotion("standard"):
        equations = jax.make_jaxpr(f)(half, whole, scale).eqns
    assert [equation.primitive.name for equation in equations].count("convert_element_type") == 2
    assert len(equations[-1].invars) == 3
