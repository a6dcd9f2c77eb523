"""Structures, None leaves, transposes as prefix trees, and the messages for bad input."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb


def x(*shape, dtype="float32"):
    return oracle.random(shape, dtype)


def test_the_result_has_the_operands_structure():
    As = {"a": x(2, 3), "rest": (x(4, 5), [x(6, 7), None]), "none": None}
    Bs = {"a": x(3, 4), "rest": (x(5, 1), [x(7, 2), None]), "none": None}
    Cs = vb.batched_matmul(As, Bs)
    assert jax.tree.structure(Cs) == jax.tree.structure(As)
    assert Cs["none"] is None
    assert Cs["rest"][1][0].shape == (6, 2)
    oracle.check(jax.tree.leaves(Cs), jax.tree.leaves(As), jax.tree.leaves(Bs))


def test_a_single_array_and_empty_structures():
    assert vb.batched_matmul(x(2, 3), x(3, 4)).shape == (2, 4)
    assert vb.batched_matmul([], []) == []
    assert vb.batched_matmul({}, {}) == {}
    assert vb.batched_matmul([None], [None]) == [None]


def test_transposes_are_bools_or_prefix_trees():
    As = {"p": [x(3, 2), x(3, 4)], "q": x(5, 6)}
    Bs = {"p": [x(3, 7), x(3, 7)], "q": x(6, 7)}
    Cs = vb.batched_matmul(As, Bs, transpose_a={"p": True, "q": False})
    assert [c.shape for c in jax.tree.leaves(Cs)] == [(2, 7), (4, 7), (5, 7)]
    Cs = vb.batched_matmul(As, Bs, transpose_a={"p": [True, True], "q": np.False_})
    assert Cs["p"][1].shape == (4, 7)


def test_numpy_operands():
    (c,) = vb.batched_matmul([np.ones((2, 3))], [np.ones((3, 4))])
    assert isinstance(c, jax.Array)
    np.testing.assert_array_equal(c, np.full((2, 4), 3.0))


ERRORS = [
    (([x(5, 7)] * 3 + [x(5, 7)], [x(7, 2)] * 3 + [x(8, 2)]), {},
     r"batched_matmul: As\[3\] is \(5, 7\) but Bs\[3\] is \(8, 2\): inner dimensions 7 and 8 must match"),
    (([x(2, 2), x(5, 7)], [x(2, 2), x(8, 5)]), {"transpose_b": True}, r"As\[1\].*Bs\[1\].*transposed.*inner dimensions 7 and 5"),
    (([x(5)], [x(5, 2)]), {}, r"As\[0\] is \(5,\) but Bs\[0\] is \(5, 2\): both need rank 2 or more"),
    (([1.0], [x(1, 2)]), {}, r"As\[0\] is .*\(\).*rank 2"),
    (({"w": x(3, 2, 5)}, {"w": x(4, 5, 2)}), {}, r"As\['w'\] .*Bs\['w'\].*leading dimensions \(3,\) and \(4,\) must broadcast"),
    (([x(2, 2)], [x(2, 2)] * 2), {}, "same structure: As has 1 entry but Bs has 2 entries"),
    (([x(2, 2)], {"a": x(2, 2)}), {}, "same structure: As is a list but Bs is a dict"),
    (([x(2, 2)], (x(2, 2),)), {}, "same structure: As is a list but Bs is a tuple"),
    (({"a": x(2, 2), "b": x(2, 2)}, {"a": x(2, 2)}), {}, "As has the key 'b' but Bs has not"),
    (({"a": x(2, 2)}, {"a": x(2, 2), "b": x(2, 2)}), {}, "Bs has the key 'b' but As has not"),
    (({"w": [x(2, 2), (x(2, 2),)]}, {"w": [x(2, 2), [x(2, 2)]]}), {}, r"As\['w'\]\[1\] is a tuple but Bs\['w'\]\[1\] is a list"),
    (([x(2, 2), None], [None, x(2, 2)]), {}, r"same structure: As\[1\] is None but Bs\[1\] is an array|As\[0\] is an array but Bs\[0\] is None"),
    (([x(2, 2)], [x(2, 2)]), {"transpose_a": [True, False]}, "transpose_a must be a bool or a prefix of As: transpose_a has 2 entries but As has 1 entry"),
    (([x(2, 2)], [x(2, 2)]), {"precision": {}}, "batched_matmul: precision: unknown name {}"),
    (([x(2, 2)], [x(2, 2)]), {"precision": ()}, r"batched_matmul: precision: unknown name \(\)"),
    (([x(2, 2)], [x(2, 2)]), {"implementation": "cuda"}, "implementation must be None, 'kernel' or 'xla', not 'cuda'"),
    (([x(2, 2)], [x(2, 2)]), {"planner": "best"}, "best.*coordinated"),
    (([x(2, 2)], [x(2, 2)]), {"precision": "sloppy"}, "batched_matmul: precision: unknown name .sloppy."),
    (([x(2, 2)], [x(2, 2)]), {"precision": "tf32"}, "'tf32'; 'default' is TF32 on a GPU with tensor cores"),
    (([x(2, 2)], [x(2, 2)]), {"precision": "low"}, "'low'; known are 'default', 'high', 'highest', .*'TF32_TF32_F32'"),
    (([x(2, 2), x(2, 2)], [x(2, 2), x(2, 2, dtype="float64")]), {}, r"As\[1\] is float32\(2, 2\) but Bs\[1\] is float64\(2, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("operands", "options", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_leaf_and_the_rule(operands, options, message):
    with pytest.raises(ValueError, match=message):
        vb.batched_matmul(*operands, **options)
    with pytest.raises(ValueError, match=message):  # at trace time too
        jax.make_jaxpr(lambda: vb.batched_matmul(*operands, **options))()


def test_wrong_types():
    with pytest.raises(TypeError, match=r"As\[0\] must be an array"):
        vb.batched_matmul([object()], [x(2, 2)])
    with pytest.raises(TypeError, match="transpose_a must hold Python bools, not 1"):
        vb.batched_matmul([x(2, 2)], [x(2, 2)], transpose_a=[1])
    with pytest.raises(TypeError, match="planner"):
        vb.batched_matmul([x(2, 2)], [x(2, 2)], planner=3)
    with pytest.raises(TypeError, match=r"batched_matmul: it has no argument 'bias'; batched_gemm has .*bias"):
        vb.batched_matmul([x(2, 2)], [x(2, 2)], bias=[x(2)], activation="relu")
    assert "bias" not in inspect.signature(vb.batched_matmul).parameters


def test_without_x64():
    with jax.enable_x64(False):
        a = jnp.ones((2, 3), jnp.float32)
        assert vb.batched_matmul([a], [np.ones((3, 2), np.float32)])[0].dtype == jnp.float32
        assert jax.jit(vb.batched_matmul)([a], [jnp.ones((3, 2), jnp.float32)])[0].dtype == jnp.float32
