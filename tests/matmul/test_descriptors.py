"""Descriptors for a GPU, made and read without one: each tile record addresses the right parts of the operands."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import FUNCTIONS, activation_number
from jax_vbgemm._src.matmul.addresses import address
from jax_vbgemm._src.matmul.descriptors import pack, problem_table
from jax_vbgemm._src.matmul.primitive import Term, sizes_of
from jax_vbgemm._src.native.records import EPILOGUE, READY_TILE, RUN, SPLIT_TILE
from jax_vbgemm._src.planner import device_spec, plan_problems
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES

H100 = device_spec("h100")
BATCHES = st.sampled_from([((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 1), (2, 3)), ((), (4,)), ((5, 1, 2), (1, 2))])
SIZE = st.sampled_from([1, 15, 16, 17, 64, 131])


def packed(lhs, rhs, term, planner="auto"):
    sizes = sizes_of(lhs, rhs, term)
    where = address(lhs, rhs, term, sizes)
    if where is None:
        return None
    table = problem_table([where], [(0, 1, 2)])
    plan = plan_problems([vb.Problem(sizes.m, sizes.n, sizes.k, where.batch)], "float32", H100, planner)
    return sizes, table, pack(plan, table)


def part_of(flat, part, rows, cols):
    at = part["offset"] + np.add.outer(np.arange(rows) * part["row_stride"], np.arange(cols) * part["col_stride"])
    return flat[at]


def tiles_of(table, descriptors):
    """The ready tiles and the split tiles of a call without epilogues."""
    end = descriptors.num_tiles * READY_TILE.itemsize // 4
    splits = descriptors.words[end + table.nbytes // 4 :][: descriptors.num_splits * SPLIT_TILE.itemsize // 4]
    return descriptors.words[:end].view(READY_TILE), splits.view(SPLIT_TILE)


@given(
    BATCHES, SIZE, SIZE, SIZE, st.booleans(), st.booleans(), st.sampled_from(["auto", "load_balanced", "coordinated"])
)
def test_ready_tiles_find_their_parts(batches, m, n, k, transpose_a, transpose_b, planner):
    lhs = (*batches[0], *((k, m) if transpose_a else (m, k)))
    rhs = (*batches[1], *((n, k) if transpose_b else (k, n)))
    made = packed(lhs, rhs, Term(0, 1, 0, transpose_a, transpose_b), planner)
    if made is None:
        return
    sizes, table, descriptors = made
    assert descriptors.num_runs == 0
    tiles, _ = tiles_of(table, descriptors)
    a, b = np.arange(np.prod(lhs)), np.arange(np.prod(rhs))
    A, B = a.reshape(lhs), b.reshape(rhs)
    A = np.broadcast_to(A.swapaxes(-1, -2) if transpose_a else A, (*sizes.batch, m, k)).reshape(-1, m, k)
    B = np.broadcast_to(B.swapaxes(-1, -2) if transpose_b else B, (*sizes.batch, k, n)).reshape(-1, k, n)
    written = np.zeros(len(A) * m * n, int)
    for tile in tiles:
        batch, row, col, rows, cols, depth = (int(tile[x]) for x in ("batch", "row", "col", "rows", "cols", "depth"))
        assert depth == k
        np.testing.assert_array_equal(part_of(a, tile["a"], rows, depth), A[batch, row : row + rows])
        np.testing.assert_array_equal(part_of(b, tile["b"], depth, cols), B[batch, :, col : col + cols])
        written[part_of(np.arange(len(written)), tile["c"], rows, cols)] += 1
        assert [tile[x]["buffer"] for x in "abc"] == [0, 1, 2]
    assert (written == 1).all()


SPLIT_K = st.tuples(
    st.integers(1, 200), st.integers(1, 200), st.integers(0, 40_000), st.integers(1, 3)
)  # few elements of C, for long K


@given(st.lists(SPLIT_K, min_size=1, max_size=3), st.sampled_from(["float32", "tf32", "bfloat16", "complex128"]))
def test_slices_of_a_place_have_slots_of_their_own_and_all_of_its_k(problems, kind):
    problems = [vb.Problem(*problem) for problem in problems]
    plan = plan_problems(problems, kind, H100, "auto")
    plan.validate()
    terms = [sizes_of((p.batch, p.m, p.k), (p.batch, p.k, p.n), Term(0, 1, 0)) for p in problems]
    where = [
        address((p.batch, p.m, p.k), (p.batch, p.k, p.n), Term(0, 1, 0), size)
        for p, size in zip(problems, terms, strict=True)
    ]
    table = problem_table(where, [(2 * i, 2 * i + 1, 2 * len(problems) + i) for i in range(len(problems))])
    descriptors = pack(plan, table)
    if descriptors.num_runs:
        assert descriptors.num_splits == descriptors.num_sums == 0
        return
    tiles, splits = tiles_of(table, descriptors)
    used = np.zeros(descriptors.num_sums, int)  # how often an accumulator is written
    depths: dict[int, int] = {}  # of the tile whose sums begin there
    for tile in tiles:
        problem = problems[tile["problem"]]
        if tile["c"]["buffer"] >= 0:
            assert tile["depth"] == problem.k
            continue
        shape = plan.catalogue.by_index[int(tile["tile_id"])]
        c = tile["c"]
        assert (c["row_stride"], c["col_stride"], c["buffer"]) == (shape.n, 1, -1)
        used[int(c["offset"]) :][: shape.m * shape.n] += 1
        depths[int(c["offset"])] = int(tile["depth"])
        row_of_a = (tile["batch"] * problem.m + tile["row"]) * problem.k
        assert row_of_a <= tile["a"]["offset"] <= row_of_a + problem.k - tile["depth"]
    assert (used == 1).all()
    for split in splits:
        first, stride, slices = (int(split[x]) for x in ("first", "slice_stride", "slices"))
        problem = problems[split["problem"]]
        assert slices > 1
        assert sum(depths.pop(first + slice * stride) for slice in range(slices)) == problem.k
        assert split["c"]["offset"] == (split["batch"] * problem.m + split["row"]) * problem.n + split["col"]
    assert not depths


def test_tiles_of_different_shapes_cannot_share_the_k_of_an_element():
    def uneven(problems, device, catalogue):
        tiles = [vb.Tile(0, 0, row, col, 0, 8, "small") for row in (0, 16) for col in (0, 16)]
        blocks = [[tile] for tile in [*tiles, vb.Tile(0, 0, 0, 0, 8, 20, "medium")]]
        return vb.Plan.from_blocks(problems, device, catalogue, planner="uneven", blocks=blocks)

    with pytest.raises(ValueError, match=r"problems\[0\] at row 0, col 0 from k 8 on continues no tile that ends"):
        packed((32, 20), (20, 32), Term(0, 1, 0), uneven)


def test_every_activation_of_the_kernels_has_a_reference():
    assert tuple(FUNCTIONS) == vb.ACTIVATIONS
    assert [activation_number(name) for name in (None, *vb.ACTIVATIONS)] == list(range(len(vb.ACTIVATIONS) + 1))


def test_epilogues_count_where_tiles_are_made_ready():
    count = 3000
    size = sizes_of((8, 8), (8, 8), Term(0, 1, 0))
    table = problem_table([address((8, 8), (8, 8), Term(0, 1, 0), size)] * count, [(0, 0, 1)] * count)
    plan = plan_problems([vb.Problem(8, 8, 8)] * count, "float32", H100)
    plain, finished = pack(plan, table), pack(plan, table, np.zeros(count, EPILOGUE))
    assert (plain.num_runs, finished.num_runs) == (0, count)
    assert plain.words.nbytes <= MAX_BYTES < finished.words.nbytes + count * (READY_TILE.itemsize - RUN.itemsize)


@pytest.mark.parametrize("device", ["h100", "mi300x"])
@pytest.mark.parametrize("rounds", [2, 8])
def test_a_last_round_is_split_only_where_descriptors_have_room(device, rounds):
    spec = device_spec(device)
    for resident in (2, 4, 6, 8):
        slots = spec.units * resident
        batch, term = rounds * slots + slots // 8, Term(0, 1, 0)
        plan, size = plan_problems([(8, 8, 1000, batch)], "float32", spec), sizes_of((batch, 8, 1000), (1000, 8), term)
        table = problem_table([address((batch, 8, 1000), (1000, 8), term, size)], [(0, 0, 1)])
        assert pack(plan, table).words.nbytes <= MAX_BYTES


def test_a_call_of_very_many_tiles_keeps_runs():
    _, table, descriptors = packed((100000, 8, 8), (100000, 8, 8), Term(0, 1, 0))
    assert descriptors.num_tiles == 100000
    assert 0 < descriptors.num_runs * RUN.itemsize < MAX_BYTES
    assert len(descriptors.words) * 4 == table.nbytes + descriptors.num_runs * RUN.itemsize


def symmetric_call(n, planner="auto", k=64, device=H100, kind="bfloat16"):
    size = sizes_of((n, k), (n, k), Term(0, 1, 0, False, True, True))
    table = problem_table([address((n, k), (n, k), Term(0, 1, 0, False, True, True), size)], [(0, 0, 1)])
    plan = plan_problems([vb.Problem(n, n, k, 1, False, True, True)], kind, device, planner)
    return table, plan, pack(plan, table)


@pytest.mark.parametrize("n", [64, 300, 1000])
def test_ready_tiles_above_the_diagonal_are_mirrored(n):
    table, plan, descriptors = symmetric_call(n, vb.Uniform("mma-64x128"))
    tiles, _ = tiles_of(table, descriptors)
    np.testing.assert_array_equal(tiles["c"]["mirrored"], tiles["row"] + 64 <= tiles["col"])
    assert not tiles["a"]["mirrored"].any()
    assert not tiles["b"]["mirrored"].any()
    assert (tiles["row"] < tiles["col"] + 128).all()
    assert descriptors.num_splits == 0
    assert tiles["c"]["mirrored"].any() == (n > 128)
    assert plan.num_tiles == len(tiles)


def test_runs_above_the_diagonal_are_mirrored():
    table, plan, descriptors = symmetric_call(4000, vb.Uniform("mma-16x32"))
    assert 0 < descriptors.num_runs < descriptors.num_tiles
    runs = descriptors.words[table.nbytes // 4 :][: descriptors.num_runs * RUN.itemsize // 4].view(RUN)
    np.testing.assert_array_equal(runs["mirrored"], runs["row"] + 16 <= runs["col"])
    assert not runs["reserved"].any()
    assert (runs["row"] < runs["col"] + 32).all()
    assert descriptors.num_runs * RUN.itemsize < MAX_BYTES < plan.num_tiles * READY_TILE.itemsize


def test_slices_are_mirrored_where_they_are_added_up():
    table, plan, descriptors = symmetric_call(300, k=20_000)
    tiles, splits = tiles_of(table, descriptors)
    shape = plan.catalogue.by_index[int(tiles["tile_id"][0])]
    assert (tiles["c"]["buffer"] == -1).all()
    assert not tiles["c"]["mirrored"].any()
    np.testing.assert_array_equal(splits["c"]["mirrored"], splits["row"] + shape.m <= splits["col"])
    assert splits["c"]["mirrored"].any()


def test_descriptors_elsewhere_know_nothing_of_symmetry():
    for device, kind in (("cpu", "float32"), ("mi210", "bfloat16")):
        plain = plan_problems([vb.Problem(300, 300, 64, 1, False, True)], kind, device_spec(device))
        table, _, descriptors = symmetric_call(300, device=device_spec(device), kind=kind)
        np.testing.assert_array_equal(descriptors.words, pack(plain, table).words)
