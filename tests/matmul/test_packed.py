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
MATRICES = jax.device_get([oracle.random(shape, "float64", 1) for shape in ((3, 5), (4, 7), (1, 1), (9, 2))])
RIGHT = jax.device_get([oracle.random((x.shape[1], 3), "float64", 2) for x in MATRICES])


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=5), st.sampled_from(["float32", "complex64"])
)
def test_unpack_is_the_inverse_of_pack(shapes, dtype):
    tree = [oracle.random(shape, dtype, 1) for shape in shapes]
    packed = vb.pack(tree)
    if tree:
        assert packed.dtype == dtype
    assert packed.shapes == tuple(shapes)
    jax.tree.map(np.testing.assert_array_equal, unpacked(packed), tree)
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
    expected = {
        "x + 1": lambda x: x + 1,
        "1 - x": lambda x: 1 - x,
        "x * inf": lambda x: x * np.inf,
        "2 x, a number of NumPy": lambda x: 2 * x,
        "x - x": lambda x: -x,
        "1 / x": lambda x: 1 / x,
    }

    @jax.jit
    def results(x):
        found = x + 1.0, 1.0 - x, x * jnp.inf, np.float64(2) * x, x - 2 * x, x.map(lambda x: 1 / x)
        return [(ragged, ragged.unpack()) for ragged in found]

    for (name, f), (ours, members) in zip(expected.items(), results(RAGGED), strict=True):
        same(members, jax.tree.map(f, jax.device_get(TREE)))
        assert not padding(ours).any(), name
    half = RAGGED.astype("float32")
    assert half.members.multiple == 4
    same(half["b"], TREE["b"].astype("float32"))


def test_the_gradient_of_a_map_is_finite():
    root = jax.jit(jax.grad(lambda r: sum(jnp.sum(x) for x in r.map(jnp.sqrt))))(vb.pack([jnp.full((2, 3), 4.0)]))
    same(unpacked(root), [jnp.full((2, 3), 0.25)])
    assert not padding(root).any()


def test_norms_and_nan_in_the_padding():
    tainted = jax.tree.map(lambda x: np.where(x == 0, np.nan, x), vb.pack(MATRICES))
    assert np.isnan(padding(tainted)).all()

    @jax.jit
    def results(x):
        products = vb.batched_matmul(x, x, transpose_b=True)
        return x.norms(), x.norm(), products, products.unpack()

    norms, norm, products, members = results(tainted)
    expected = np.array([np.linalg.norm(x) for x in MATRICES])
    same(norms, expected)
    same(norm, np.linalg.norm(expected))
    same(members, [x @ x.T for x in MATRICES])
    assert not padding(products).any()


def test_products_give_ragged_arrays():
    plain = [x @ y for x, y in zip(MATRICES, RIGHT, strict=True)]

    @jax.jit
    def results(left, right, products):
        found = {
            "matmul": vb.batched_matmul(left, right),
            "a list": vb.batched_matmul(left, list(right)),
            "zeros": vb.batched_gemm(left, right, products, beta=-1.0),
            "sine": vb.batched_gemm(left, right, activation=jnp.sin),
            "gram": vb.batched_gram(left),
            "sums": vb.batched_matmul_sum(left, left, [0, 1, 2, 3], transpose_a=True),
            "into": vb.batched_gemm(left, right, into=products * jnp.nan, alpha=2.0),
        }
        assert all(isinstance(ragged, vb.RaggedArray) for ragged in found.values())
        return {name: ragged.unpack() for name, ragged in found.items()}

    expected = {
        "matmul": plain,
        "a list": plain,
        "zeros": [np.zeros(x.shape) for x in plain],
        "sine": [np.sin(x) for x in plain],
        "gram": [x @ x.T for x in MATRICES],
        "sums": [x.T @ x for x in MATRICES],
        "into": [2 * x for x in plain],
    }
    same(results(vb.pack(MATRICES), vb.pack(RIGHT), vb.pack(plain)), expected)
    assert len(vb.batched_matmul(vb.pack([]), [])) == 0


def test_newton_schulz_takes_and_gives_it():
    @jax.jit
    def results(packed, matrices):
        ours = vb.newton_schulz(packed)
        return ours, ours.unpack(), vb.newton_schulz(matrices)

    ours, members, expected = results(vb.pack(MATRICES), MATRICES)
    same(members, expected)
    assert not padding(ours).any()


def test_transformations():
    def loss(left, right):
        products = vb.batched_matmul(left, right)
        return sum(jnp.sum(jnp.square(x)) for x in products)

    left, right = vb.pack(MATRICES), vb.pack(RIGHT)
    stacked = jax.tree.map(lambda x: np.stack([x, 2 * np.asarray(x)]), left)

    @jax.jit
    def results(left, right, stacked, matrices, others):
        gradients = jax.grad(loss, (0, 1))(left, right)
        plain, expected = jax.value_and_grad(loss, (0, 1))(matrices, others)
        members = [gradient.unpack() for gradient in gradients]
        return gradients, members, expected, plain, jax.vmap(loss, (0, None))(stacked, others)

    gradients, members, expected, plain, mapped = results(left, right, stacked, MATRICES, RIGHT)
    same(members, list(expected))
    assert not any(padding(gradient).any() for gradient in gradients)
    assert jax.jit(jax.grad(loss)).lower(left, right).as_text().count("custom_call @vbgemm") == 2
    same(mapped, np.stack([plain, 4 * plain]))

    def step(carry, _):
        return carry - 0.1 * jax.grad(loss)(carry, RIGHT), carry.norm()

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

    @jax.jit
    def updated(params, gradient):
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    gradient = jax.tree.map(np.cos, jax.device_get(TREE))
    with jax.numpy_dtype_promotion("standard"):
        packed, plain = jax.jit(lambda *args: (updated(*args[:2]), updated(*args[2:])))(
            RAGGED, vb.pack(gradient), TREE, gradient
        )
    same(unpacked(packed), plain)
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


@pytest.mark.slow
def test_members_of_another_dtype():
    """jax.tree.map changes the buffer's dtype and no layout: optax does that for momenta in bfloat16."""
    single = vb.pack([x.astype("float32") for x in MATRICES])
    half = jax.tree.map(lambda x: x.astype("bfloat16"), single)
    into = (
        [np.ones((x.shape[0], 2), jnp.bfloat16) for x in MATRICES],
        [np.ones((2, x.shape[1]), jnp.bfloat16) for x in MATRICES],
    )
    for filled in (half, single.astype("bfloat16")):
        updated = jax.jit(lambda *into, filled=filled: vb.batched_matmul(*into, into=filled))(*into)
        assert updated.members == filled.members
        same([oracle.wide(x) for x in unpacked(updated)], [np.full(x.shape, 2.0) for x in MATRICES])
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

    @jax.jit
    def results(x):
        gradient = jax.grad(lambda x: vb.batched_gram(x).norm())(x)
        return x.unpack(), x.norms(), vb.batched_gram(x).unpack(), gradient, x + 0.0

    members, norms, products, gradient, added = results(left)
    same(members, expected)
    same(norms, np.array([np.linalg.norm(x) for x in expected]))
    same(products, [x @ x.T for x in expected])
    assert not padding(gradient).any()
    assert not padding(added).any()


def test_stacked_buffers_are_refused():
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), RAGGED)
    with pytest.raises(ValueError, match=r"RaggedArray: its buffer is .*: after vmap or scan, jax.vmap"):
        stacked["a"]
    with pytest.raises(ValueError, match=r"As\['a'\] doesn't fit its buffer: it is a window of"):
        vb.batched_matmul(stacked, TREE)
    same(jax.vmap(lambda x: x["a"])(stacked), jnp.stack([TREE["a"]] * 2))


def test_padding_reaches_no_result_and_no_gradient():
    """NaN and other numbers in the padding of every operand."""
    left, right = vb.pack(MATRICES), vb.pack(RIGHT)

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
        flags = [taken(x.buffer.size, tuple(x.members.layouts)) for x in (left, right)]
        tainted = [
            vb.RaggedArray(np.where(f, x.buffer, number), x.members) for x, f in zip((left, right), flags, strict=True)
        ]
        same(everything(*tainted), expected)


@pytest.mark.slow
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


@pytest.mark.slow
def test_norms_and_arithmetic_are_a_few_operations():
    """Whatever the number of members, so that XLA compiles them in less than a second."""

    def lines(count):
        packed = vb.pack([np.ones((1 + index % 5, 1 + index % 7)) for index in range(count)])
        program = jax.jit(jax.grad(lambda x: (2 * x).norm() + jnp.sum(x.norms())))
        return len(program.lower(packed).as_text().splitlines())

    assert lines(300) == lines(150)
