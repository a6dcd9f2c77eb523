"""Mistakes planted in the kernels, one at a time: the emulation's check finds each."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from emulated_check import (
    CDNA,
    COMPILER,
    CSRC,
    RACES,
    Builder,
    assert_passes,
    change,
    check,
    first_fault,
    some_kernels,
)
from slow_cases import slow_except

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")

# Each entry: file of kernels, kernel, source file with the mistake, the correct text, the wrong text.
MISTAKES = {
    "no barrier for matrix units": ("mfma_f16", "m128_light", "mfma_tile",
        "      block_barrier();  // this step's", "      // this step's"),
    "a step overwritten too early": ("mfma_f16", "m128_light", "mfma_tile",
        "      block_barrier();  // all waves", "      // all waves"),
    "rows of sums confused": ("mfma_f64", "m128_light", "mfma_product", "4 * r + lane / 16", "4 * (lane / 16) + r"),
    "a piece too many": ("mfma_f32", "m128_light", "mfma_copy",
        "item + e < items ? vectors_", "item + e <= items ? vectors_"),
    "a barrier too few": ("simt_f32", "t128_light", "simt_tile",
        "    block_barrier();  // this step's", "    // this step's"),
    "blocks left out between launches": ("simt_f32", "t128_light", "launch.cu", "begin += most", "begin += most + 1"),
    "a copy not waited for": ("simt_f32", "t128_light", "simt_tile",
        "cp_async_wait_group<Traits::kStages - 2>()", "cp_async_wait_group<Traits::kStages - 1>()"),
    "a mask off by one": ("simt_f32", "t128_light", "operand_copy",
        "i * Spread::kStep < limit", "i * Spread::kStep <= limit"),
    "a part of B overwritten too early": ("rows_f32", "t128_rows", "row_tile",
        "        block_barrier();  // no thread reads", "        // no thread reads"),
    "a step behind K's end": ("simt_f32", "t256_dots", "dot_tile",
        "k + n * kWaveSize + lane < depth", "k + n * kWaveSize + lane <= depth"),
    "a step of B read too early": ("simt_f64", "t256_dots", "dot_tile",
        "    block_barrier();  // this step's", "    // this step's"),
    "an element behind K's end on tensor cores": ("tensor_f64", "m256_dots", "tensor_dot_tile",
        "if (e < count)", "if (e <= count)"),
    "a vector behind K's end": ("tensor_f64", "m256_dots", "tensor_dot_tile", "if (left > 0)", "if (left >= 0)"),
    "a step of B multiplied too early": ("tensor_tf32", "m256_dots", "tensor_dot_tile",
        "    block_barrier();  // this step's", "    // this step's"),
    "steps of B confused": ("tensor_bf16", "m256_dots", "tensor_dot_traits",
        "step % 8 / 2 * 8", "(step % 8 / 2 ^ 1) * 8"),
    "lanes' sums confused": ("simt_f64", "t256_dots", "lane_sums", "upper ? kHalf : 0", "upper ? 0 : kHalf"),
    "a real scale times both parts": ("simt_c128", "t128_light", "epilogue", "if (scale.imag != 0) return", "return"),
    "an operand as a result": ("simt_f32", "t128_light", "tile_place", "lane == kC ? parameters.num_operands : 0", "0"),
    "an epilogue left out": ("simt_f32", "t128_light", "tile_place", "if (!plan.epilogues && !", "if (!"),
    "a transpose left out": ("tensor_light_bf16", "m128_light", "tile_place",
        "kMirrors && part.mirrored != 0", "false"),
    "sums rounded to the operands' type": ("tensor_light_bf16", "m128_light", "tensor_store",
        " & (place.result_type() == kDTypeOf<T>)", ""),
    "lanes' results confused": ("tensor_light_bf16", "m128_light", "tensor_store",
        "transpose_pair<2>(pairs[1]", "transpose_pair<1>(pairs[1]"),
    "a vector of results too many": ("tensor_light_bf16", "m128_light", "tensor_store",
        "8 * j < cols", "8 * j <= cols"),
    "a row too many": ("rows_f32", "t128_rows", "row_store",
        "sum[i][j], to, mine < rows_", "sum[i][j], to, mine <= rows_"),
    "a column too many": ("rows_f32", "t128_rows", "row_store", "j + v < staging_.cols && mine", "mine"),
    "a tile by another's code": ("simt_f32", "t128_light", "tile_kernel", "code >= kMiddle", "code > kMiddle"),
    "a pass not waited for": ("rows_f32", "t128_rows", "row_stream", "passes_ > kFirst + 1", "passes_ > kFirst"),
    "a pass overwritten too early": ("rows_f32", "t128_rows", "row_tile",
        "    wave_barrier();  // all lanes", "    // all lanes"),
    "vectors of rows confused": ("rows_f64", "t128_rows", "swizzle",
        "swizzled ? swizzled_vector(number)", "swizzled ? number"),
    "rows of a column confused": ("rows_f64", "t128_rows", "row_stream",
        "k * stride + vector * kVector, true", "k * stride, true"),
    "steps of columns read too early": ("rows_f32", "t128_rows", "row_stream",
        "cp_async_wait_group<kStages - 2>()", "cp_async_wait_group<kStages - 1>()"),
    "a part of B overwritten beside columns": ("rows_f32", "t128_rows", "row_tile",
        "      block_barrier();  // the previous", "      // the previous"),
    "a step of columns behind K's end": ("rows_f32", "t128_rows", "row_tile",
        "multiply(end - k)", "multiply(Stream::kSteps)"),
    "steps of a column confused": ("tensor_bf16", "m128_rows", "tensor_row_tile",
        "2 * matrix + row % 2;", "2 * matrix;"),
    "rows of tensor cores confused": ("tensor_f64", "m128_rows", "tensor_row_tile",
        "(8 * half + g) * staging", "(8 * half + (g ^ 1)) * staging"),
    "rows of C confused": ("rows_bf16", "t128_rows", "row_store",
        "mine.place[turn][v / kVector]", "mine.place[turn][0]"),
    "no barrier for tensor cores": ("tensor_light_tf32x3", "m128_light", "tensor_tile",
        "    block_barrier();  // this step's", "    // this step's"),
    "sums read too early": ("tensor_light_tf32x3", "m128_light", "tensor_store",
        "  block_barrier();  // all sums", "  // all sums"),
    "a shift off by one": ("tensor_light_bf16", "m128_light", "tensor_copy",
        "bits = shift % 2 * 16", "bits = (shift + 1) % 2 * 16"),
    "a kernel that does not wait for the one ahead": ("simt_f32", "t128_light", "simt_tile",
        "  await_previous_kernel();\n", ""),
    "a wave that does not wait for the one ahead": ("simt_f32", "t128_light", "simt_tile",
        "  await_previous_kernel();\n", "  if (thread_index() < kWaveSize) await_previous_kernel();\n"),
    "arrays added before they are there": ("simt_f32", "t128_light", "add_scaled",
        "    await_previous_kernel();\n", ""),
    "a chunk's last elements left out": ("simt_f32", "t128_light", "add_scaled", "count - whole, scales", "0, scales"),
    "an array's first chunk left out": ("simt_f32", "t128_light", "chunks", "[middle] <= block", "[middle] < block"),
    "squares summed before they are there": ("simt_f32", "t128_light", "square_sums",
        "    await_previous_kernel();\n    const auto [member", "    const auto [member"),
    "an array's last square left out": ("simt_f32", "t128_light", "square_sums", "at < count", "at < count - 1"),
    "a chunk's sum left out": ("simt_f32", "t128_light", "square_sums", "i < blocks[1]", "i < blocks[1] - 1"),
    "sums of threads added too early": ("simt_f32", "t128_light", "square_sums", "    block_barrier();\n", ""),
    "averages taken before arrays are there": ("simt_f32", "t128_light", "averages",
        "    await_previous_kernel();\n", ""),
    "a chunk's last averages left out": ("simt_f32", "t128_light", "averages",
        "from + e < count", "from + e < count - 1"),
    "squares of the wrong average": ("simt_f32", "t128_light", "averages", "Squares::sum_of(a)", "Squares::sum_of(b)"),
    "sums taken before they are there": ("simt_f32", "t128_light", "add_partial_sums",
        "    await_previous_kernel();\n    block_barrier();", "    block_barrier();"),
    "rows of bytes confused": ("tensor_e4m3", "m128_light", "tensor_product",
        "words[2 * k_half + 1], 0x7531)", "words[2 * k_half + 1], 0x6420)"),
    "a NaN widened to a number": ("tensor_e4m3", "m128_light", "widen_float8", "0x78657865u", "0x5c005c00u"),
    "small x big left out": ("tensor_light_tf32x3", "m128_light", "tensor_product",
        "mma_tf32(small_a[i]", "mma_tf32(big_a[i]"),
}  # fmt: skip


def machine_of(kernels: str) -> list[str]:
    return CDNA if kernels.startswith("mfma") else []


def make(folder: Path, mistake: str) -> None:
    *_, stem, right, wrong = MISTAKES[mistake]
    (place,) = CSRC.glob(f"gpu/*/{stem if '.' in stem else stem + '.h'}")
    change(folder, place, right, wrong)


def with_one_kernel(builder: Builder, folder: Path, mistake: str, machine: Sequence[str], *, made: bool) -> Path:
    """The check of only the kernel that a mistake concerns, with the mistake made or not: compiling takes seconds a
    kernel."""
    kernels, kernel, *_ = MISTAKES[mistake]
    if made:
        make(folder, mistake)
    return some_kernels(builder, folder, [f"{kernels}:{kernel}"], machine=[*machine_of(kernels), *machine])


# One of each sort, in a kernel that compiles fast; the others are among the slow tests.
DEFAULT = ["a barrier too few", "a mask off by one", "an array's first chunk left out"]


# The first mistake of each kernel, among those of the default run if there is one.
OF_KERNELS = {MISTAKES[name][:2]: name for name in reversed([*DEFAULT, *MISTAKES])}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_can_be_made(tmp_path: Path, mistake: str) -> None:
    """Also those of the slow tests: the sources still have each text that a mistake replaces."""
    make(tmp_path, mistake)


@pytest.mark.parametrize("mistake", slow_except(MISTAKES, DEFAULT))
def test_mistakes_are_caught(builder: Builder, tmp_path: Path, mistake: str) -> None:
    assert first_fault(with_one_kernel(builder, tmp_path, mistake, [], made=True), "--small")


@pytest.mark.slow  # in the default run, the kernels of these mistakes are among those of other tests
@pytest.mark.parametrize("mistake", OF_KERNELS.values())
def test_each_of_these_kernels_passes_without(builder: Builder, tmp_path: Path, mistake: str) -> None:
    assert_passes(with_one_kernel(builder, tmp_path, mistake, [], made=False), "--small")


RACING = ["a barrier too few", "no barrier for matrix units", "a step overwritten too early"]


@pytest.mark.parametrize("mistake", slow_except(RACING, []))
def test_races_are_seen(builder: Builder, tmp_path: Path, mistake: str) -> None:
    result = check(with_one_kernel(builder, tmp_path, mistake, RACES, made=True), "--small")
    assert "WARNING: ThreadSanitizer: data race" in result.stderr
