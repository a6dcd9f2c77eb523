"""Launches take the kernels for aligned rows where, and only where, all of their tiles are in whole vectors."""

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.addresses import address
from jax_vbgemm._src.matmul.aligned_tiles import ALIGNED_KERNELS
from jax_vbgemm._src.matmul.descriptors import KERNELS, pack, problem_table
from jax_vbgemm._src.matmul.primitive import Term, sizes_of
from jax_vbgemm._src.native.records import EPILOGUE
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems

H100 = device_spec("h100")
TILES = {row: catalogue_for("bfloat16", H100).by_index[row] for row in ALIGNED_KERNELS}


def kernels(shapes, tile, *, kind="bfloat16", device=H100, term=(), epilogue=False):
    """The kernels that a list of products launches, each product covered by one tile of this row."""
    addresses = []
    for i, (m, n, k) in enumerate(shapes):
        one = Term(2 * i, 2 * i + 1, i, "a" in term, "b" in term)
        lhs, rhs = ((k, m) if one.transpose_a else (m, k)), ((n, k) if one.transpose_b else (k, n))
        addresses.append(address(lhs, rhs, one, sizes_of(lhs, rhs, one)))
    table = problem_table(addresses, [(2 * i, 2 * i + 1, 2 * len(shapes) + i) for i in range(len(shapes))])
    problems = [vb.Problem(*shape, transpose_a="a" in term, transpose_b="b" in term) for shape in shapes]
    plan = plan_problems(problems, kind, device, vb.Uniform((TILES[tile].name, TILES[tile].threads)))
    epilogues = np.zeros(len(shapes), EPILOGUE) if epilogue else None
    return {KERNELS[kernel] for kernel in pack(plan, table, epilogues).launches[::3]}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "tf32"])
def test_rows_of_whole_vectors(tile, kind):
    m, n = TILES[tile].m, TILES[tile].n
    assert kernels([(m, n, 64), (m + 1, n - 8, 72), (1, 8, 8)], tile, kind=kind) == {ALIGNED_KERNELS[tile]}


@pytest.mark.parametrize(
    ("shapes", "how"),
    [
        ([(64, 64, 64), (64, 60, 64)], {}),  # rows of B and C
        ([(64, 64, 64), (64, 64, 60)], {}),  # rows of A
        ([(64, 64, 64), (64, 64, 0)], {}),  # no products
        ([(64, 64, 64)], {"term": "a"}),
        ([(64, 64, 64)], {"term": "b"}),
        ([(64, 64, 64)], {"epilogue": True}),
        ([(64, 64, 64)], {"kind": "tf32x3"}),
    ],
)
def test_all_else_takes_the_general_kernel(shapes, how):
    (tile,) = [row for row, shape in TILES.items() if (shape.m, shape.n) == (64, 64)]
    assert kernels(shapes, tile, **how) == {TILES[tile].kernel}
