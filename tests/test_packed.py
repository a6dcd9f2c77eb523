"""RaggedArray: one leaf to JAX, a tree of members to users, and always zeros in the padding."""

import functools
import pickle

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given

import jax_vbgemm as vb

SHAPES = {"a": (3, 5), "b": (2, 4, 7), "c": (6,), "d": (), "e": (0, 3), "f": (4, 8)}


def tree_of(shapes, dtype="float64"):
    return {name: oracle.random(shape, dtype, index) for index, (name, shape) in enumerate(shapes.items())}


@functools.partial(jax.jit, static_argnums=(0, 1))
def taken(size, layouts):
    """Which elements of a buffer belong to members."""
    flags = jnp.zeros(size, bool)
    for layout in layouts:
        flags = layout.put(flags, jnp.ones(layout.shape, bool))
    return flags


def padding(ragged):
    """The elements of the padding."""
    return np.asarray(ragged.buffer)[~np.asarray(taken(ragged.buffer.size, tuple(ragged.members.layouts)))]


# One program in place of several for each member.
unpacked = jax.jit(vb.RaggedArray.unpack)


def same(ours, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-12), ours, expected)


TREE = tree_of(SHAPES)
RAGGED = vb.pack(TREE)
MATRICES = [oracle.random(shape, "float64", 1) for shape in ((3, 5), (4, 7), (1, 1), (9, 2))]


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=5), st.sampled_from(["float32", "complex64"])
)
def test_unpack_is_the_inverse_of_pack(shapes, dtype):
    tree = [oracle.random(shape, dtype, 1) for shape in shapes]
    packed = vb.pack(tree)
    if tree:
        assert packed.dtype == dtype
    assert packed.shapes == tuple(shapes)
    jax.tree.map(np.testing.assert_array_equal, packed.unpack(), tree)
    assert not padding(packed).any()
    for layout in packed.members.layouts:  # each row begins at 16 bytes
        starts = [layout.offset] + [stride for dimension in layout.dimensions[:-1] for _, stride in dimension]
        assert all(start * np.dtype(dtype).itemsize % 16 == 0 for start in starts)


def test_members_by_number_and_by_path():
    same(RAGGED["b"], TREE["b"])
    same(RAGGED[0], TREE["a"])
    same(RAGGED[-1], TREE["f"])
    same(list(RAGGED), jax.tree.leaves(TREE))
    nested = vb.pack({"layer": [jnp.ones((2, 2)), jnp.zeros(3)]})
    same(nested["layer", 1], jnp.zeros(3))
    same(nested["layer"], [jnp.ones((2, 2)), jnp.zeros(3)])
    with pytest.raises(KeyError, match="there is no member 'z'"):
        RAGGED["z"]
    with pytest.raises(IndexError, match="there is no member 6"):
        RAGGED[6]


def test_arithmetic_leaves_the_padding_zero():
    results = {
        "x + 1": (RAGGED + 1.0, lambda x: x + 1),
        "1 - x": (1.0 - RAGGED, lambda x: 1 - x),
        "x * inf": (RAGGED * jnp.inf, lambda x: x * jnp.inf),
        "2 x, a number of NumPy": (np.float64(2) * RAGGED, lambda x: 2 * x),
        "x - x": (RAGGED - 2 * RAGGED, lambda x: -x),
        "1 / x": (RAGGED.map(lambda x: 1 / x), lambda x: 1 / x),
    }
    for name, (ours, f) in results.items():
        same(unpacked(ours), jax.tree.map(f, TREE))
        assert not padding(ours).any(), name
    half = RAGGED.astype("float32")
    assert half.members.multiple == 4
    same(half["b"], TREE["b"].astype("float32"))


def test_the_gradient_of_a_map_is_finite():
    root = jax.jit(jax.grad(lambda r: sum(jnp.sum(x) for x in r.map(jnp.sqrt))))(vb.pack([jnp.full((2, 3), 4.0)]))
    same(unpacked(root), [jnp.full((2, 3), 0.25)])
    assert not padding(root).any()


def test_norms_and_nan_in_the_padding():
    tainted = jax.tree.map(lambda x: jnp.where(x == 0, jnp.nan, x), vb.pack(MATRICES))
    assert np.isnan(padding(tainted)).all()
    norms = [np.linalg.norm(x) for x in MATRICES]
    same(tainted.norms(), np.array(norms))
    same(tainted.norm(), np.linalg.norm(norms))
    products = vb.batched_matmul(tainted, tainted, transpose_b=True)
    same(unpacked(products), [x @ x.T for x in MATRICES])
    assert not padding(products).any()


def test_products_give_ragged_arrays():
    left, right = vb.pack(MATRICES), vb.pack([oracle.random((x.shape[1], 3), "float64", 2) for x in MATRICES])
    plain = [x @ y for x, y in zip(left, right, strict=True)]
    same(jax.jit(vb.batched_matmul)(left, right).unpack(), plain)
    same(vb.batched_matmul(left, list(right)).unpack(), plain)
    same(vb.batched_gemm(left, right, vb.pack(plain), beta=-1.0).norm(), 0.0)
    same(vb.batched_gemm(left, right, activation=jnp.sin).unpack(), [jnp.sin(x) for x in plain])
    same(vb.batched_gram(left).unpack(), [x @ x.T for x in MATRICES])
    sums = vb.batched_matmul_sum(left, left, [0, 1, 2, 3], transpose_a=True)
    same(unpacked(sums), [x.T @ x for x in MATRICES])
    updated = vb.batched_gemm(left, right, into=vb.pack(plain) * jnp.nan, alpha=2.0)
    same(unpacked(updated), [2 * x for x in plain])
    assert isinstance(updated, vb.RaggedArray)
    assert len(vb.batched_matmul(vb.pack([]), [])) == 0


def test_newton_schulz_takes_and_gives_it():
    ours = jax.jit(vb.newton_schulz)(vb.pack(MATRICES))
    same(unpacked(ours), jax.jit(vb.newton_schulz)(MATRICES))
    assert not padding(ours).any()


def test_transformations():
    right = [oracle.random((x.shape[1], 3), "float64", 2) for x in MATRICES]

    def loss(left, right):
        products = vb.batched_matmul(left, right)
        return sum(jnp.sum(jnp.square(x)) for x in products)

    left = vb.pack(MATRICES)
    expected = jax.jit(jax.grad(loss, (0, 1)))(MATRICES, right)
    gradients = jax.jit(jax.grad(loss, (0, 1)))(left, vb.pack(right))
    same([unpacked(gradient) for gradient in gradients], list(expected))
    assert not any(padding(gradient).any() for gradient in gradients)
    assert jax.jit(jax.grad(loss)).lower(left, vb.pack(right)).as_text().count("custom_call @vbgemm") == 2

    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), left)
    same(jax.vmap(loss, (0, None))(stacked, right), jnp.stack([loss(MATRICES, right), 4 * loss(MATRICES, right)]))

    def step(carry, _):
        return carry - 0.1 * jax.grad(loss)(carry, right), carry.norm()

    descend = jax.jit(lambda x: jax.lax.scan(step, x, length=3), donate_argnums=0)
    final, norms = descend(vb.pack(MATRICES))
    assert norms.shape == (3,)
    assert not padding(final).any()


def test_pickle_and_optax_and_orbax(tmp_path):
    again = pickle.loads(pickle.dumps(RAGGED))
    assert again.members == RAGGED.members
    same(unpacked(again), TREE)
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(0.1)
    gradient = vb.pack(jax.tree.map(jnp.cos, TREE))
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(gradient, optimizer.init(RAGGED), RAGGED)
        plain, _ = optimizer.update(unpacked(gradient), optimizer.init(TREE), TREE)
    same(unpacked(optax.apply_updates(RAGGED, updates)), optax.apply_updates(TREE, plain))
    orbax = pytest.importorskip("orbax.checkpoint")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", {"momenta": RAGGED})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", {"momenta": jax.tree.map(jnp.zeros_like, RAGGED)})
    same(unpacked(restored["momenta"]), TREE)


def test_mistakes_are_named():
    with pytest.raises(
        ValueError, match=r"pack: tree\['b'\] is float32 but tree\['a'\] is float64: one buffer has one"
    ):
        vb.pack({"a": jnp.ones(2), "b": jnp.ones(2, "float32")})
    with pytest.raises(TypeError, match=r"pack: tree\[1\] must be an array"):
        vb.pack([jnp.ones(2), "x"])
    with pytest.raises(TypeError, match=r"pack: tree\[0\] is key<fry>: a buffer holds numbers"):
        vb.pack([jax.random.key(0)])
    with pytest.raises(ValueError, match=r"the members .* are not those of"):
        vb.pack([jnp.ones(2)]) + vb.pack([jnp.ones(3)])
    for other in (jnp.ones(3), np.ones(3), TREE, "x", None):
        with pytest.raises(
            TypeError, match=r"RaggedArray: the other operand is .*: it must be a number, or a RaggedArray"
        ):
            RAGGED * other
    for convert in (np.asarray, jnp.asarray):
        with pytest.raises(TypeError, match=r"RaggedArray: it holds many arrays: take one .*unpack"):
            convert(vb.pack([jnp.ones(2), jnp.ones(2)]))
    with pytest.raises(TypeError, match="further arguments of map must be RaggedArrays, not of type dict"):
        RAGGED.map(jnp.add, TREE)
    with pytest.raises(TypeError, match="not a container"):
        "a" in RAGGED  # noqa: B015
    half = vb.pack([jnp.ones((2, 2), "float32")] * 2)
    mixed = pytest.raises(ValueError, match=r"result\[1\] is float32 but result\[0\] is float64: a RaggedArray has")
    with jax.numpy_dtype_promotion("standard"), mixed:
        vb.batched_matmul(half, [jnp.ones((2, 2)), jnp.ones((2, 2), "float32")])
    with pytest.raises(ValueError, match=r"As\['c'\] is \(6,\) but Bs\['c'\] is \(6,\): both need rank 2 or more"):
        vb.batched_matmul(vb.pack({"c": TREE["c"]}), vb.pack({"c": TREE["c"]}))


def test_members_of_another_dtype():
    """jax.tree.map changes the buffer's dtype and no layout: optax does that for momenta in bfloat16."""
    single = vb.pack([x.astype("float32") for x in MATRICES])
    half = jax.tree.map(lambda x: x.astype("bfloat16"), single)
    into = (
        [jnp.ones((x.shape[0], 2), "bfloat16") for x in MATRICES],
        [jnp.ones((2, x.shape[1]), "bfloat16") for x in MATRICES],
    )
    for filled in (half, single.astype("bfloat16")):
        updated = vb.batched_matmul(*into, into=filled)
        assert updated.members == filled.members
        same([x.astype("float32") for x in updated], [jnp.full(x.shape, 2.0, "float32") for x in MATRICES])
    with jax.numpy_dtype_promotion("standard"):
        total = single + single.astype("bfloat16")
    assert total.dtype == "float32"
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, 2 * y, rtol=1e-2), unpacked(total), unpacked(single))
    flags = single.map(lambda x: x > 0)
    assert flags.members == vb.pack([x > 0 for x in MATRICES]).members


def test_weight_decay_puts_numbers_into_padding_that_nobody_sees():
    """x + 1 through jax.tree.map does not know of padding; members, products, norms and gradients don't see it."""
    left = jax.tree.map(lambda x: x + 1.0, vb.pack(MATRICES))
    expected = [x + 1.0 for x in MATRICES]
    assert padding(left).all()
    same(unpacked(left), expected)
    same(left.norms(), np.array([np.linalg.norm(x) for x in expected]))
    same(vb.batched_gram(left).unpack(), [x @ x.T for x in expected])
    gradient = jax.grad(lambda x: vb.batched_gram(x).norm())(left)
    assert not padding(gradient).any()
    assert not padding(left + 0.0).any()


def test_stacked_buffers_are_refused():
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), RAGGED)
    with pytest.raises(ValueError, match=r"RaggedArray: its buffer is .*: after vmap or scan, jax.vmap"):
        stacked["a"]
    with pytest.raises(ValueError, match=r"As\['a'\] doesn't fit its buffer: it is a window of"):
        vb.batched_matmul(stacked, TREE)
    same(jax.vmap(lambda x: x["a"])(stacked), jnp.stack([TREE["a"]] * 2))


def test_padding_reaches_no_result_and_no_gradient():
    """NaN and other numbers in the padding of every operand."""
    left, right = vb.pack(MATRICES), vb.pack([oracle.random((x.shape[1], 3), "float64", 2) for x in MATRICES])

    def results(left, right):
        products = vb.batched_matmul(left, right)
        return {
            "matmul": products,
            "gemm": vb.batched_gemm(left, right, products, alpha=2.0, beta=0.5, activation="relu"),
            "sum": vb.batched_matmul_sum(left, left, [0, 1, 2, 3], transpose_a=True),
            "gram": vb.batched_gram(left),
            "kernel": vb.newton_schulz(left, 2, implementation="kernel"),
            "xla": vb.newton_schulz(left, 2, implementation="xla"),
            "map": left.map(jnp.exp),
            "norms": left.norms(),
            "norm": left.norm(),
        }

    def loss(left, right):
        found = results(left, right)
        ragged = sum(x.map(jnp.sin).norm() for x in found.values() if isinstance(x, vb.RaggedArray))
        return ragged + jnp.sum(found["norms"]) + found["norm"]

    @jax.jit
    def everything(left, right):
        found, gradients = results(left, right), jax.grad(loss, (0, 1))(left, right)
        members = [list(x) if isinstance(x, vb.RaggedArray) else x for x in found.values()]
        return members, [list(x) for x in gradients], [x.buffer for x in gradients]

    expected = everything(left, right)
    for number in (jnp.nan, 7.0):
        flags = [jnp.asarray(taken(x.buffer.size, tuple(x.members.layouts))) for x in (left, right)]
        tainted = [
            vb.RaggedArray(jnp.where(f, x.buffer, number), x.members) for x, f in zip((left, right), flags, strict=True)
        ]
        same(everything(*tainted), expected)


def test_norms_of_large_members_and_their_gradients():
    """Runs of many sums of sums; the gradient of a member is its direction, and that of zeros is zero."""
    shapes = [(300, 37), (1, 1), (0, 3), (2, 3), (65, 33)]
    matrices = [oracle.random(shape, "float64", index) for index, shape in enumerate(shapes)]
    matrices[3] = jnp.zeros((2, 3))
    packed = vb.pack(matrices)
    norms = [np.linalg.norm(x) for x in matrices]
    same(jax.jit(vb.RaggedArray.norms)(packed), np.array(norms))
    gradients = jax.jit(jax.grad(lambda x: jnp.sum(x.norms())))(packed)
    same(unpacked(gradients), [x / n if n else x for x, n in zip(matrices, norms, strict=True)])
    whole = np.linalg.norm(norms)
    of_norm = jax.jit(jax.grad(vb.RaggedArray.norm))
    same(unpacked(of_norm(packed)), [x / whole for x in matrices])
    assert not of_norm(jax.tree.map(jnp.zeros_like, packed)).buffer.any()
    infinite = vb.pack([jnp.array([jnp.inf, 1.0]), jnp.array([jnp.nan]), jnp.array([3.0, 4.0])])
    np.testing.assert_array_equal(infinite.norms(), [np.inf, np.nan, 5.0])


def test_norms_and_arithmetic_are_a_few_operations():
    """Whatever the number of members, so that XLA compiles them in less than a second."""

    def lines(count):
        packed = vb.pack([jnp.ones((1 + index % 5, 1 + index % 7)) for index in range(count)])
        program = jax.jit(jax.grad(lambda x: (2 * x).norm() + jnp.sum(x.norms())))
        return len(program.lower(packed).as_text().splitlines())

    assert lines(300) == lines(150)
