"""The pipeline of large 16-bit products on the CPU: the GPU kernels' check, and mistakes planted in the pipeline."""

import shutil
from pathlib import Path

import pytest
from emulated_check import COMPILER, CSRC, SANITIZE, Builder, assert_passes, change, first_fault
from slow_cases import slow_except

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")

OPTIMIZED = ["-O2"]  # hundreds of emulated threads wait for each other
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]


@pytest.mark.parametrize("kind", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_groups(builder: Builder, kind: str, seed: int) -> None:
    assert_passes(builder.executable(["pipelined"], OPTIMIZED), "--kinds", kind, "--small", "--seed", str(seed))


@pytest.mark.slow
def test_sanitizers(builder: Builder) -> None:
    executable = builder.executable(["pipelined"], [*SANITIZE, *OPTIMIZED])
    assert_passes(executable, "--kinds", "bfloat16", "--small", "--exact")


# The source file, the correct text, and the wrong text.
MISTAKES = {
    "vectors of 16 bytes stored behind the last column": ("tile_maps.h", "line % kAlignment == 0;", "true;"),
    "a stale phase: producers that do not wait for each other": ("copy_threads.h",
        "{ bar_sync(kProducerBarrier, 32 + kThreads); }", "{}"),
    "a missing arrival: a stage not released to the other CTA": ("block.h",
        "    if (Traits::kCluster > 1) mbarrier_arrive_remote(shared_.empty[stage], rank_ ^ 1);\n", ""),
    "a row too many": ("store_plan.h",
        "min(place.rows - row, Patch::kRows)", "min(place.rows - row + 1, Patch::kRows)"),
    "a source matrix added to other columns": ("store_plan.h",
        "sums[stage_index * kBlocks + block]", "sums[(1 - stage_index) * kBlocks + block]"),
    "a mirror image with one half of its rows": ("store_plan.h", "staged(col, lane % 2));", "staged(col, 0));"),
}  # fmt: skip
MORE_MISTAKES = {
    "a stale phase: a lane that has not seen a stage that is released": ("block.h",
        "      wave_barrier();  // all lanes have seen this phase complete:",
        "      // all lanes have seen this phase complete:"),
    "a missing arrival: a stage behind K's end": ("block.h",
        "          mbarrier_arrive(full);\n        }\n        continue;", "        }\n        continue;"),
    "a stage released before products have read it": ("mainloop.h",
        "    before = stages.index;", "    release(before = stages.index);"),
    "stages of a source matrix that the peer does not have": ("source_plan.h",
        "staged_depth(other.depth, other.source_depth)", "staged_depth(other.depth, 0)"),
    "half of B copied to one CTA only": ("block.h", "tma_load_multicast(3, to", "tma_load_multicast(1 << rank_, to"),
    "an operand with rows that are not aligned": ("tile_maps.h", "found.line_bytes % kAlignment == 0;", "true;"),
    "a matrix that begins within 16 bytes": ("tile_maps.h",
        "reinterpret_cast<uintptr_t>(x.first) % kAlignment == 0 &&", ""),
    "a tensor map replaced while stores use it": ("source_plan.h",
        "block_index() * kTilesWithMaps + maps_index]",
        "block_index() * kTilesWithMaps + maps_index % Traits::kTiles]"),
    "columns shared with a tile that needs others": ("source_plan.h",
        "popc_ballot(lane < kWords && peer[lane] != mine[lane]) == 0", "popc_ballot(false) == 0"),
    "results overwritten while they are stored": ("store.h",
        "read<kAlternatesBoxes ? Traits::kStoreBoxes - 1 : 0>();\n    wave_barrier();\n    stage_narrow",
        "read<Traits::kStoreBoxes + kAlternatesBoxes>();\n    wave_barrier();\n    stage_narrow"),
}  # fmt: skip


FOUND_FAST = ["a row too many", "a source matrix added to other columns"]


@pytest.mark.parametrize("mistake", MISTAKES | MORE_MISTAKES)
def test_mistakes_can_be_made(tmp_path: Path, mistake: str) -> None:
    """Also those of the slow tests: the sources still have each text that a mistake replaces."""
    name, right, wrong = (MISTAKES | MORE_MISTAKES)[mistake]
    change(tmp_path, CSRC / "gpu/sm90" / name, right, wrong)


@pytest.mark.parametrize("mistake", slow_except(MISTAKES | MORE_MISTAKES, FOUND_FAST))
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    name, right, wrong = (MISTAKES | MORE_MISTAKES)[mistake]
    change(tmp_path, CSRC / "gpu/sm90" / name, right, wrong)
    executable = builder.executable(["pipelined"], OPTIMIZED, changed=tmp_path)
    # Some mistakes need an unlucky order of threads.
    assert any(first_fault(executable, "--kinds", "bfloat16", "--small", "--seed", str(seed)) for seed in range(32))
