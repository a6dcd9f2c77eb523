"""Descriptors of sums: read as the kernels read them, in NumPy, their tiles add up to the sums of products."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.addresses import address
from jax_vbgemm._src.matmul.descriptors import pack, problem_table
from jax_vbgemm._src.matmul.primitive import Term, sizes_of
from jax_vbgemm._src.native.records import KEEP_ACCUMULATORS, READY_TILE, SPLIT_TILE
from jax_vbgemm._src.planner import device_spec, plan_problems
from jax_vbgemm._src.planner.tiles.pieces import count_pieces

SUMS = st.lists(
    st.tuples(
        st.sampled_from([1, 16, 70, 200]), st.sampled_from([1, 9, 64, 130]), st.sampled_from([1, 3]),
        st.lists(st.sampled_from([1, 8, 33, 200, 9000]), min_size=1, max_size=5)
        | st.tuples(st.sampled_from([8, 33, 1000]), st.integers(2, 5)).map(lambda x: [x[0]] * x[1]),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


def described(sums, device, kind, planner="auto"):
    """The plan, the table and the descriptors of sums (m, n, batch, depths) over random operands.

    On GPUs sums of equal depths are planned as batches of products.
    """
    rng = np.random.default_rng(0)
    sizes, addresses, buffers, owner, operands = [], [], [], [], []
    num_operands = 2 * sum(len(depths) for *_, depths in sums)
    for index, (m, n, batch, depths) in enumerate(sums):
        for k in depths:
            lhs, rhs = (batch, m, k), (n, k)
            term = Term(0, 1, 0, False, True)
            sizes.append(sizes_of(lhs, rhs, term))
            addresses.append(address(lhs, rhs, term, sizes[-1]))
            buffers.append((len(operands), len(operands) + 1, num_operands + index))
            operands += [rng.integers(-4, 5, lhs), rng.integers(-4, 5, rhs)]
            owner.append(index)
    table = problem_table(addresses, buffers)
    terms = [len(depths) if device != "cpu" and len(set(depths)) == 1 else 1 for *_, depths in sums]
    problems = [
        vb.Problem(m, n, sum(depths) // count, batch * count, False, True)
        for (m, n, batch, depths), count in zip(sums, terms, strict=True)
    ]
    plan = plan_problems(problems, kind, device_spec(device), planner)
    assert plan.predicted_seconds > 0
    return plan, table, pack(plan, table, None, np.array(owner), np.array(terms)), operands, np.array(owner)


def tables(table, descriptors):
    end = descriptors.num_tiles * READY_TILE.itemsize // 4
    words = descriptors.words
    splits = words[end + table.nbytes // 4 :][: descriptors.num_splits * SPLIT_TILE.itemsize // 4].view(SPLIT_TILE)
    blocks = words[end + (table.nbytes + splits.nbytes) // 4 :]
    return words[:end].view(READY_TILE), splits, blocks if len(blocks) else np.arange(descriptors.num_tiles + 1)


def matrix(flat, part, rows, cols):
    return flat[
        part["offset"] + np.add.outer(np.arange(rows) * part["row_stride"], np.arange(cols) * part["col_stride"])
    ]


def run(sums, table, descriptors, operands):
    """The results by the rules of the kernels; asserts that every element is computed once."""
    tiles, splits, block_first = tables(table, descriptors)
    results = [np.zeros(batch * m * n, np.int64) for m, n, batch, _ in sums]
    written = [np.zeros_like(result) for result in results]
    sums_of_slices = np.zeros(descriptors.num_sums, np.int64)

    def write(part, values):
        out = part["buffer"] - len(operands)
        places = matrix(np.arange(len(results[out])), part, *values.shape)
        results[out][places] = values
        written[out][places] += 1

    for begin, end in itertools.pairwise(block_first):
        total = 0
        for tile in tiles[begin:end]:
            rows, cols, depth = (int(tile[x]) for x in ("rows", "cols", "depth"))
            a = matrix(operands[tile["a"]["buffer"]].ravel(), tile["a"], rows, depth)
            b = matrix(operands[tile["b"]["buffer"]].ravel(), tile["b"], depth, cols)
            total = total + a @ b
            if tile["c"]["buffer"] == KEEP_ACCUMULATORS:
                continue
            if tile["c"]["buffer"] == -1:
                at = np.add.outer(np.arange(rows) * tile["c"]["row_stride"], np.arange(cols)) + tile["c"]["offset"]
                sums_of_slices[at] = total
            else:
                write(tile["c"], total)
            total = 0
        assert np.array_equal(total, 0), "a block ends in the middle of a tile"
    for split in splits:
        rows, cols = int(split["rows"]), int(split["cols"])
        at = np.add.outer(np.arange(rows) * split["pitch"], np.arange(cols)) + split["first"]
        write(split["c"], sum(sums_of_slices[at + slice * split["slice_stride"]] for slice in range(split["slices"])))
    assert all((count == 1).all() for count in written)
    return results


@pytest.mark.parametrize(
    ("device", "kind", "planner"),
    slow_except(
        [("cpu", "float32", "auto"), ("h100", "float32", "auto"), ("h100", "bfloat16", "coordinated"),
         ("h100", "float64", "sort_split"), ("mi300x", "float32", "auto")],
        [("h100", "bfloat16", "coordinated"), ("mi300x", "float32", "auto")],
    ),
)  # fmt: skip
@given(sums=SUMS)
def test_tiles_add_up_to_the_sums(device, kind, planner, sums):
    plan, table, descriptors, operands, owner = described(sums, device, kind, planner)
    if descriptors.num_runs:  # no sum of more than one product
        assert len(owner) == len(sums)
        return
    assert descriptors.num_tiles == count_pieces(plan.runs, owner, table["k"], len(sums))
    blocks = descriptors.launches.reshape(-1, 3).tolist()
    if device != "cpu":
        assert sum(count for *_, count in blocks) == descriptors.num_blocks
        assert [first for _, first, _ in blocks] == np.cumsum([0, *(count for *_, count in blocks[:-1])]).tolist()
    results = run(sums, table, descriptors, operands)
    for index, (m, n, batch, _) in enumerate(sums):
        products = [2 * i for i in np.flatnonzero(owner == index)]
        expected = sum(operands[i] @ operands[i + 1].T for i in products)
        np.testing.assert_array_equal(results[index].reshape(batch, m, n), expected)


def test_a_core_goes_on_from_one_product_to_the_next():
    _, table, descriptors, _, _ = described([(70, 9, 1, [8, 33, 8])], "cpu", "float32")
    tiles, splits, _ = tables(table, descriptors)
    assert len(splits) == descriptors.num_sums == 0
    assert descriptors.num_blocks * 3 == len(tiles)
    assert (tiles["c"]["buffer"].reshape(-1, 3)[:, :2] == KEEP_ACCUMULATORS).all()


def test_on_a_gpu_each_products_tile_is_a_block():
    plan, table, descriptors, _, _ = described([(70, 9, 1, [8, 33, 8]), (16, 16, 1, [8])], "h100", "float32")
    tiles, splits, _ = tables(table, descriptors)
    assert descriptors.num_blocks == len(tiles)
    assert (tiles["c"]["buffer"] != KEEP_ACCUMULATORS).all()
    assert set(splits["slices"].tolist()) == {3}
    assert set(splits["problem"].tolist()) == {0}
    assert plan.problems[0].k == 49


def test_a_users_planner_may_give_the_matrices_of_a_batch_different_tiles():
    """To it, a sum is one product with a long K, also where our planners see a batch of products."""
    seen = []

    def alternating(problems, device, catalogue):
        (problem,) = problems
        seen.append((problem.k, problem.batch))
        shapes = [catalogue.find("small", 128), catalogue.find("large", 128)]
        blocks = [
            [vb.Tile(0, batch, row, col, 0, problem.k, shapes[batch % 2].key)]
            for batch in range(problem.batch)
            for row in range(0, problem.m, shapes[batch % 2].m)
            for col in range(0, problem.n, shapes[batch % 2].n)
        ]
        return vb.Plan.from_blocks(problems, device, catalogue, planner="alternating", blocks=blocks)

    A, B = jnp.ones((2, 70, 128), jnp.float32), jnp.ones((2, 128, 90), jnp.float32)

    def total(A, B):
        return vb.batched_matmul_sum([A] * 3, [B] * 3, [0] * 3, planner=alternating, precision="highest")

    with vb.target("h100"):
        export.export(jax.jit(total), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(A, B)
    assert seen == [(384, 2)]
