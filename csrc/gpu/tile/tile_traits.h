// How a tile of the catalogue is divided among the threads of its thread block, and how its operands are laid out in shared memory. The
// file holds compile-time constants only.
#pragma once
#include <type_traits>

#include "catalogue.h"
#include "gpu/arch/machine.h"
#include "gpu/tile/arithmetic.h"
#include "gpu/vendor_tiles.h"

namespace vbgemm {

inline constexpr int kVectorBytes = 16;  // the widest memory access of one thread

// Bytes of one line across all shared memory banks. Operands begin at a multiple of this: data arrives from global memory in sectors of 32
// bytes, and a sector that is written across two 32-byte sectors of shared memory takes twice as long (docs/design/alignment.md, A1).
inline constexpr int kBankLineBytes = 128;

// N elements that one instruction moves.
template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
  T element[N];
};

// Upper bound of the shared memory of a thread block, in bytes. Light kernels leave room for eight thread blocks of 128 threads (four of
// 256) on a multiprocessor with 227 KB. The largest tiles have two stages of 128 bytes of each row of A: a barrier every 64 bytes would
// cost more than a third stage gains (docs/design/kernels.md, K11). The four (two, if wide) thread blocks of row tiles keep as many bytes
// of A in flight as fit.
constexpr int shared_budget(Kernel kernel) {
  switch (kernel) {
    case Kernel::t128_light: return 27 * 1024;
    case Kernel::t256_light: return 40 * 1024;
    case Kernel::t128_medium: return 44 * 1024;
    case Kernel::t128_heavy: return (kCdna ? 48 : 55) * 1024;
    case Kernel::t128_full: return (kCdna ? 48 : 72) * 1024;
    case Kernel::t128_rows: return (kCdna ? 48 : 55) * 1024;
    case Kernel::t128_wide_rows: return (kCdna ? 48 : 110) * 1024;
    case Kernel::t128_deep:
    case Kernel::t256_dots: return 44 * 1024;
    default: return 48 * 1024;
  }
}

// Whether an ordinary kernel uses more shared memory than the 48 KB that a kernel can declare, so that its launch requests it. Where the
// kernel can declare its memory it does: with requested memory the smallest tiles took up to 7% longer. Kernels for CDNA declare all of it.
constexpr bool requests_shared(Kernel kernel) {
  return kernel == Kernel::t128_heavy || kernel == Kernel::t128_full || kernel == Kernel::t128_rows || kernel == Kernel::t128_wide_rows;
}

// For row tiles on tensor cores: how many thread blocks a multiprocessor holds, for an element size in bytes, and the shared memory of each
// thread block. Fewer thread blocks would leave the memory idle, since each warp waits for one pass after the other. (Their operands are
// aligned more strictly than those of SIMT tiles.)
constexpr int tensor_row_blocks(Kernel kernel, int bytes) { return kernel == Kernel::m128_wide_rows && bytes == 8 ? 2 : 4; }
constexpr int tensor_row_budget(Kernel kernel, int bytes) { return (220 / tensor_row_blocks(kernel, bytes) - 1) * 1024; }

// Pipeline depth: how many stages (K steps of the operands, `stage_bytes` each) fit the shared memory budget.
constexpr int stages_of(Kernel kernel, int stage_bytes) {
  const int fit = shared_budget(kernel) / stage_bytes;
  return fit < kMaxStages ? fit : kMaxStages;
}

// The minimum number of resident thread blocks on a multiprocessor for which a kernel is compiled; with the number of threads it bounds the
// registers. It is as high as it can be without register spills, and on CDNA no higher than shared memory permits.
template <class T>
constexpr int min_blocks(Kernel kernel) {
  constexpr int kWords = sizeof(Accumulator<T>) / 4;
  constexpr bool kFloat8 = sizeof(T) == 1 && !std::is_integral_v<T>;  // a conversion takes several instructions, and more registers
  if (kCdna) {
    switch (kernel) {
      case Kernel::t128_light: return kWords < 4 ? 6 : 3;
      case Kernel::t256_light: return kIsComplex<T> ? 2 : kWords == 1 ? 4 : 3;
      case Kernel::t256_heavy: return kWords == 1 ? 2 : 1;
      default: return 2;
    }
  }
  switch (kernel) {
    case Kernel::t128_light: return kWords == 1 && !kFloat8 ? 8 : kWords <= 2 ? 6 : 4;
    case Kernel::t128_heavy: return kWords == 1 ? 4 : 2;
    case Kernel::t128_full: return 2;
    case Kernel::t256_light: return kIsComplex<T> ? 2 : sizeof(T) == 4 ? 4 : 3;
    case Kernel::t128_medium: return kWords == 1 ? 4 : kWords == 2 ? 3 : 2;
    case Kernel::t128_rows: return 4;
    case Kernel::t128_wide_rows: return 2;
    case Kernel::t128_deep: return 4;
    case Kernel::t256_dots: return 2;
    default: return kWords == 1 ? 2 : 1;
  }
}

// A rectangle of an operand in shared memory. Its rows are padded by one 16-byte vector, so that eight consecutive rows start in different
// banks. This avoids bank conflicts both for vector reads down a column and for writes of single elements by eight rows and four columns.
template <class T, int kRows_, int kCols_>
struct SharedRectangle {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kPitch = kCols + kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kElements = kRows * kPitch;
};

// How row `kIndex` of the catalogue is divided, for operands of type T.
template <class T, int kIndex>
struct TileTraits {
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));

  static constexpr int kDepth = k_step(kShape, sizeof(T), kCdna);

  // L2 prefetch size of the operand copies, in bytes. Skinny tiles serve memory-bound problems, which are faster if longer pieces of a row
  // are fetched together (docs/design/kernels.md, K9).
  static constexpr int kL2Prefetch = is_far_longer(kShape) ? 256 : 128;

  // The largest tiles, which are bound by multiply-adds. How B is copied down columns was measured (docs/design/kernels.md, K11).
  static constexpr bool kIsLarge = kKernel == Kernel::t128_heavy || kKernel == Kernel::t128_full;
  static constexpr int kCopyRowsB = kIsLarge && !kCdna ? 16 : 8;

  // A thread's accumulators form a rectangle of the tile, as close to square as powers of two permit, and otherwise wider than tall.
  static constexpr int thread_cols() {
    int cols = 1;
    while (cols * cols * kThreads < kRows * kCols) cols *= 2;
    return cols;
  }
  static constexpr int kThreadCols = thread_cols(), kThreadRows = kRows * kCols / kThreads / kThreadCols;
  static constexpr int kGridCols = kCols / kThreadCols, kGridRows = kRows / kThreadRows;  // threads along each side of the tile

  // A warp's threads form a rectangle of that grid of threads: eight columns where the grid has as many, and the rows that follow from
  // them.
  static constexpr int wave_cols() {
    int cols = kGridCols < 8 ? kGridCols : 8;
    while (kWaveSize / cols > kGridRows) cols *= 2;
    return cols;
  }
  static constexpr int kWaveCols = wave_cols(), kWaveRows = kWaveSize / kWaveCols;

  // Adjacent columns of one thread: as many accumulators as one access can move.
  static constexpr int kSumVector = kVectorBytes / static_cast<int>(sizeof(Accumulator<T>));
  static constexpr int kColVector = kThreadCols < kSumVector ? kThreadCols : kSumVector;

  // op(A) is K-major in shared memory and is read several K elements at a time; op(B) is contiguous along N.
  using A = SharedRectangle<T, kRows, kDepth>;
  using B = SharedRectangle<T, kDepth, kCols>;
  static constexpr int kDepthVector = kThreadRows * kVector > 16 ? 16 / kThreadRows : kVector;

  // The unroll factor along K, limited to 512 multiply-adds: longer loop bodies stall on instruction fetch.
  static constexpr int kSums = kThreadRows * kThreadCols, kChunk = kSums > 64 ? 4 : kSums < 16 && kDepth > 8 ? 16 : 8;

  static constexpr int kStageElements = A::kElements + B::kElements;
  static constexpr int kStages = stages_of(kKernel, kStageElements* static_cast<int>(sizeof(T)));
  static constexpr int kSharedElements = kStages * kStageElements;

  // The number of rows of each thread's accumulators that fit into the operands' shared memory at a time.
  static constexpr int pass_rows() {
    int rows = kThreadRows;
    while (rows > 1 && rows * kThreadCols * kThreads * sizeof(Accumulator<T>) > kSharedElements * sizeof(T)) rows /= 2;
    return rows;
  }
  static constexpr int kPassRows = pass_rows();
  static_assert(kPassRows * kThreadCols * kThreads * sizeof(Accumulator<T>) <= kSharedElements * sizeof(T));
  static_assert(kStages >= 2, "the pipeline needs two stages: lower the tile's step along K");
  static_assert(kThreadRows * kThreadCols * kThreads == kRows * kCols && kGridRows % kWaveRows == 0 && kGridCols % kWaveCols == 0);
  static_assert(kWaveRows >= 2 && kWaveCols >= 2, "grid_place numbers lanes both ways");
};

// A thread's position in the grid of threads: its warp's rectangle, and its position within it.
struct ThreadPosition {
  int wave_row, wave_col, lane_row, lane_col;

  __device__ int row() const { return wave_row + lane_row; }
  __device__ int col() const { return wave_col + lane_col; }
};

// Lanes are numbered so that adjacent lanes share an address in every vector read of A (lanes 2i and 2i + 1) and of B (lanes i and i + 2):
// shared memory then serves such a read in half the wavefronts. The bits of a lane's index are therefore, from the lowest on: one bit of
// its column, one bit of its row, the remaining bits of its column, the remaining bits of its row.
template <class Traits>
__device__ inline ThreadPosition grid_place(int thread) {
  constexpr int kWavesN = Traits::kGridCols / Traits::kWaveCols;
  const int lane = thread % kWaveSize, wave = thread / kWaveSize;
  return {wave / kWavesN * Traits::kWaveRows, wave % kWavesN * Traits::kWaveCols, (lane >> 1 & 1) | lane / (2 * Traits::kWaveCols) * 2,
          (lane & 1) | (lane >> 1 & (Traits::kWaveCols - 2))};
}

}  // namespace vbgemm
