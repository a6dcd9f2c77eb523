"""Li 2019: tiles against a transcription of section 4.2.3 in plain loops, batching against one of section 5."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.tiles.descriptor_size import MOST_BATCHED_TILES

from .cases import DEVICES, make, names, num_tiles, problem_lists, times_covered

TABLE_2 = {
    "small": (16, 16),
    "medium": (32, 32),
    "large": (64, 64),
    "tall": (128, 64),
    "wide": (64, 128),
    "huge": (128, 128),
}
PAPER = [(16, 32, 128), (64, 64, 64), (256, 256, 64)]


def choose(problems, threshold, switch="last"):
    """(names, threads, TLP) by the rules of section 4.2.3, one queue a problem."""
    full = [[name for name, (m, n) in TABLE_2.items() if m <= p.m and n <= p.n] or ["small"] for p in problems]
    queues, threads = full, 256
    while True:
        chosen = [queue[0] for queue in queues]
        tlp = sum(num_tiles(p, *TABLE_2[name]) * threads for p, name in zip(problems, chosen, strict=True))
        at_last = all(len(queue) == 1 for queue in queues)
        if at_last and threads == 256 and (tlp > threshold or switch == "early"):
            threads = 128
            queues = full if switch == "restart" else queues
            continue
        if tlp <= threshold or at_last:
            return chosen, threads, tlp
        queues = [queue[1:] if len(queue) > 1 else queue for queue in queues]


def batch_by_threshold(tiles, threads, threshold, theta):
    """Section 5: blocks of the tiles, each of which ends in its K."""
    rest, blocks = list(tiles), []
    while rest:
        block = [rest.pop(0)]
        if (len(rest) + 1 + len(blocks)) * threads > threshold / 2:
            while rest and sum(tile[-1] for tile in block) <= theta:
                block.append(rest.pop(0))
        blocks.append(block)
    return blocks


def batch_by_pairs(tiles):
    rest, blocks = sorted(tiles, key=lambda tile: tile[-1]), []
    while len(rest) > 1:
        blocks.append([rest.pop(0), rest.pop()])
    return blocks + [[tile] for tile in rest]


def single_tiles(plan):
    """(problem, batch, row, col, K) of every tile, in the order (problem, batch, y, x)."""
    tiles = []
    for index, (problem, (name, threads)) in enumerate(zip(plan.problems, plan.choices, strict=True)):
        shape = plan.catalogue.find(name, threads)
        tiles += [
            (index, batch, row, col, problem.k)
            for batch in range(problem.batch)
            for row in range(0, problem.m, shape.m)
            for col in range(0, problem.n, shape.n)
        ]
    return tiles


def blocks_of(plan):
    return [[(tile.problem, tile.batch, tile.row, tile.col) for tile in block] for block in plan.blocks]


def without_k(blocks):
    return [[tile[:4] for tile in block] for block in blocks]


def test_the_papers_example():
    plan = make(vb.Coordinated(), PAPER, "v100")
    assert plan.choices == (("small", 256), ("medium", 256), ("medium", 256))
    assert plan.tlp == 17920
    # A threshold just above the first solution's 70144 keeps it; equality is not above.
    assert names(make(vb.Coordinated(tlp_threshold=70144), PAPER)) == ["small"] * 3
    assert make(vb.Coordinated(tlp_threshold=70144), PAPER).tlp == 70144
    assert names(make(vb.Coordinated(tlp_threshold=70143), PAPER)) == ["small", "medium", "medium"]


def test_128_threads_where_no_tile_is_large_enough():
    plan = make(vb.Coordinated(tlp_threshold=100), PAPER)
    assert plan.choices == (("small", 128), ("large", 128), ("huge", 128))
    assert plan.tlp == (2 + 1 + 4) * 128


def test_each_reading_of_the_switch_to_128_threads():
    """Two results of 32 x 32 end with two medium tiles, 512 threads; their eight small tiles have 2048."""
    shapes = [(32, 32, 8)] * 2
    chosen = {
        (threshold, switch): make(vb.Coordinated(tlp_threshold=threshold, switch=switch), shapes).choices[0]
        for threshold in (600, 300)
        for switch in ("last", "restart", "early")
    }
    assert chosen == {
        (600, "last"): ("medium", 256), (600, "restart"): ("medium", 256), (600, "early"): ("medium", 128),
        (300, "last"): ("medium", 128), (300, "restart"): ("medium", 128), (300, "early"): ("medium", 128),
    }  # fmt: skip
    mixed = [(16, 16, 8)] * 4 + [(128, 128, 8)]  # 1024 and 256 threads at last; 512 and 512 with large tiles of 128
    assert names(make(vb.Coordinated(tlp_threshold=1100), mixed)) == ["small"] * 4 + ["huge"]
    assert names(make(vb.Coordinated(tlp_threshold=1100, switch="restart"), mixed)) == ["small"] * 4 + ["large"]


def test_tensor_tiles_have_one_version():
    plan = make(vb.Coordinated(switch="restart"), PAPER, dtype="bfloat16")
    assert "switch = 'restart' has no effect: tiles on tensor cores have one version" in plan.notes


def test_tall_and_wide_are_skipped_where_they_do_not_fit():
    plan = make(
        vb.Coordinated(tlp_threshold=0), [(128, 64, 1), (64, 128, 1), (127, 127, 1), (128, 128, 1), (5, 1000, 1)]
    )
    assert names(plan) == ["tall", "wide", "large", "huge", "small"]


@given(problem_lists, st.integers(0, 300_000), st.sampled_from(DEVICES), st.sampled_from(("last", "restart", "early")))
def test_tiles_are_those_of_the_paper(problems, threshold, device, switch):
    plan = make(vb.Coordinated(tlp_threshold=threshold, switch=switch), problems, device)
    chosen, threads, tlp = choose(problems, threshold, switch)
    assert plan.choices == tuple((name, threads) for name in chosen)
    assert plan.tlp == tlp


@given(problem_lists, st.integers(0, 60_000), st.integers(0, 600), st.sampled_from(("h100", "cpu")))
def test_threshold_batching_is_that_of_the_paper(problems, threshold, theta, device):
    plan = make(vb.Coordinated(threshold, theta, "threshold"), problems, device)
    threads = plan.choices[0][1] if problems else 0
    assert blocks_of(plan) == without_k(batch_by_threshold(single_tiles(plan), threads, threshold, theta))


@given(problem_lists, st.integers(0, 60_000), st.sampled_from(("h100", "cpu")))
def test_binary_batching_is_that_of_the_paper(problems, threshold, device):
    plan = make(vb.Coordinated(threshold, batching="binary"), problems, device)
    assert blocks_of(plan) == without_k(batch_by_pairs(single_tiles(plan)))


def test_threshold_batching_by_hand():
    # Four tiles of K = 100, then three of K = 300: 256 threads each. theta = 256.
    shapes = [(16, 64, 100), (16, 48, 300)]
    # All seven are batched while (unassigned + opened) * 256 > threshold / 2: K 300 > 256 with three of the first, the
    # fourth takes one of the second (400), then one each.
    plan = make(vb.Coordinated(tlp_threshold=1792, theta=256, batching="threshold"), shapes)
    assert plan.block_start.tolist() == [0, 3, 5, 6, 7]
    # With threshold 2560 the loop goes on while more than 5 tiles and blocks are counted: 7, then 4 + 1: stop.
    plan = make(vb.Coordinated(tlp_threshold=2560, theta=256, batching="threshold"), shapes)
    assert plan.block_start.tolist() == [0, 3, 4, 5, 6, 7]
    # theta is exceeded, not reached: three tiles of 100 make 300, which is not beyond 300.
    plan = make(vb.Coordinated(tlp_threshold=1792, theta=300, batching="threshold"), shapes)
    assert plan.block_start.tolist() == [0, 4, 6, 7]


def test_binary_batching_by_hand():
    shapes = [(16, 32, 50), (16, 32, 10), (16, 16, 30)]  # tiles 0 1 | 2 3 | 4 of K 50, 10, 30
    plan = make(vb.Coordinated(batching="binary"), shapes)
    assert [[(tile.problem, tile.col, tile.k_end) for tile in block] for block in plan.blocks] == [
        [(1, 0, 10), (0, 16, 50)],
        [(1, 16, 10), (0, 0, 50)],
        [(2, 0, 30)],
    ]


def test_the_five_arrays_of_figure_6():
    # As in the figure: 2 tiles of 128 x 128 in two blocks, 8 tiles of 128 x 64 in four.
    plan = make(vb.Coordinated(tlp_threshold=2560, theta=256, batching="threshold"), [(128, 256, 512), (512, 127, 200)])
    assert plan.choices == (("huge", 256), ("tall", 256))
    assert plan.tlp == 10 * 256
    huge, tall = plan.catalogue.find("huge", 256).index, plan.catalogue.find("tall", 256).index
    assert plan.block_start.tolist() == [0, 1, 2, 4, 6, 8, 10]
    assert plan.tile_problem.tolist() == [0, 0] + [1] * 8
    assert plan.tile_strategy.tolist() == [huge] * 2 + [tall] * 8
    assert plan.tile_row.tolist() == [0, 0, 0, 0, 128, 128, 256, 256, 384, 384]
    assert plan.tile_col.tolist() == [0, 128] + [0, 64] * 4
    assert plan.tile_k_end.tolist() == [512] * 2 + [200] * 8
    assert {array.dtype.name for array in (plan.block_start, plan.tile_problem, plan.tile_strategy, plan.tile_row)} == {
        "int32"
    }


def test_the_batching_that_is_predicted_to_finish_sooner_is_taken():
    for shapes in ([(128, 128, 8)] * 300, [(16, 16, 2000)] * 400 + [(16, 16, 8)] * 400, PAPER):
        both = [make(vb.Coordinated(batching=batching), shapes) for batching in ("threshold", "binary")]
        best = min(plan.predicted_seconds for plan in both)
        assert make(vb.Coordinated(), shapes).predicted_seconds == best
    # A choice is really made: the two differ in time for the last but one list.
    assert both[0].planner == "coordinated"
    times = [make(vb.Coordinated(batching=b), [(16, 16, 2000)] * 400 + [(16, 16, 8)] * 400).predicted_seconds
             for b in ("threshold", "binary")]  # fmt: skip
    assert times[0] != times[1]


def test_blocks_of_very_many_tiles_are_not_batched():
    plan = make(vb.Coordinated(tlp_threshold=0), [(16 * MOST_BATCHED_TILES, 16, 1)])
    assert plan.block_first is not None
    plan = make(vb.Coordinated(tlp_threshold=0), [(16 * (MOST_BATCHED_TILES + 1), 16, 1)])
    assert plan.block_first is None
    assert len(plan.runs) == 1
    assert any(f"more than {MOST_BATCHED_TILES} tiles" in note for note in plan.notes)


@pytest.mark.parametrize("batching", ["threshold", "binary"])
def test_a_forced_batching_holds_for_any_number_of_tiles(batching):
    tiles = MOST_BATCHED_TILES + 1
    plan = make(vb.Coordinated(tlp_threshold=0, batching=batching), [(16 * tiles, 16, 1)])
    plan.validate()
    assert plan.num_blocks < plan.num_tiles == tiles
    assert plan.notes == (f"{batching} batching",)


def test_more_tiles_than_a_program_can_describe_are_not_batched():
    with pytest.raises(ValueError, match=r"Coordinated: batching = 'binary' needs a record for each of 62500000 tiles"):
        make(vb.Coordinated(tlp_threshold=0, batching="binary"), [(10**9, 16, 1)])


def test_tiling_alone_has_a_tile_a_block():
    batched, alone = (make(vb.Coordinated(batching=batching), PAPER) for batching in ("threshold", "none"))
    assert alone.block_first is None
    assert (alone.choices, alone.tlp, alone.notes) == (batched.choices, batched.tlp, ())


def test_a_selector_sees_means_and_the_number_of_problems():
    seen = []

    def selector(*features):
        seen.append(features)
        return "binary" if features[3] == 5 else "threshold"

    shapes = [vb.Problem(16, 32, 64, batch=3), vb.Problem(40, 8, 12), vb.Problem(0, 0, 0)]
    assert make(vb.Coordinated(batching=selector), shapes).notes == ("binary batching",)
    assert seen == [((3 * 16 + 40) / 5, (3 * 32 + 8) / 5, (3 * 64 + 12) / 5, 5)]
    assert make(vb.Coordinated(batching=selector), []).notes == ("threshold batching",)
    with pytest.raises(ValueError, match="Coordinated: batching returned 'both'; it must be one of threshold, binary"):
        make(vb.Coordinated(batching=lambda *_: "both"), shapes)


def test_on_tensor_cores_tiles_of_the_same_shapes_are_chosen():
    for kind, device in (("tf32", "h100"), ("bfloat16", "h100"), ("bfloat16", "mi210"), ("tf32", "mi300x")):
        plan = make(vb.Coordinated(tlp_threshold=20_000), PAPER, device, kind)
        plan.validate()
        assert all(plan.catalogue.find(*choice).tensor for choice in plan.choices), (kind, device)
        assert not any(tile.tensor for tile in make(vb.Coordinated(tensor=False), PAPER, device, kind).tiles_used)
    # 256 x 256: 128 x 64 is replaced by 64 x 64, which the plan says. TLP counts each tile's own threads.
    plan = make(vb.Coordinated(tlp_threshold=0), PAPER, dtype="bfloat16")
    assert names(plan) == ["mma-16x32", "mma-64x64", "mma-128x128"]
    assert plan.tlp == 128 + 128 + 4 * 256
    assert (("mma-128x64", 128), ("mma-64x64", 128)) in plan.replaced
    for kind in ("float32", "float64"):  # the papers' own arithmetic
        assert not any(tile.tensor for tile in make(vb.Coordinated(), PAPER, dtype=kind).tiles_used)
    assert any(tile.tensor for tile in make(vb.Coordinated(tensor=True), PAPER, dtype="float64").tiles_used)
    with pytest.raises(ValueError, match=r"none of the tiles mma-16x32, .* is built for float32"):
        make(vb.Coordinated(tensor=True), PAPER)


@pytest.mark.parametrize("batching", ["threshold", "binary"])
def test_batches_of_tensor_tiles_cover_each_element_once(batching):
    shapes = [(130, 257, 70), (16, 33, 512), (64, 128, 200), (300, 40, 8)]
    plan = make(vb.Coordinated(tlp_threshold=0, batching=batching), shapes, dtype="bfloat16")
    plan.validate()
    assert {tile.threads for tile in plan.tiles_used} == {128, 256}
    assert all((counts == 1).all() for counts in times_covered(plan))


def test_defaults_come_from_the_device():
    for device in DEVICES:
        spec = device_spec(device)
        given_explicitly = make(vb.Coordinated(spec.tlp_threshold, spec.theta), PAPER, device)
        assert blocks_of(make(vb.Coordinated(), PAPER, device)) == blocks_of(given_explicitly)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tlp_threshold": -1}, ValueError, "Coordinated: tlp_threshold = -1 must be finite and not negative"),
        ({"theta": "256"}, TypeError, "Coordinated: theta = '256' must be a number"),
        ({"theta": float("nan")}, ValueError, "Coordinated: theta = nan must be finite and not negative"),
        (
            {"batching": "pairs"},
            ValueError,
            "Coordinated: batching = 'pairs' must be one of None, 'threshold', 'binary', 'none' or a hashable callable",
        ),
        ({"tensor": 1}, ValueError, "Coordinated: tensor = 1 must be one of None, True, False"),
    ],
)
def test_option_errors(options, error, message):
    with pytest.raises(error) as caught:
        vb.Coordinated(**options)
    assert str(caught.value) == message


def test_the_docstring_says_how_many_tiles_are_batched():
    assert f"{MOST_BATCHED_TILES:,} tiles" in " ".join(vb.Coordinated.__doc__.split())
