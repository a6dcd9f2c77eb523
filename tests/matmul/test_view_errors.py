"""Views: errors and their messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_vbgemm as vb

X = jnp.ones((4, 6))
WINDOW = vb.View.of(X, "a b -> a b", window=np.s_[:, :2])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: vb.View(X, (4, 7)), ValueError, "View: its last element is number 27 of a buffer of 24 elements"),
        (lambda: vb.View(X, (4, 2), (6, -1)), ValueError, "View: strides holds -1: it must not be negative"),
        (lambda: vb.View(X, (4, 2), offset=-1), ValueError, "View: offset holds -1"),
        (
            lambda: vb.View(X, (4, 2.5)),
            TypeError,
            "View: shape must hold integers that are known at trace time, not 2.5",
        ),
        (lambda: vb.View(X, ((2, 2), 2), (6, 1)), ValueError, "don't have the form of shape"),
        (lambda: vb.View.of(X, "a b c -> a b c"), ValueError, r"names 3 axes of an array of shape \(4, 6\)"),
        (lambda: vb.View.of(X, "a (b c) -> a b c"), ValueError, "say the size of 'b' or of 'c'"),
        (lambda: vb.View.of(X, "a (b c) -> a b c", c=4), ValueError, "an axis of 6 cannot be b x c=4"),
        (lambda: vb.View.of(X, "a b -> a"), ValueError, "each name must stand once on each side"),
        (lambda: vb.View.of(X, "a b - b a"), ValueError, "with -> between them"),
        (lambda: vb.View.of(X, "a b -> a b", d=3), ValueError, "there is no 'd' to have a size"),
        (
            lambda: vb.View.of(X, "a b -> a b", window=np.s_[..., 3:9]),
            ValueError,
            "window 3:9 reaches past axis 1 of 6",
        ),
        (lambda: vb.View.of(X, "a b -> a b", window=np.s_[::-1]), ValueError, "in steps of -1"),
        (lambda: vb.View.of(X, "a b -> a b", window=(0,)), ValueError, "window must hold slices, not 0"),
        (
            lambda: vb.View.of(X, "a b -> a b", window=np.ones((9, 9))),
            ValueError,
            "window must hold slices, not of type nd",
        ),
        (lambda: vb.View(None, (2, 2)), TypeError, "View: buffer must be a jax.Array, as .* but is None"),
        (lambda: vb.View.of(np.ones((2, 2)), "a b -> a b"), TypeError, "View.of: x must be a jax.Array"),
        (lambda: vb.View(WINDOW, (2, 2)), TypeError, "View: buffer is a View already"),
        (lambda: vb.View.of(WINDOW, "a b -> a b"), TypeError, "View.of: x is a View already"),
        (lambda: vb.View(X, (4, True)), TypeError, "View: shape must hold integers that .*, not True"),
        (
            lambda: vb.batched_matmul([X, vb.View.with_layout(X[:1], WINDOW.layout)], [X.T, X[:2]]),
            ValueError, r"batched_matmul: As\[1\] doesn't fit its buffer: its last element is number 19 of a",
        ),
        (
            lambda: vb.batched_matmul([X.T], [X], into=[vb.View(jnp.ones(99), (6, 5))]),
            ValueError, r"into\[0\] is float64\(6, 5\) but result\[0\] is float64\(6, 6\): they must be the same",
        ),
        (
            lambda: vb.batched_matmul([X, X], [X.T, X.T], into=[vb.View(X, (4, 4)), vb.View(X, (4, 4), offset=8)]),
            ValueError, r"batched_matmul: into\[0\] and into\[1\] overlap in their buffer",
        ),
        (
            lambda: vb.batched_matmul([X], [X.T], into=[vb.View(X, (4, 4), (1, 1))]),
            ValueError, r"into\[0\] overlaps itself: two of its elements lie in one place",
        ),
        (lambda: vb.batched_matmul([X], [X.T], into=[X]), TypeError, r"into\[0\] must be a View or None"),
        (lambda: vb.batched_matmul([X], [X.T], into=[WINDOW] * 2), ValueError, "into must have the structure of As"),
        (lambda: np.asarray(WINDOW), TypeError, r"View: it does not become an array by itself: call its dense\(\)"),
        (lambda: vb.View(X, X), TypeError, "View: shape must be a tuple of sizes, not of type ArrayImpl"),
        (lambda: vb.batched_matmul([WINDOW], [X]), ValueError, r"As\[0\] is \(4, 2\) but Bs\[0\] is \(4, 6\): in"),
    ],
)  # fmt: skip
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: vb.View(x, (x.shape[0], 6), offset=1), r"element is number 6\*n of a buffer of 6\*n elements"),
        (lambda x: vb.View(x, (2, 5)), r"its last element is number 9 of a buffer of 6\*n elements"),
        (lambda x: vb.View(x, (x.shape[0] - 2, 6)), r"shape holds n - 2: it must not be negative"),
        (lambda x: vb.View.of(x, "a b -> a b", window=np.s_[1:]), r"takes 1:None of axis 0, whose size n is symbolic"),
        (lambda x: vb.View.of(x, "(a c) b -> a c b", c=2), r"an axis of n cannot be a x c=2"),
        (lambda x: vb.batched_matmul([x, x], [jnp.ones((6, 2))] * 2, into=[
            vb.View.of(x, "a b -> a b", window=np.s_[:, :2]), vb.View.of(x, "a b -> a b", window=np.s_[:, 1:3])
        ]), r"into\[0\] and into\[1\] overlap"),
    ],
)  # fmt: skip
def test_mistakes_with_symbolic_sizes_are_named(make, message):
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 6"), "float64")
    with pytest.raises(ValueError, match=message):
        jax.export.export(jax.jit(make))(symbolic)


def test_views_behind_scan_are_refused():
    stacked = jax.lax.scan(lambda c, _: (c, vb.View(c, (1, 2))), jnp.ones(3), length=4)[1]
    with pytest.raises(ValueError, match=r"a window of 3 elements, but its buffer is \(4, 3\): after vmap or scan"):
        stacked.dense()
    assert jax.vmap(vb.View.dense)(stacked).shape == (4, 1, 2)
