// One tile of dot products, for few columns, a large K and a K-major A. The lanes of a warp take different K elements of the same row
// (warp-sliced K). So a warp reads long pieces of few rows, which memory serves fastest (on an H100 2.9 to 3.0 TB/s for pieces of 256 bytes
// or more, 1.6 to 2.3 TB/s for 64 bytes; docs/design/tall-skinny.md, T16). A is loaded straight into registers; shared memory holds only B,
// which all warps of the thread block read.
#pragma once
#include "gpu/simt/lane_sums.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// How row `kIndex` of the catalogue is divided, for operands of type T.
template <class T, int kIndex>
struct DotTraits {
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads, kWaves = kThreads / kWaveSize;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));

  // Each warp has its own rows. A lane takes every kWaveSize-th K element, kLaneSteps of them at a time.
  static constexpr int kWaveRows = kRows / kWaves, kSums = kWaveRows * kCols;
  static constexpr int kDepth = k_step(kShape, sizeof(T), kCdna), kLaneSteps = kDepth / kWaveSize;

  // One K element of B takes an odd number of vectors in shared memory, so that the vectors that eight lanes read together lie in different
  // banks.
  static constexpr int kVectors = kCols / kVector, kPitch = (kVectors | 1) * kVector, kStageElements = kDepth * kPitch;
  static constexpr int kStages = stages_of(kernel_of(kShape), kStageElements* static_cast<int>(sizeof(T)));
  static constexpr int kSharedElements = kStages * kStageElements;
  static_assert(kStages >= 2 && kRows * kCols * sizeof(Sum) <= kSharedElements * sizeof(T));
  static_assert(kCols % kVector == 0 && kWaveRows * kWaves == kRows && kLaneSteps * kWaveSize == kDepth && kSums >= kWaveSize);
};

// Reads a lane's K elements of its warp's rows of A. Rows after the tile's last row read the last row again; nothing is stored for them.
template <class Traits, class T>
class DotReader {
 public:
  using Steps = T[Traits::kWaveRows][Traits::kLaneSteps];

  // `a` is in shared memory and is read again at each step, which is cheaper than holding it in registers.
  __device__ DotReader(const MatrixView& a, int rows, int first_row)
      : a_(a), first_(a.template at<const T>(first_row < rows ? first_row : rows - 1, 0)), rows_behind_(rows - 1 - first_row) {}

  // Reads the K elements from `k` on; those from `depth` on are zero.
  __device__ void read(int k, int depth, Steps& x) const {
    const int lane = thread_index() % kWaveSize;
    const int64_t col_stride = a_.col_stride;
    const T* from = first_ + (k + lane) * col_stride;
    if (col_stride == 1 && k + Traits::kDepth <= depth) {
#pragma unroll
      for (int i = 0; i < Traits::kWaveRows; from = below(from, i), ++i) {
#pragma unroll
        for (int n = 0; n < Traits::kLaneSteps; ++n) load_streamed<sizeof(T)>(&x[i][n], from + n * kWaveSize);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < Traits::kWaveRows; from = below(from, i), ++i) {
#pragma unroll
      for (int n = 0; n < Traits::kLaneSteps; ++n) {
        x[i][n] = T{};
        if (k + n * kWaveSize + lane < depth) load_streamed<sizeof(T)>(&x[i][n], from + n * kWaveSize * col_stride);
      }
    }
  }

 private:
  // The address one row below the warp's i-th row.
  __device__ const T* below(const T* from, int i) const { return from + (i < rows_behind_ ? static_cast<uint32_t>(a_.row_stride) : 0); }

  const MatrixView& a_;
  const T* first_;
  int rows_behind_;  // rows of the tile after the warp's first row
};

// Starts the copies of B's K elements from `k` on; elements after the end of K become zero. Columns outside of the tile are not written.
template <class Traits, class T>
__device__ inline void copy_step_b(const ResolvedTile<T>& place, int k, T* stage) {
  const MatrixView& b = place.matrix[kB];
  const int left = place.depth - k, cols = place.cols, thread = thread_index();
  const T* const from = b.template at<const T>(k, 0);
  const int64_t row_stride = b.row_stride, col_stride = b.col_stride;
  if (b.access == Access::vectors) {
    constexpr int kCopies =
        Traits::kDepth * Traits::kVectors / Traits::kThreads > 0 ? Traits::kDepth * Traits::kVectors / Traits::kThreads : 1;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = thread + i * Traits::kThreads, step = at / Traits::kVectors, col = at % Traits::kVectors * Traits::kVector;
      if (step < Traits::kDepth && col < cols) {
        cp_async<kVectorBytes>(stage + step * Traits::kPitch + col, from + step * row_stride + col, step < left);
      }
    }
    return;
  }
  constexpr int kCopies = Traits::kDepth * Traits::kCols / Traits::kThreads;
  static_assert(kCopies * Traits::kThreads == Traits::kDepth * Traits::kCols);
  const bool down = b.access == Access::columns;  // adjacent threads copy adjacent elements of memory
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int at = thread + i * Traits::kThreads;
    const int step = down ? at % Traits::kDepth : at / Traits::kCols, col = down ? at / Traits::kDepth : at % Traits::kCols;
    if (col < cols) cp_async<sizeof(T)>(stage + step * Traits::kPitch + col, from + step * row_stride + col * col_stride, step < left);
  }
}

// Computes one tile.
template <class Traits, class T>
__device__ inline void multiply_dots(const ResolvedTile<T>& place, T* shared) {
  using Sum = typename Traits::Sum;
  const int wave = thread_index() / kWaveSize, lane = thread_index() % kWaveSize, depth = place.depth;
  const DotReader<Traits, T> rows(place.matrix[kA], place.rows, wave * Traits::kWaveRows);
  int uncopied = 0;
  const auto start_step = [&](T* stage) {
    if (uncopied < depth) copy_step_b<Traits>(place, uncopied, stage);
    uncopied += Traits::kDepth;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Traits::kStages - 1; ++slot) start_step(shared + slot * Traits::kStageElements);

  Sum sum[Traits::kSums] = {};
  int slot = 0;
#pragma unroll 1
  for (int k = 0; k < depth; k += Traits::kDepth) {
    typename DotReader<Traits, T>::Steps x;
    rows.read(k, depth, x);
    cp_async_wait_group<Traits::kStages - 2>();
    block_barrier();  // this step's B is visible, and no thread reads the previous stage any more
    start_step(shared + (slot == 0 ? Traits::kStages - 1 : slot - 1) * Traits::kStageElements);
    const T* const b = shared + slot * Traits::kStageElements + lane * Traits::kPitch;
#pragma unroll
    for (int n = 0; n < Traits::kLaneSteps; ++n) {
#pragma unroll
      for (int j = 0; j < Traits::kCols; j += Traits::kVector) {
        const auto y = *reinterpret_cast<const Vector<T, Traits::kVector>*>(b + n * kWaveSize * Traits::kPitch + j);
#pragma unroll
        for (int i = 0; i < Traits::kWaveRows; ++i) {
#pragma unroll
          for (int v = 0; v < Traits::kVector; ++v) {
            Sum& mine = sum[i * Traits::kCols + j + v];
            mine = multiply_add(widen(x[i][n]), widen(y.element[v]), mine);
          }
        }
      }
    }
    slot = slot == Traits::kStages - 1 ? 0 : slot + 1;
  }

  constexpr int kLeft = Traits::kSums / kWaveSize;
  const int first = add_lanes<1, Traits::kSums>(sum);
  block_barrier();  // all warps have read their last B
  const TileStaging<Traits> tile{reinterpret_cast<Sum*>(shared)};
#pragma unroll
  for (int n = 0; n < kLeft; ++n) tile.sums[wave * Traits::kSums + first + n] = sum[n];
  block_barrier();
  tile.store(place);
}

}  // namespace vbgemm
