"""`BlockArray`: windows of one buffer as operands and results, permuted axes, programs, derivatives, vmap, symmray."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_vbgemm import blocksparse
from jax_vbgemm._src.blocksparse.block_array import Block
from jax_vbgemm.blocksparse import einsum, pack, tensordot

SIZES = {-1: 3, 0: 5, 1: 4}


def blocks_of(ndim, seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    sectors = [sector for sector in itertools.product(SIZES, repeat=ndim) if abs(sum(sector)) <= 1]
    shapes = {sector: [SIZES[charge] for charge in sector] for sector in sectors}
    turn = np.exp(1j) if np.dtype(dtype).kind == "c" else 1
    return {s: jax.device_put((turn * rng.standard_normal(shape)).astype(dtype)) for s, shape in shapes.items()}


@functools.partial(jax.jit, static_argnums=1)
def dense(blocks, ndim):
    """The dense tensor; differentiable."""
    blocks = blocks.unpack() if isinstance(blocks, blocksparse.BlockArray) else blocks
    at = {charge: slice(first, first + SIZES[charge]) for charge, first in zip(SIZES, (0, 3, 8), strict=True)}
    total = jnp.zeros((12,) * ndim)
    for sector, block in blocks.items():
        total = total.at[tuple(at[charge] for charge in sector)].set(block)
    return total


def chain(a, b, c, tensordot=tensordot, transpose=lambda x, axes: x.transpose(axes)):
    """Contracted axes in the middle, at both ends and in opposite order, and a permuted result."""
    x = tensordot(a, b, ([1], [0]))
    y = transpose(tensordot(x, c, ([2], [0])), (3, 0, 2, 1))
    return tensordot(y, a, ([1, 2], [2, 1]))


by_kernel = functools.partial(tensordot, implementation="kernel")


@pytest.fixture(scope="module")
def tensors():
    return blocks_of(3, 0), blocks_of(3, 1), blocks_of(2, 2)


def test_a_chain_equals_the_dense_one_and_is_one_call_for_each_product(tensors):
    packed = tuple(map(pack, tensors))
    compiled = jax.jit(lambda *x: chain(*x, by_kernel)).lower(*packed)
    of_dense = jax.jit(lambda *x: chain(*x, jnp.tensordot, jnp.transpose))
    expected = of_dense(*(dense(x, len(x.sectors[0])) for x in packed))
    found = compiled.compile()(*packed)
    np.testing.assert_allclose(dense(found, 3), expected, rtol=1e-11, atol=1e-11)
    if jax.default_backend() != "cpu":
        return
    program = compiled.as_text()
    assert program.count("custom_call @vbgemm_v2") == 3
    assert not re.search("stablehlo.(transpose|concatenate|slice|dot_general|dynamic_update_slice)", program)
    assert program.count("stablehlo.gather") <= 2  # of tensors whose contracted axes are apart


def test_gradients_and_directions_are_those_of_the_dense_tensors(tensors):
    packed = tuple(map(pack, tensors))
    directions = jax.tree.map(jnp.cos, packed)

    def loss(*x):
        return jnp.sum(jnp.sin(chain(*x, by_kernel).buffer))

    def of_dense(*x):
        return jnp.sum(
            jnp.sin(chain(*(dense(y, n) for y, n in zip(x, (3, 3, 2), strict=True)), jnp.tensordot, jnp.transpose))
        )

    def both(f):
        return jax.jit(lambda x, d: jax.jvp(jax.grad(f, (0, 1, 2)), x, d))

    for found, expected in zip(
        jax.tree.leaves(both(loss)(packed, directions)),
        jax.tree.leaves(both(of_dense)(packed, directions)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_vmap_is_a_loop():
    a, b = pack(blocks_of(3, 0)), pack(blocks_of(2, 1))
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x, -x]), a)

    def f(a, b):
        return by_kernel(a, b, ([1], [0])).buffer

    found = jax.jit(jax.vmap(f, (0, None)))(many, b)
    np.testing.assert_allclose(found, f(a, b)[None] * jnp.array([[1.0], [2], [-1]]), rtol=1e-12)
    with pytest.raises(ValueError, match=r"its buffer is \(3, .*jax.vmap a function of the BlockArray"):
        many.unpack()


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_pack_and_unpack(dtype):
    blocks = blocks_of(3, 4, dtype)

    @jax.jit
    def parts(blocks):
        packed = pack(dict(reversed(blocks.items())))
        assert packed.dtype == dtype
        assert packed.buffer.size == sum(x.size for x in blocks.values())
        assert list(packed) == list(packed.unpack()) == sorted(blocks)
        turned = packed.transpose((2, 0, 1))
        assert turned.buffer is packed.buffer
        turned_back = pack(turned).transpose((1, 2, 0))
        single = {sector: packed[sector].dense() for sector in packed}
        return packed, single, *(x.unpack() for x in (packed, turned, turned_back, packed.conj()))

    packed, single, unpacked, turned, turned_back, conjugate = jax.device_get(parts(blocks))
    for sector, block in jax.device_get(blocks).items():
        np.testing.assert_array_equal(unpacked[sector], block)
        np.testing.assert_array_equal(single[sector], block)
        np.testing.assert_array_equal(turned[sector[2], sector[0], sector[1]], block.transpose(2, 0, 1))
        np.testing.assert_array_equal(turned_back[sector], block)
        np.testing.assert_array_equal(conjugate[sector], block.conj())
    assert len(jax.tree.leaves(packed)) == 1


def test_blocks_that_xla_computes_are_in_the_buffer(tensors):
    a, _, c = tensors

    @jax.jit
    def products(a, c):
        many = tensordot(pack(a), c, 1, implementation="xla"), tensordot(a, c, 1, packed=True)
        assert all(each.buffer.ndim == 1 for each in many)
        blocks = [{sector: each[sector].dense() for sector in each} for each in many]
        return tensordot(a, c, 1, implementation="kernel"), *blocks

    expected, *many = products(a, c)
    for found in many:
        for sector, block in expected.items():
            np.testing.assert_allclose(found[sector], block, rtol=1e-12)
    assert len(pack({})) == len(tensordot(pack({}), pack(a), 1)) == 0


def test_a_block_is_an_array_under_arithmetic():
    block = pack({(0,): jnp.arange(3.0)})[0,]
    for found in (2 * block - 1, jnp.add(block, block) - 1, block + block - 1, -(1 - 2 * block)):
        np.testing.assert_array_equal(found, [-1, 1, 3])


@pytest.mark.parametrize("equation", ["abc,cd->abd", "abc,cd->dba", "abc,dc", "abc,da->cdb", "abc,cab->", "ab,ab"])
def test_einsum_equals_the_dense_one(equation):
    a, b = (blocks_of(len(labels), i) for i, labels in enumerate(equation.split("->")[0].split(",")))
    expected = jnp.einsum(equation, *(dense(x, len(next(iter(x)))) for x in (a, b)))
    found = einsum(equation, a, b), einsum(equation, pack(a), pack(b), implementation="kernel").unpack()
    for x in found:
        np.testing.assert_allclose(dense(x, expected.ndim), expected, rtol=1e-11, atol=1e-11)
        assert list(x) == sorted(x)


@pytest.mark.parametrize("modulus", [3, (3, None)])
def test_charges_modulo_n(modulus):
    """Written with other representatives, the tensors are the same."""
    many = (0, 1, 2) if modulus == 3 else ((0, 0), (1, 0), (2, 1))
    a, b = ({(p, q): jnp.full((2 + i, 2 + j), 1.0 + i - j + s) for i, p in enumerate(many) for j, q in enumerate(many)}
            for s in (0, 7))  # fmt: skip

    def shifted(charge):
        return charge - 6 if modulus == 3 else (charge[0] + 3, charge[1])

    moved = {(p, shifted(q)): x for (p, q), x in a.items()}
    expected, found = einsum("ab,bc", a, b), einsum("ab,bc", moved, b, modulus=modulus)
    assert list(found) == list(expected)
    for sector, block in expected.items():
        np.testing.assert_allclose(found[sector], block)
    assert einsum("ab,bc", moved, b) == {} or modulus != 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: einsum("ab,bc->ac", a, a), ValueError, r"einsum: 'ab,bc->ac' gives a 2 axes, but it has 1"),
        (lambda a: einsum("a->a", a, a), ValueError, "names 1 tensors, but there are two"),
        (lambda a: einsum("aa,ab->b", a, a), ValueError, "a has the label 'a' twice"),
        (lambda a: einsum("a,a->a", a, a), ValueError, "a, b and the result have the label 'a'"),
        (lambda a: einsum("a,b->a", a, a), ValueError, "b alone has the label 'b'"),
        (lambda a: einsum("a,a->c", a, a), ValueError, "the label 'c', which neither a nor b has"),
        (lambda a: einsum("a,1", a, a), ValueError, "'1' is not a label"),
        (lambda a: einsum(a, a, a), TypeError, "equation must be a string"),
        (lambda a: einsum("a,a", a, {(0,): jnp.ones(2), (1,): jnp.ones(4)}), ValueError,
         r"einsum: axis 0 of a and axis 0 of b .* must have one size, not 3 and 4 \(the sizes of charges are "
         r"\{0: 2, 1: 3\} and \{0: 2, 1: 4\}\)"),
        (lambda a: tensordot(a, a, 1, modulus=1), ValueError, r"a has the sectors \(0,\) and \(1,\), which are one"),
        (lambda a: tensordot(a, a, 1, modulus=(2, 3)), TypeError, r"the sector \(0,\), whose charges must be integers"),
        (lambda a: tensordot(a, a, 1, modulus=0), ValueError, "modulus is 0: it must be positive"),
        (lambda a: tensordot(a, a, 1, modulus=0.5), TypeError, "modulus must be an integer, None or a tuple"),
        (lambda a: pack(a).transpose((1,)), ValueError, r"axes \(1,\) are not a permutation of 0 to 0"),
        (lambda a: pack(3), TypeError, "pack: blocks must be a dict of blocks or an array of symmray"),
    ],
)  # fmt: skip
def test_errors_name_the_tensor_and_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call({(0,): jnp.ones(2), (1,): jnp.ones(3)})


def fermions(symmetry, seed):
    """Two odd arrays with signs, and one more, of which each has two axes in common with the next."""
    symmray = pytest.importorskip("symmray")
    rng = np.random.default_rng(seed)
    index = [symmray.BlockIndex({0: 2, 1: 3}, bool(rng.integers(2))) for _ in range(5)]
    kind = getattr(symmray, f"{symmetry}FermionicArray")
    a = kind.random(index[:4], seed=1, charge=1, label=1)
    b = kind.random((index[4], index[1].conj(), index[3].conj()), seed=2, label=2)
    c = kind.random((index[2].conj(), index[4].conj()), seed=3, charge=1, label=3)
    return [x.randomize_phases(seed + i) for i, x in enumerate((a, b, c))]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("symmetry", ["U1", "Z2"])
def test_fermions_from_buffer_to_buffer(symmetry, seed):
    a, b, c = fermions(symmetry, seed)
    x = a.tensordot(b, ([1, 3], [1, 2])).transpose((2, 0, 1))
    expected = x.tensordot(c, ([0, 2], [1, 0]))
    kept = {}

    def run(*blocks):
        p, q, r = (pack(x.copy_with(blocks=y)) for x, y in zip((a, b, c), blocks, strict=True))
        y = einsum("abcd,ebd->eac", p, q, implementation="kernel")
        assert all(isinstance(block, Block) for block in y.blocks.values())
        kept["result"] = tensordot(y, r, ([0, 2], [1, 0]), implementation="kernel")
        return {sector: block.dense() for sector, block in kept["result"].blocks.items()}

    lowered = jax.jit(run).lower(*(jax.tree.map(jnp.asarray, dict(x.blocks)) for x in (a, b, c)))
    assert lowered.as_text().count("stablehlo.negate") <= 3  # of whole buffers, not of blocks
    found = kept["result"].copy_with(blocks=jax.tree.map(np.asarray, lowered.compile()(a.blocks, b.blocks, c.blocks)))
    found.check()
    assert found.charge == expected.charge
    assert found.dummy_modes == expected.dummy_modes
    assert found.allclose(expected)
    with pytest.raises(ValueError, match="modulus is 2, but arrays of symmray know their group"):
        tensordot(a, b, ([1, 3], [1, 2]), modulus=2)
