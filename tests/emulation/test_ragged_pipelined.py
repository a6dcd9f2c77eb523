"""The pipelined kernels of ragged products on the CPU: random calls, and mistakes planted in the kernels."""

import os
import shutil
from pathlib import Path

import pytest
from emulated_check import (
    COMPILER,
    CSRC,
    PIPELINED,
    PIPELINED_F16,
    PIPELINED_FLOAT8,
    PIPELINED_INT8,
    PIPELINED_MIXED,
    PIPELINED_TF32,
    SANITIZE,
    Builder,
    assert_passes,
    change,
    first_fault,
)
from slow_cases import slow_except

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")

OPTIMIZED = ["-O2"]  # hundreds of emulated threads wait for each other
BFLOAT16 = ["--kinds", "bfloat16"]


SLOW_SEEDS = [pytest.param(seed, 40, marks=pytest.mark.slow(turn="ragged seeds")) for seed in (1, 2)]


@pytest.mark.parametrize(("seed", "calls"), [(0, 20), *SLOW_SEEDS])
def test_random_calls(builder: Builder, seed: int, calls: int) -> None:
    executable = builder.ragged_executable([*PIPELINED, *PIPELINED_TF32], OPTIMIZED)
    options = ["--kinds", "bfloat16", "float32", "--calls", str(calls), "--seed", str(seed)]
    assert_passes(executable, *options, common=[])


@pytest.mark.parametrize("part", slow_except(range(8), [], turns="ragged, random calls of all types"))
def test_random_calls_of_all_types(builder: Builder, part: int) -> None:
    """Other calls each day."""
    executable = builder.ragged_executable([*PIPELINED, *PIPELINED_F16, *PIPELINED_TF32], OPTIMIZED)
    seed = 8 * int(os.environ["VBGEMM_SLOW_PART"]) + part
    assert_passes(executable, "--calls", "40", "--seed", str(seed), common=[])


SLOW_FLOAT8 = [pytest.param(seed, 40, marks=pytest.mark.slow(turn="ragged, 8 bits")) for seed in range(1, 5)]


@pytest.mark.parametrize(("seed", "calls"), [(0, 12), *SLOW_FLOAT8])
def test_random_calls_of_8_bits(builder: Builder, seed: int, calls: int) -> None:
    executable = builder.ragged_executable(PIPELINED_FLOAT8 if seed else PIPELINED_FLOAT8[:1], OPTIMIZED)
    options = [
        "--kinds",
        "float8_e4m3fn",
        *(["float8_e5m2"] if seed else []),
        "--calls",
        str(calls),
        "--seed",
        str(seed),
    ]
    assert_passes(executable, *options, common=[])


SLOW_INT8 = [pytest.param(seed, 40, marks=pytest.mark.slow(turn="ragged, int8")) for seed in range(1, 5)]


@pytest.mark.parametrize(("seed", "calls"), [(0, 12), *SLOW_INT8])
def test_random_calls_of_int8(builder: Builder, seed: int, calls: int) -> None:
    executable = builder.ragged_executable(PIPELINED_INT8, OPTIMIZED)
    assert_passes(executable, "--kinds", "int8", "--calls", str(calls), "--seed", str(seed), common=[])


SLOW_MIXED = [pytest.param(seed, 12, marks=pytest.mark.slow(turn="ragged, mixed")) for seed in (1, 2)]


@pytest.mark.parametrize(("seed", "calls"), [(0, 12), *SLOW_MIXED])
def test_random_calls_with_narrow_weights(builder: Builder, seed: int, calls: int) -> None:
    executable = builder.ragged_executable(PIPELINED_MIXED if seed else PIPELINED_MIXED[:1], OPTIMIZED)
    kinds = ["bfloat16", *(["float16"] if seed else [])]
    assert_passes(executable, "--mixed", "--kinds", *kinds, "--calls", str(calls), "--seed", str(seed), common=[])


@pytest.mark.slow(turn="ragged, sanitized")
@pytest.mark.parametrize("seed", range(3))
def test_sanitizers(builder: Builder, seed: int) -> None:
    executable = builder.ragged_executable([*PIPELINED, *PIPELINED_F16, *PIPELINED_TF32], [*SANITIZE, *OPTIMIZED])
    assert_passes(executable, "--calls", "30", "--seed", str(seed), common=[])


# The source file, the correct text, and the wrong text.
MISTAKES = {
    "a missing arrival: a stage not released to the other CTA": ("sm90/block.h",
        "    if (Traits::kCluster > 1) mbarrier_arrive_remote(shared_.empty[stage], rank_ ^ 1);\n", ""),
    "rows without weights": ("ragged/ragged_walk.h",
        "!sizes_.undefined_rest && unit < units_.count(rows)", "unit < units_.count(rows)"),
    "weights for rows before the first group of a batch's entry": ("ragged/ragged_walk.h",
        "within == 0 || within == sizes_.entry_groups - 1", "within == sizes_.entry_groups - 1"),
    "a border row too many": ("ragged/ragged_walk.h",
        "min_of(rows - tile.row, +size.rows)", "min_of(rows - tile.row + 1, +size.rows)"),
}  # fmt: skip
MORE_MISTAKES = {
    "a stale phase: gathered rows that are copied before their stage is free": ("sm90/copy_gather.h",
        "        mbarrier_wait(shared_.empty[stages.index], stages.parity ^ 1);\n", ""),
    "a stale phase: a lane that has not seen that a tile may be overwritten": ("sm90/source_groups.h",
        "      wave_barrier();  // all lanes have seen this phase complete before the next one can\n", ""),
    "matrices of a batch's first entry": ("ragged/ragged_walk.h", "group - 2 * entry - 1", "within - 1"),
    "rows of lhs that do not repeat": ("sm90/source_groups.h", "tile.row % sizes.lhs_rows", "tile.row"),
    "rows of a contraction's lhs that do not repeat": ("sm90/source_groups.h",
        "tile.k_begin % sizes.lhs_rows", "tile.k_begin"),
    "matrices of rhs that do not repeat": ("sm90/source_groups.h", "tile.matrix % sizes.rhs_groups", "tile.matrix"),
    "results stored where they should be added": ("sm90/store.h",
        "if (kClipped && kElement == 4 && to.adds) {", "if (kClipped && kElement == 4 && to.adds && left > 0) {"),
    "zeros stored in place of an accumulator without rows": ("sm90/store_groups.h",
        "if (!accumulates()) vbgemm::store_zeros", "vbgemm::store_zeros"),
    "handed over results stored where they should be added": ("sm90/store_contraction.h",
        "if (parameters_.accumulates) {", "if (parameters_.accumulates && left > 0) {"),
    "zeros of a wide tile in place of an accumulator without rows": ("sm90/store_contraction.h",
        "    if (parameters_.accumulates) return;\n", ""),
    "a contraction's results overwritten while they are stored": ("sm90/store_contraction.h",
        "      cp_async_bulk_wait_group_read();\n", ""),
    "a contraction's results overwritten before they are stored": ("sm90/store_contraction.h",
        "    mbarrier_wait(buffer_.empty, parity_ ^ 1);\n", ""),
    "a contraction's results stored before all warps have written them": ("sm90/source_groups.h",
        "mbarrier_init(shared_.source.results_full[half], 4);", "mbarrier_init(shared_.source.results_full[half], 3);"),
    "a round of results without columns": ("sm90/store_contraction.h",
        "if (block * 8 >= tile.cols) continue;", "if (block * 8 > tile.cols) continue;"),
    "a gathered row that does not exist": ("sm90/copy_gather.h",
        "min(max(parameters_.gather[tile.row + line], 0), parameters_.sizes.lhs_rows - 1)",
        "max(parameters_.gather[tile.row + line], 0)"),
    "a stage announced before its gathered rows have come": ("sm90/copy_gather.h",
        "cp_async_mbarrier_arrive(shared_.full[stages.index]);", "mbarrier_arrive(shared_.full[stages.index]);"),
    "gathered columns behind the end of K": ("sm90/copy_gather.h",
        "const bool exists = column < parameters_.sizes.k;", "const bool exists = column < parameters_.sizes.k + 8;"),
    "a missing arrival: results that wait keep their tile": ("sm90/store_groups.h",
        "    release_tile(shared_, deferred_slot_, lane_);\n", ""),
    "a tile released twice: also before its results are stored": ("sm90/block.h",
        "      if (!keeps_tile) release_tile(", "      if (keeps_tile || !keeps_tile) release_tile("),
    "results forgotten at the end": ("sm90/block.h",
        "      if (depth <= 0 || !computes) epilogue.store_deferred();\n      if (tile.ends()) break;\n",
        "      if (tile.ends()) break;\n      if (depth == 0 || !computes) epilogue.store_deferred();\n"),
    "a stage released twice": ("sm90/mainloop.h", "    before = stages.index;", "    release(before = stages.index);"),
    "NaN of the next group in A": ("sm90/source_groups.h",
        "for (int i = thread; i < count * (1 + Traits::kBoxesB); i += 128)",
        "for (int i = thread + count; i < count * (1 + Traits::kBoxesB); i += 128)"),
    "NaN of the next group in B": ("sm90/source_groups.h", "i < count * (1 + Traits::kBoxesB)", "i < count"),
    "rows of the next group in a contraction": ("sm90/source_groups.h",
        "    if (begin == end) return;\n", "    if (begin % 2 == end % 2) return;\n"),
    "a chunk of K too few": ("sm90/mainloop.h", "left > 2 * Traits::kChunk", "left > 2 * Traits::kChunk + 1"),
    "rows of the next group stored by TMA": ("sm90/store.h",
        "kClipped || to.rows >= 16) {", "kClipped || to.rows >= 15) {"),
    "results overwritten while they are stored": ("sm90/store.h",
        "    cp_async_bulk_wait_group_read();  // TMA has read what was staged before\n", ""),
    "columns of both halves from the first array": ("sm90/block.h",
        "boxes.b[in_second_cols || in_second_k]", "boxes.b[in_second_k]"),
    "K elements of the second array from its end on": ("sm90/block.h",
        "in_second_k ? k_of_both - boxes.split_depth : k_of_both", "k_of_both"),
    "half of the shared copies to one CTA only": ("sm90/block.h",
        "tma_load_multicast(3, to", "tma_load_multicast(1 << rank_, to"),
}  # fmt: skip


# In what TF32 alone has.
OF_TF32 = {
    "vectors of A confused": ("sm90/mainloop.h", "(2 * chunk + i / 2) ^ (lane / 4)", "(2 * chunk + i / 2)"),
    "rows of A confused": ("sm90/mainloop.h", "from + i % 2 * (8 * 128)", "from + i / 2 * (8 * 128)"),
    "sums of the tile before": ("sm90/mainloop.h",
        "wgmma_tf32(a_[chunk], moved(b, chunk * 32), sums, adds || chunk > 0)",
        "wgmma_tf32(a_[chunk], moved(b, chunk * 32), sums, adds || chunk >= 0)"),
}  # fmt: skip


# In what 8-bit types alone have.
OF_FLOAT8 = {
    "scales of the first block of K": ("sm90/stage_scales.h", "*++at_[i]", "*at_[i]"),
    "scales of a contraction's first rows": ("sm90/source_groups.h",
        "p.rhs_k_blocks > 1 ? tile.k_begin / kScaledDepth : 0", "p.rhs_k_blocks > 1 ? 0 : 0"),
    "groups of a contraction that begin anywhere": ("ragged/ragged_walk.h", "& -kScaledDepth", "& -1"),
    "scales of the first block of columns": ("sm90/source_groups.h",
        "i * (Traits::kCols / 2)", "0 * (Traits::kCols / 2)"),
    "scales of single columns of the gate for both halves": ("sm90/source_groups.h",
        "(in_second ? p.sizes.n : 0) + col", "col"),
    "scales of the first tile's columns": ("sm90/source_groups.h",
        "min(tile.col + (in_second ?", "min((in_second ?"),
    "products of the stage before": ("sm90/mainloop_scaled.h",
        "of_part, products, chunk > 0)", "of_part, products, chunk > 0 || k > 0)"),
    "the next stage's scales": ("sm90/mainloop_scaled.h", "    scales.advance();\n", ""),
}  # fmt: skip


# In what int8 alone has.
OF_INT8 = {
    "sums that do not begin at zero": ("sm90/mainloop_scaled.h", "keep_in_place(x = 0)", "keep_in_place(x = 1)"),
    "the scale of the first row for both": ("sm90/mainloop_scaled.h",
        "scale_of(scales, i / 2, block /", "scale_of(scales, 0, block /"),
    "one scale for both halves of the columns": ("sm90/mainloop_scaled.h",
        "block / (Traits::kBlocks / 2)", "0"),
}  # fmt: skip


# In what rows of 16 bits with narrower weights alone have.
OF_MIXED = {
    "weights of a stage's first step": ("sm90/mainloop_mixed.h",
        "(step * kChunks + chunk) / kValuesPerByte", "chunk / kValuesPerByte"),
    "rows of a stage's first step": ("sm90/mainloop_mixed.h",
        "step * (kChunks / kChunksPerBox) + chunk", "0 * (kChunks / kChunksPerBox) + chunk"),
    "scales of the first step": ("sm90/mainloop_mixed.h",
        "scales.load_next(k < depth);", "scales.load_next(k > depth);"),
    "a stage released after its first step": ("sm90/mainloop_mixed.h", "if (last) release(", "release("),
    "numbers of 4 bits without their sign": ("sm90/mainloop_mixed.h", "0x43084308u", "0x43004300u"),
    "a row too many for the products of a few": ("sm90/block.h", "tile.rows <= kFewRows", "tile.rows <= kFewRows + 1"),
    "a row too many for the copies of a few": ("sm90/source_groups.h",
        "tile.rows <= kFewRows", "tile.rows <= kFewRows + 1"),
}  # fmt: skip
# The files, the options of calls, and the mistakes of some arithmetics.
OF_SOME = {
    "TF32": (PIPELINED_TF32, ["--kinds", "float32", "--calls", "20"], OF_TF32),
    "8-bit floats": (PIPELINED_FLOAT8[:1], ["--kinds", "float8_e4m3fn", "--calls", "20"], OF_FLOAT8),
    "int8": (PIPELINED_INT8, ["--kinds", "int8", "--calls", "30"], OF_INT8),
    "mixed": (PIPELINED_MIXED[:1], ["--mixed", *BFLOAT16, "--calls", "40"], OF_MIXED),
}
OF_ALL = MISTAKES | MORE_MISTAKES
EVERY_MISTAKE = [*OF_ALL.values(), *(texts for _, _, mistakes in OF_SOME.values() for texts in mistakes.values())]


@pytest.mark.parametrize(("name", "right", "wrong"), EVERY_MISTAKE)
def test_mistakes_can_be_made(tmp_path: Path, name: str, right: str, wrong: str) -> None:
    """Also those of the slow tests: the sources still have each text that a mistake replaces."""
    change(tmp_path, CSRC / "gpu" / name, right, wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("some", "mistake"), [(some, mistake) for some, (_, _, mistakes) in OF_SOME.items() for mistake in mistakes]
)
def test_mistakes_in_some_arithmetics_are_caught(builder: Builder, tmp_path: Path, some: str, mistake: str) -> None:
    files, options, mistakes = OF_SOME[some]
    name, right, wrong = mistakes[mistake]
    change(tmp_path, CSRC / "gpu" / name, right, wrong)
    executable = builder.ragged_executable(files, OPTIMIZED, tmp_path)
    assert first_fault(executable, *options, common=[])


@pytest.mark.parametrize("mistake", slow_except(OF_ALL, []))
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    name, right, wrong = OF_ALL[mistake]
    change(tmp_path, CSRC / "gpu" / name, right, wrong)
    # One file alone is compiled with the mistake.
    mistaken = [file for file in PIPELINED if ("gathered" in file) == ("gather" in name)]
    others = [file for file in PIPELINED if file not in mistaken]
    executable = builder.ragged_executable(mistaken, OPTIMIZED, tmp_path, others)
    # Some mistakes need an unlucky order of threads.
    assert any(
        first_fault(executable, *BFLOAT16, "--calls", "60", "--seed", str(seed), common=[]) for seed in range(12)
    )
