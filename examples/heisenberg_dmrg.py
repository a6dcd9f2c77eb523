"""The ground state of a Heisenberg chain by two-site DMRG, with block-sparse tensors.

    pip install ".[examples]"
    python examples/heisenberg_dmrg.py

Spins 1/2, open ends, H = sum of S_i . S_(i+1). The total spin along z is conserved, so that each tensor is a dict of
blocks by charge, and each contraction is one operation, `blocksparse.tensordot`. The sizes of all blocks are fixed from
the start: each pair of sites is compiled once for each direction. The energy is compared with the exact one, by sparse
diagonalisation of all states without magnetisation.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import typer
from rich.console import Console
from rich.progress import track

from jax_vbgemm import blocksparse

Tensor = dict[tuple[int, ...], jax.Array]
SPINS = (-1, 1)  # twice the spin along z, the charge of a site; that of a bond is the sum of all sites on its left
tensordot = blocksparse.tensordot


def bond_sizes(sites: int, largest: int) -> list[dict[int, int]]:
    """How many states each charge of each bond has: those that both sides can have, `largest` at most."""
    reached = [{0: 1}]
    for _ in range(sites):
        last = reached[-1]
        charges = {charge + spin for charge in last for spin in SPINS}
        reached.append({c: sum(last.get(c - spin, 0) for spin in SPINS) for c in sorted(charges)})
    return [
        {c: min(left[c], right[-c], largest) for c in left if -c in right}
        for left, right in zip(reached, reached[::-1], strict=True)
    ]


def hamiltonian() -> Tensor:
    """One site of the matrix product operator, with axes (left, bra, ket, right).

    Its bonds have three states of charge 0 (nothing so far, S_z on the left, all done) and one each where S_+ or S_- is
    on the left.
    """
    nothing, sz, done = range(3)
    blocks: dict[tuple[int, ...], np.ndarray] = {}
    for spin in SPINS:
        block = blocks[0, spin, spin, 0] = np.zeros((3, 1, 1, 3))
        block[nothing, ..., nothing] = block[done, ..., done] = 1
        block[nothing, ..., sz] = block[sz, ..., done] = spin / 2
        raised = blocks[0, spin, -spin, 2 * spin] = np.zeros((3, 1, 1, 1))
        raised[nothing] = 0.5
        lowered = blocks[2 * spin, -spin, spin, 0] = np.zeros((1, 1, 1, 3))
        lowered[..., done] = 1
    return {sector: jnp.asarray(block) for sector, block in blocks.items()}


def extended_left(left: Tensor, w: Tensor, site: Tensor) -> Tensor:
    """The environment, axes (bra, ket, operator), with one more site."""
    x = tensordot(left, site, ([1], [0]))
    x = tensordot(x, w, ([1, 2], [0, 2]))
    return tensordot(site, x, ([0, 1], [0, 2]))


def extended_right(right: Tensor, w: Tensor, site: Tensor) -> Tensor:
    x = tensordot(site, right, ([2], [1]))
    x = tensordot(x, w, ([1, 3], [2, 3]))
    return tensordot(site, x, ([2, 1], [1, 3]))


def applied(left: Tensor, w: Tensor, right: Tensor, pair: Tensor) -> Tensor:
    """The Hamiltonian times the tensor of two sites, in the basis of both environments."""
    x = tensordot(left, pair, ([1], [0]))
    x = tensordot(x, w, ([1, 2], [0, 2]))
    x = tensordot(x, w, ([4, 1], [0, 2]))
    return tensordot(x, right, ([1, 4], [1, 2]))


def dot(x: Tensor, y: Tensor) -> jax.Array:
    return tensordot(x, y, ([0, 1, 2, 3], [0, 1, 2, 3]))[()]


def normalized(x: Tensor) -> Tensor:
    norm = jnp.maximum(jnp.sqrt(dot(x, x)), 1e-300)
    return jax.tree.map(lambda block: block / norm, x)


def lowest(left: Tensor, w: Tensor, right: Tensor, pair: Tensor) -> tuple[jax.Array, Tensor]:
    """The lowest energy, and its state, in the space of the pair, the Hamiltonian times it, and twice."""
    basis = [normalized(pair)]
    images = [applied(left, w, right, basis[0])]
    for _ in range(2):
        new = normalized(images[-1])
        for known in (*basis, *basis):  # twice, for what rounding leaves
            overlap = dot(known, new)
            new = normalized(jax.tree.map(lambda x, y: x - overlap * y, new, known))  # noqa: B023
        basis.append(new)
        images.append(applied(left, w, right, new))
    energies, vectors = jnp.linalg.eigh(jnp.stack([jnp.stack([dot(x, y) for y in images]) for x in basis]))
    return energies[0], jax.tree.map(lambda *x: sum(c * b for c, b in zip(vectors[:, 0], x, strict=True)), *basis)


def split(pair: Tensor, sizes: dict[int, int], to_right: bool) -> tuple[Tensor, Tensor]:
    """Two sites of one tensor: a singular value decomposition for each charge of the bond, with the largest values."""
    first: Tensor = {}
    second: Tensor = {}
    for charge, size in sizes.items():
        rows = sorted({(q, s) for q, s, _, _ in pair if q + s == charge})
        columns = sorted({(s, r) for _, _, s, r in pair if r - s == charge})
        blocks = [[pair[row + column][:, 0, 0] for column in columns] for row in rows]
        u, values, v = jnp.linalg.svd(jnp.block(blocks), full_matrices=False)
        u, v = u[:, :size], v[:size]
        u, v = (u, values[:size, None] * v) if to_right else (u * values[:size], v)
        ends = np.cumsum([b.shape[0] for b, *_ in blocks])
        for row, part in zip(rows, jnp.split(u, ends[:-1]), strict=True):
            first[(*row, charge)] = part[:, None]
        ends = np.cumsum([b.shape[1] for b in blocks[0]])
        for column, part in zip(columns, jnp.split(v, ends[:-1], axis=1), strict=True):
            second[(charge, *column)] = part[:, None]
    return first, second


@partial(jax.jit, static_argnames=("sizes", "to_right"))
def optimized(
    left: Tensor, w: Tensor, right: Tensor, sites: tuple[Tensor, Tensor], sizes: Any, to_right: bool
) -> tuple[jax.Array, Tensor, Tensor, Tensor]:
    """The energy, both sites with the lowest, and the environment that the next pair needs."""
    energy, pair = lowest(left, w, right, tensordot(*sites, 1))
    first, second = split(pair, dict(sizes), to_right)
    environment = extended_left(left, w, first) if to_right else extended_right(right, w, second)
    return energy, first, second, environment


@partial(jax.jit, static_argnames="sizes")
def moved_left(first: Tensor, second: Tensor, sizes: Any) -> tuple[Tensor, Tensor]:
    """The same state, whose second site is orthogonal."""
    return split(normalized(tensordot(first, second, 1)), dict(sizes), to_right=False)


def exact_energy(sites: int) -> float:
    states = np.array([s for s in range(2**sites) if s.bit_count() == sites // 2])
    numbers = np.arange(len(states))
    total = scipy.sparse.csr_matrix((len(states), len(states)))
    for i in range(sites - 1):
        unequal = ((states >> i) ^ (states >> (i + 1))) & 1 == 1
        flipped = np.searchsorted(states, states[unequal] ^ (3 << i))
        off = scipy.sparse.csr_matrix((np.full(len(flipped), 0.5), (flipped, numbers[unequal])), total.shape)
        total = total + off + scipy.sparse.diags(np.where(unequal, -0.25, 0.25))
    return float(scipy.sparse.linalg.eigsh(total, k=1, which="SA")[0][0])


def main(
    sites: Annotated[int, typer.Option(help="of the chain, an even number", min=4)] = 12,
    largest: Annotated[int, typer.Option(help="number of states of a bond for each charge")] = 16,
    sweeps: Annotated[int, typer.Option(help="to the right and back")] = 3,
) -> None:
    jax.config.update("jax_enable_x64", True)
    console, rng, start = Console(), np.random.default_rng(0), time.perf_counter()
    bonds = bond_sizes(sites, largest)
    static = [tuple(bond.items()) for bond in bonds]
    w = hamiltonian()
    chain: list[Tensor] = [
        {
            (q, s, q + s): jnp.asarray(rng.standard_normal((m, 1, right[q + s])))
            for (q, m), s in itertools.product(left.items(), SPINS)
            if q + s in right
        }
        for left, right in itertools.pairwise(bonds)
    ]
    nothing, _, done = jnp.eye(3).reshape(3, 1, 1, 3)
    lefts, rights = {0: {(0, 0, 0): nothing}}, {sites: {(0, 0, 0): done}}
    for i in range(sites - 1, 0, -1):
        chain[i - 1], chain[i] = moved_left(chain[i - 1], chain[i], static[i])
        rights[i] = jax.jit(extended_right)(rights[i + 1], w, chain[i])
    turns = [(i, to_right) for to_right, order in ((True, 1), (False, -1)) for i in range(sites - 1)[::order]]
    for sweep in range(sweeps):
        for i, to_right in track(turns, f"sweep {sweep + 1}", console=console):
            energy, chain[i], chain[i + 1], environment = optimized(
                lefts[i], w, rights[i + 2], (chain[i], chain[i + 1]), static[i + 1], to_right
            )
            (lefts if to_right else rights)[i + 1] = environment
        console.print(f"sweep {sweep + 1}: energy {float(energy):.12f} after {time.perf_counter() - start:.1f} s")
    exact = exact_energy(sites)
    console.print(f"exact energy:    {exact:.12f}")
    console.print(f"error of DMRG's: {float(energy) - exact:.1e}")
    if not abs(float(energy) - exact) < 1e-5:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
