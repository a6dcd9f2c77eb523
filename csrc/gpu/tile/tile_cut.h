// How a tile of the catalogue is cut up among the threads of its block, and how it lies in shared memory: constants only.
#pragma once
#include <type_traits>

#include "catalogue.h"
#include "gpu/arch/machine.h"
#include "gpu/tile/arithmetic.h"

namespace vbgemm {

inline constexpr int kVectorBytes = 16;  // the widest access of a thread

// What all banks of shared memory hold side by side. Operands begin at a multiple of it: what arrives from global memory comes by sectors
// of 32 bytes, and one that lies across two such sectors of shared memory takes twice as long.
inline constexpr int kBankLineBytes = 128;

// N elements moved at once.
template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
  T element[N];
};

// Some tiles are none on CDNA, as a wave of 64 would have too many sums of them: far longer ones of tensor cores, and dot products.
constexpr bool has_code(const TileShape& tile) {
  const bool nvidia_only = (tile.tensor && is_far_longer(tile)) || tile.owned == Owned::steps_of_rows;
  return tile.is_gpu() && !(kCdna && nvidia_only);
}

// Shared memory a block of a kernel may use: light kernels leave room for eight blocks of 128 (four of 256) on a multiprocessor that
// has 227 KB, and all stay within the 48 KB that need no opt-in but for tiles of whole rows, of which four (two) blocks keep as much of A
// under way as there is room for.
constexpr int shared_budget(Kernel kernel) {
  switch (kernel) {
    case Kernel::t128_light: return 27 * 1024;
    case Kernel::t256_light: return 40 * 1024;
    case Kernel::t128_medium: return 44 * 1024;
    case Kernel::t128_rows: return (kCdna ? 48 : 55) * 1024;
    case Kernel::t128_wide_rows: return (kCdna ? 48 : 110) * 1024;
    case Kernel::t128_deep:
    case Kernel::t256_dots: return 44 * 1024;
    default: return 48 * 1024;
  }
}

// Blocks of tiles of whole rows on tensor cores that a multiprocessor holds, for elements of so many bytes, and the shared memory of each:
// few waves that each wait for one pass after the other would not keep memory busy. (Their operands are aligned more strictly.)
constexpr int tensor_row_blocks(Kernel kernel, int bytes) { return kernel == Kernel::m128_wide_rows && bytes == 8 ? 2 : 4; }
constexpr int tensor_row_budget(Kernel kernel, int bytes) { return (220 / tensor_row_blocks(kernel, bytes) - 1) * 1024; }

// Steps along K that lie in that memory at a time, each of so many bytes.
constexpr int stages_of(Kernel kernel, int stage_bytes) {
  const int fit = shared_budget(kernel) / stage_bytes;
  return fit < kMostStages ? fit : kMostStages;
}

// Blocks of a kernel that a multiprocessor must be able to hold; with the threads, the compiler's limit on registers. As many as it can
// fit without spills, and on CDNA no more than its shared memory can hold.
template <class T>
constexpr int min_blocks(Kernel kernel) {
  constexpr int kWords = sizeof(Accumulator<T>) / 4;
  constexpr bool kFloat8 = sizeof(T) == 1 && !std::is_integral_v<T>;  // which are converted by several instructions
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
    case Kernel::t128_heavy: return 2;
    case Kernel::t256_light: return kIsComplex<T> ? 2 : sizeof(T) == 4 ? 4 : 3;
    case Kernel::t128_medium: return kWords == 1 ? 4 : kWords == 2 ? 3 : 2;
    case Kernel::t128_rows: return 4;
    case Kernel::t128_wide_rows: return 2;
    case Kernel::t128_deep: return 4;
    case Kernel::t256_dots: return 2;
    default: return kWords == 1 ? 2 : 1;
  }
}

constexpr int threads_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::t256_light:
    case Kernel::t256_heavy:
    case Kernel::t256_dots:
    case Kernel::m256_heavy:
    case Kernel::m256_full:
    case Kernel::m256_dots: return 256;
    default: return 128;
  }
}

// A rectangle of an operand in shared memory, its rows padded by one vector: eight consecutive rows then start in different banks, both for
// vector reads down a column and for single elements written eight rows by four columns.
template <class T, int kRows_, int kCols_>
struct SharedRectangle {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kPitch = kCols + kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kElements = kRows * kPitch;
};

// Row `kIndex` of the catalogue, for operands of type T.
template <class T, int kIndex>
struct TileCut {
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));

  // The catalogue's step along K is that of 4-byte elements; others take as many bytes a step, so that the pipeline is as deep.
  static constexpr int kStep = kShape.k * 4 / static_cast<int>(sizeof(T)) / kStepShare, kDepth = kStep > 8 ? kStep : 8;

  // Tiles far longer one way than the other are for problems that wait for memory, which is faster by longer pieces of its rows.
  static constexpr int kAhead = is_far_longer(kShape) ? 256 : 128;

  // A thread's piece of the tile: as square as powers of two allow, wider than high.
  static constexpr int thread_cols() {
    int cols = 1;
    while (cols * cols * kThreads < kRows * kCols) cols *= 2;
    return cols;
  }
  static constexpr int kThreadCols = thread_cols(), kThreadRows = kRows * kCols / kThreads / kThreadCols;
  static constexpr int kGridCols = kCols / kThreadCols, kGridRows = kRows / kThreadRows;  // threads along each side

  // A wave's part of that grid: eight columns where there are so many, and rows to follow.
  static constexpr int wave_cols() {
    int cols = kGridCols < 8 ? kGridCols : 8;
    while (kWaveSize / cols > kGridRows) cols *= 2;
    return cols;
  }
  static constexpr int kWaveCols = wave_cols(), kWaveRows = kWaveSize / kWaveCols;

  // Neighbouring columns of one thread: as many accumulators as one access can move.
  static constexpr int kSumVector = kVectorBytes / static_cast<int>(sizeof(Accumulator<T>));
  static constexpr int kColVector = kThreadCols < kSumVector ? kThreadCols : kSumVector;

  // op(A) lies with K contiguous and is read several steps of K at a time; op(B) lies with its columns contiguous.
  using A = SharedRectangle<T, kRows, kDepth>;
  using B = SharedRectangle<T, kDepth, kCols>;
  static constexpr int kDepthVector = kThreadRows * kVector > 16 ? 16 / kThreadRows : kVector;

  static constexpr int kChunk = kThreadRows * kThreadCols < 16 && kDepth > 8 ? 16 : 8;  // of a step, as unrolled code

  static constexpr int kStageElements = A::kElements + B::kElements;
  static constexpr int kStages = stages_of(kKernel, kStageElements* static_cast<int>(sizeof(T)));
  static constexpr int kSharedElements = kStages * kStageElements;

  // Rows of a thread's piece that can lie in that memory at a time, as accumulators.
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

// A thread's place in the grid: where its wave begins, and where it stands in the wave.
struct GridPlace {
  int wave_row, wave_col, lane_row, lane_col;

  __device__ int row() const { return wave_row + lane_row; }
  __device__ int col() const { return wave_col + lane_col; }
};

// Lanes are numbered so that neighbours share an address in every vector read of A (lanes 2i, 2i + 1) and of B (lanes i, i + 2): the memory
// then serves such a read in half the passes. So a lane's number is, from its lowest bit on, one of its column, one of its row, the rest of
// its column, the rest of its row.
template <class Cut>
__device__ inline GridPlace grid_place(int thread) {
  constexpr int kWavesAcross = Cut::kGridCols / Cut::kWaveCols;
  const int lane = thread % kWaveSize, wave = thread / kWaveSize;
  return {wave / kWavesAcross * Cut::kWaveRows, wave % kWavesAcross * Cut::kWaveCols, (lane >> 1 & 1) | lane / (2 * Cut::kWaveCols) * 2,
          (lane & 1) | (lane >> 1 & (Cut::kWaveCols - 2))};
}

}  // namespace vbgemm
