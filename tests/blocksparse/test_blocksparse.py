"""`blocksparse.tensordot`: values and structure against dense tensors, copies, programs, derivatives, errors."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_except

from jax_vbgemm import blocksparse
from jax_vbgemm.blocksparse import tensordot

DTYPES = ("float32", "float64", "complex64", "complex128")
CHARGES = {"U1": (-1, 0, 2), "U1xZ2": ((0, 1), (1, 0), (1, 1))}
INDEX = st.lists(st.sampled_from([0, 1, 2, 3]), min_size=3, max_size=3)  # sizes of the charges


def blocks_of(indices, charges, dtype, seed, keep=0.6):
    """Some of the blocks of a tensor whose indices are lists of the charges' sizes."""
    rng = np.random.default_rng(seed)
    sectors = list(itertools.product(charges, repeat=len(indices)))
    kept = [sector for sector in sectors if rng.random() < keep] or sectors[:1]
    sizes = [dict(zip(charges, index, strict=True)) for index in indices]
    return {
        sector: oracle.random([size[c] for size, c in zip(sizes, sector, strict=True)], dtype, seed + i)
        for i, sector in enumerate(kept)
    }


def dense(blocks, indices, charges, like=np):
    """The tensor with zeros where it has no blocks; with like=jnp, differentiable in the blocks."""

    def part(sector):
        axis = len(sector)
        if axis < len(indices):
            return like.concatenate([part((*sector, charge)) for charge in charges], axis=axis)
        shape = [index[charges.index(c)] for index, c in zip(indices, sector, strict=True)]
        dtype = next(iter(blocks.values())).dtype
        return blocks[sector] if sector in blocks else like.zeros(shape, dtype)

    return part(())


@st.composite
def contractions(draw):
    """Indices of a and of b, and pairs of axes whose indices are one."""
    a, b = (draw(st.lists(INDEX, min_size=1, max_size=3)) for _ in range(2))
    count = draw(st.integers(0, min(len(a), len(b))))
    axes_a, axes_b = (draw(st.permutations(range(len(x))))[:count] for x in (a, b))
    for axis, other in zip(axes_a, axes_b, strict=True):
        b[other] = a[axis]
    negative = draw(st.booleans())
    return a, b, (axes_a, [axis - len(b) for axis in axes_b] if negative else axes_b)


@pytest.mark.parametrize("dtype", slow_except(DTYPES, ["complex128"]))
@pytest.mark.parametrize("group", CHARGES)
@settings(max_examples=4)
@given(work=contractions(), seed=st.integers(0, 99), implementation=st.sampled_from([None, "kernel"]))
def test_values_and_structure(dtype, group, work, seed, implementation):
    index_a, index_b, (axes_a, axes_b) = work
    charges = CHARGES[group]
    a, b = blocks_of(index_a, charges, dtype, seed), blocks_of(index_b, charges, dtype, seed + 100)
    results = jax.jit(lambda a, b: tensordot(a, b, (axes_a, axes_b), implementation=implementation))(a, b)

    axes_b = [axis % len(index_b) for axis in axes_b]
    free = [[axis for axis in range(len(x)) if axis not in axes] for x, axes in ((index_a, axes_a), (index_b, axes_b))]
    expected = {
        tuple(s[axis] for axis in free[0]) + tuple(t[axis] for axis in free[1])
        for s, t in itertools.product(a, b)
        if [s[axis] for axis in axes_a] == [t[axis] for axis in axes_b]
    }
    assert list(results) == sorted(expected)
    if not results:
        return
    indices = [index_a[axis] for axis in free[0]] + [index_b[axis] for axis in free[1]]
    found = dense({sector: oracle.wide(block) for sector, block in results.items()}, indices, charges)
    wide_a, wide_b = (
        dense({s: oracle.wide(x) for s, x in blocks.items()}, index, charges)
        for blocks, index in ((a, index_a), (b, index_b))
    )
    truth, scale = (np.tensordot(f(wide_a), f(wide_b), (axes_a, axes_b)) for f in (np.array, np.abs))
    assert {block.dtype.name for block in results.values()} == {dtype}
    assert (np.abs(found - truth) <= oracle.ROUNDING[dtype] * scale + np.finfo(dtype).smallest_subnormal).all()


SIZES = [3, 1, 4]


def example(axes_a=3, axes_b=2, dtype="float64"):
    return [blocks_of([SIZES] * n, CHARGES["U1"], dtype, n, keep=0.9) for n in (axes_a, axes_b)]


@pytest.mark.slow
def test_no_order_of_insertion_changes_the_result():
    a, b = example(2, 1, "float32")
    first = tensordot(a, b, 1)
    second = tensordot(dict(reversed(a.items())), dict(reversed(b.items())), 1)
    assert list(first) == list(second)
    assert all((first[sector] == second[sector]).all() for sector in first)


def transpositions(a, b, axes):
    program = jax.jit(lambda a, b: tensordot(a, b, axes, implementation="kernel")).lower(a, b).as_text()
    assert program.count("custom_call @vbgemm_v2") == 1
    assert "stablehlo.add" not in program
    assert "dot_general" not in program
    return [
        tuple(map(int, dims.split(", "))) for dims in re.findall(r"stablehlo.transpose .* dims = \[(.*?)\]", program)
    ]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's program")
@pytest.mark.parametrize("axes", [1, 0, ([0], [1]), ([0, 1], [0, 1]), ([2, 1], [1, 0]), ([0], [0])], ids=str)
def test_blocks_that_are_matrices_are_read_in_place(axes):
    assert transpositions(*example(), axes) == []


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's program")
def test_only_blocks_that_no_matrix_describes_are_copied():
    a, b = example()
    copied = transpositions(a, b, ([1], [0]))  # the middle axis; an axis of one entry in front or between is no axis
    needed = [s for s in a if a[s].shape[1] > 1 and a[s].shape[0] > 1 and a[s].shape[2] > 1]
    assert len(copied) == len([s for s in needed if any(t[0] == s[1] for t in b)])
    assert set(copied) == {(0, 2, 1)}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's program")
@pytest.mark.parametrize(("m", "n", "copied"), [(2, 50, "a"), (50, 2, "b")])
def test_of_two_orders_of_contracted_axes_the_one_that_copies_less(m, n, copied):
    a = {(0, charge, 0): jnp.ones((m, 3, 4)) for charge in (0, 1)}
    b = {(0, charge, 0): jnp.ones((4, 3, n)) for charge in (0, 1)}
    assert set(transpositions(a, b, ([1, 2], [1, 0]))) == {(0, 2, 1) if copied == "a" else (1, 0, 2)}


@pytest.mark.slow
def test_vmap_is_a_loop():
    a, b = example(2, 2)
    many = {sector: jnp.stack([x, 2 * x, -x]) for sector, x in a.items()}
    for in_axes, args in (
        ((0, None), (many, b)),
        ((0, 0), (many, {s: jnp.stack([x, x, 3 * x]) for s, x in b.items()})),
    ):
        mapped = jax.jit(jax.vmap(lambda a, b: tensordot(a, b, ([1], [1])), in_axes))(*args)
        for i in range(3):
            one = [
                {s: np.asarray(x)[i] for s, x in y.items()} if ax == 0 else y
                for y, ax in zip(args, in_axes, strict=True)
            ]
            expected = jax.jit(lambda a, b: tensordot(a, b, ([1], [1])))(*one)
            assert list(mapped) == list(expected)
            for sector in mapped:
                np.testing.assert_allclose(mapped[sector][i], expected[sector], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", slow_except(["float64", "complex128"], ["complex128"]))
@pytest.mark.slow
def test_derivatives_to_second_order(dtype):
    charges, axes = CHARGES["U1"], ([2, 0], [0, 1])
    a, b = example(3, 3, dtype)
    c = {sector: block for sector, block in a.items() if sector[0] != 0}  # blocks that are not there have no gradient

    def sum_of(value):
        return jnp.sum(jnp.sin(value.real) + value.imag**3) if "complex" in dtype else jnp.sum(jnp.sin(value))

    def ours(a, b):
        return sum(map(sum_of, tensordot(a, b, axes).values()))

    def through_dense(a, b):
        return sum_of(jnp.tensordot(*(dense(x, [SIZES] * 3, charges, jnp) for x in (a, b)), axes))

    def second(f):
        return lambda a, b: jax.jvp(jax.grad(f, (0, 1)), (a, b), jax.tree.map(jnp.cos, (a, b)))

    for found, expected in zip(jax.tree.leaves(jax.jit(second(ours))(c, b)),
                               jax.tree.leaves(jax.jit(second(through_dense))(c, b)), strict=True):  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_nan_reaches_the_sums_of_its_block_alone():
    a, b = example(2, 2)
    sector = next(s for s in a if a[s].size and any(t[0] == s[1] for t in b))
    a[sector] = a[sector].at[0, 0].set(jnp.nan)
    for result, block in tensordot(a, b, 1).items():
        touched = result[0] == sector[0] and (sector[1], result[1]) in b
        assert bool(jnp.isnan(block).any()) == (touched and block.size > 0)
    lonely = {**b, (9, 9): jnp.full((2, 2), jnp.nan)}
    assert not any(jnp.isnan(x).any() for x in tensordot(b, lonely, 1).values())


def test_what_is_not_there_stays_so():
    one = {(0, 1): jnp.ones((2, 3))}
    assert tensordot(one, {(0, 0): jnp.ones((2, 2))}, 1) == {}
    assert tensordot({}, one, 1) == tensordot(one, {}, 1) == {}
    (total,) = tensordot(one, one, 2).items()
    assert total[0] == ()
    assert total[1].shape == ()
    assert total[1] == 6


@pytest.mark.parametrize(
    ("a", "b", "axes", "error", "message"),
    [
        ({3: (2,)}, {(0,): (2,)}, 1, TypeError, "a has the key 3: a sector must be a tuple"),
        ({(0,): (2,)}, {(0,): (2,), (0, 1): (2, 2)}, 1, ValueError, r"b has the sectors \(0,\) and \(0, 1\)"),
        ({(0, 1): (2,)}, {(0,): (2,)}, 1, ValueError, r"a\[\(0, 1\)\] is \(2,\): .* 2 charges"),
        ({(0, 1): (2, 3), (0, 2): (4, 3)}, {(1,): (3,)}, 1, ValueError,
         r"a\[\(0, 2\)\] is \(4, 3\) but a\[\(0, 1\)\] is \(2, 3\): charge 0 of axis 0 must have one size"),
        ({(0, 1): (2, 3)}, {(1,): (4,)}, 1, ValueError,
         r"axis 1 of a and axis 0 of b are contracted, but a\[\(0, 1\)\] is \(2, 3\) and b\[\(1,\)\] is \(4,\)"),
        ({(0,): (2,), ("x",): (2,)}, {(0,): (2,)}, 1, TypeError, "sectors of a must have an order"),
        ({(0, 1): (2, 3)}, {((0, 1),): (3,)}, 1, ValueError,
         r"the sector \(0, 1\) with the charge 1, and b has \(\(0, 1\),\) with \(0, 1\): charges of both must be of"),
        ({((0, 1),): (2,)}, {((0, 1, 0),): (2,)}, 1, ValueError, r"with \(0, 1, 0\): charges of both must be"),
        ({((0,),): (2,), ((0, 1),): (2,)}, {((0,),): (2,)}, 1, ValueError, r"charges \(0,\) and \(0, 1\) of axis 0"),
        ({(0,): (2,)}, {(0,): (2,)}, 2, ValueError, "axes=2, but a has 1 axes and b has 1"),
        ({(0,): (2,)}, {(0,): (2,)}, ([0], [1]), ValueError, "axis 1 of b is out of range"),
        ({(0, 0): (2, 2)}, {(0, 0): (2, 2)}, ([0, -2], [0, 1]), ValueError, "of a name one axis twice"),
        ({(0, 0): (2, 2)}, {(0, 0): (2, 2)}, ([0, 1], [0]), ValueError, "2 axes of a but 1 of b"),
        ({(0,): (2,)}, {(0,): (2,)}, "ab", TypeError, "axes must be an integer, or a pair"),
        ({(0,): (2,)}, 5, 1, TypeError, "b must be a dict of blocks or an array of symmray that has blocks, not 5"),
        ({(0,): (2,)}, np.ones((9, 9)), 1, TypeError, r"that has blocks, not a dense array, float64\(9, 9\)"),
    ],
)  # fmt: skip
def test_errors_name_the_sector_and_the_rule(a, b, axes, error, message):
    a, b = ({s: jnp.ones(shape) for s, shape in x.items()} if isinstance(x, dict) else x for x in (a, b))
    with pytest.raises(error, match=f"tensordot: .*{message}"):
        jax.eval_shape(lambda: tensordot(a, b, axes))


def test_dense_arrays_are_described():
    with pytest.raises(TypeError, match=r"symmray that has blocks, not a dense array, float64\(30, 40\)$"):
        tensordot(jnp.ones((30, 40)), {}, 1)
    with pytest.raises(
        TypeError, match=r"a traced float64\(2,\): jit makes a dense array of an array of symmray, so pass"
    ):
        jax.eval_shape(lambda x: tensordot(x, x, 1), jnp.ones(2))


def test_dtypes_that_differ():
    a = {(0,): jnp.ones(2), (1,): jnp.ones(2, "float32")}
    with pytest.raises(ValueError, match=r"a\[\(1,\)\] is float32 but a\[\(0,\)\] is float64: .* must have one dtype"):
        tensordot(a, a, 1)
    one, other = {(0,): jnp.ones(2, "float32")}, {(0,): jnp.ones(2)}
    with pytest.raises(ValueError, match="a is float32 but b is float64"):  # promotion is strict in the tests
        tensordot(one, other, 1)
    with jax.numpy_dtype_promotion("standard"):
        assert tensordot(one, other, 1)[()].dtype == jnp.float64


def symmray_arrays(symmetry, fermionic, seed, rank=3, count=2):
    """Two arrays with `count` indices in common, some of them odd, with signs not yet multiplied in."""
    symmray = pytest.importorskip("symmray")
    rng = np.random.default_rng(seed)
    odd = {"U1": 1, "Z2": 1, "U1U1": (1, 0), "Z2Z2": (1, 0)}[symmetry]
    kind = getattr(symmray, f"{symmetry}{'Fermionic' * fermionic}Array")
    charges = [(0, 0), (1, 0), (0, 1)] if isinstance(odd, tuple) else [0, 1]

    def index():
        return symmray.BlockIndex({c: int(rng.integers(1, 4)) for c in charges}, bool(rng.integers(2)))

    def array(indices, charge, label):
        extra = {"charge": odd} if charge else {}
        x = kind.random(tuple(indices), seed=int(rng.integers(99)), **extra, **({"label": label} if fermionic else {}))
        return x.randomize_phases(int(rng.integers(99))) if fermionic else x

    a = array([index() for _ in range(rank)], seed % 2, 1)
    axes = [rng.permutation(rank)[:count].tolist() for _ in range(2)]
    indices = [index() for _ in range(rank)]
    for axis, other in zip(*axes, strict=True):
        indices[other] = a.indices[axis].conj()
    return a, array(indices, seed % 3 == 1, 2), axes


def contracted_in_jit(a, b, axes):
    """The contraction of two NumPy arrays of symmray, with blocks as inputs and outputs of one program."""
    known = {}

    def run(x, y):
        known["result"] = tensordot(a.copy_with(blocks=x), b.copy_with(blocks=y), axes)
        return getattr(known["result"], "blocks", known["result"])

    blocks = jax.tree.map(np.asarray, jax.jit(run)(dict(a.blocks), dict(b.blocks)))
    return known["result"].copy_with(blocks=blocks) if isinstance(blocks, dict) else blocks


SYMMETRIES, CONTRACTIONS = ["U1", "Z2", "U1U1", "Z2Z2"], [(0, 0), (1, 1), (2, 7), (2, 3), (2, 4)]
GRID = itertools.product(SYMMETRIES, [False, True], range(len(CONTRACTIONS)))
# By default each symmetry with each statistics, and each contraction with some of them.
DEFAULT = [(symmetry, bool(odd), (2 * i + odd) % 5) for i, symmetry in enumerate(SYMMETRIES) for odd in (0, 1)]
DEFAULT += [(symmetry, bool(odd), (2 * i + odd + 2) % 5) for i, symmetry in enumerate(SYMMETRIES) for odd in (0, 1)]


@pytest.mark.parametrize(("symmetry", "fermionic", "contraction"), slow_except(GRID, DEFAULT))
def test_equals_symmray(symmetry, fermionic, contraction):
    count, seed = CONTRACTIONS[contraction]
    a, b, axes = symmray_arrays(symmetry, fermionic, seed, count=count)
    if not (a.num_blocks and b.num_blocks):
        pytest.fail("no blocks to contract")
    expected = a.tensordot(b, axes, mode="blockwise", preserve_array=True)
    found = contracted_in_jit(a, b, axes)
    found.check()
    assert set(found.sectors) == set(expected.sectors)
    assert [x.hashkey() for x in found.indices] == [x.hashkey() for x in expected.indices]
    assert found.charge == expected.charge
    assert not fermionic or found.dummy_modes == expected.dummy_modes
    assert found.allclose(expected)


@pytest.mark.parametrize("fermionic", [False, True])
def test_a_scalar_equals_symmrays(fermionic):
    a, b, axes = symmray_arrays("U1", fermionic, 0, rank=2)
    assert contracted_in_jit(a, b, axes) == pytest.approx(a.tensordot(b, axes))
    nothing = a.copy_with(blocks={})
    assert contracted_in_jit(nothing, b, axes) == 0


@pytest.mark.parametrize("symmetry", ["Z2", "Z2Z2"])
def test_legs_of_one_direction(symmetry):
    """Each charge of these groups is its own opposite."""
    a, _, _ = symmray_arrays(symmetry, False, 1)
    axes = ([0, 2], [0, 2])
    expected = a.tensordot(a, axes, mode="blockwise", preserve_array=True)
    found = contracted_in_jit(a, a, axes)
    assert found.allclose(expected)
    assert [x.hashkey() for x in found.indices] == [x.hashkey() for x in expected.indices]
    np.testing.assert_allclose(found.to_dense(), np.tensordot(a.to_dense(), a.to_dense(), axes))
    fermions, _, _ = symmray_arrays(symmetry, True, 1)
    with pytest.raises(ValueError, match="are contracted, but both are"):  # its sign would be arbitrary
        tensordot(fermions, fermions, axes)


def test_a_symmray_array_through_jit():
    a, b, axes = symmray_arrays("Z2", False, 1)
    with pytest.raises(TypeError, match=r"not a traced float64\(.*\): jit makes a dense array .*, so pass its blocks"):
        jax.jit(lambda a: tensordot(a, b, axes))(a)


def test_arrays_that_do_not_fit():
    a, b, axes = symmray_arrays("U1", False, 1)
    with pytest.raises(ValueError, match="are contracted, but both are"):
        tensordot(a, b.conj(), axes)
    with pytest.raises(TypeError, match=r"a is U1Array but b is dict: both must be of one kind"):
        tensordot(a, {}, axes)
    for other in (symmray_arrays("Z2", False, 1)[1], symmray_arrays("U1", True, 1)[1]):
        with pytest.raises(TypeError, match="must have one symmetry and statistics"):
            tensordot(a, other, axes)
    flat = pytest.importorskip("symmray").utils.get_rand(
        "Z2", (4, 4), flat=True, subsizes="equal"
    )  # one array of stacked blocks
    with pytest.raises(TypeError, match="an array of symmray that has blocks"):
        tensordot(flat, flat, 1)


def test_is_public():
    assert blocksparse.__all__ == ["BlockArray", "einsum", "pack", "tensordot"]
