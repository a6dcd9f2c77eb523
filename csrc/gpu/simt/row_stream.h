// Streams a warp's rows of A through shared memory: asynchronous copies that keep A's memory layout and run several passes ahead of the
// multiply-adds. A must be row-major without gaps between rows, or column-major. (On an H100, a warp that loads its rows into registers
// reads at 2.2 TB/s, because too few loads are in flight while it multiplies and writes; with these copies it reads at 2.75 TB/s.)
#pragma once
#include "gpu/tile/swizzle.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// `Traits` are the tile traits of row_tile.h. kWhole: A is known to be dense, with rows of whole 16-byte vectors.
template <class Traits, class T, bool kWhole>
class RowStream {
 public:
  static constexpr bool kStreams = true;
  static constexpr int kVector = Traits::kVector;

  // `place` is in shared memory and is read again where it is needed, which is cheaper than holding it in registers. `ring` is the warp's
  // own shared memory, kRingElements elements.
  __device__ RowStream(const ResolvedTile<T>& place, T* ring) : place_(place), ring_(ring), depth_(place.depth) {
    const MatrixView& a = place.matrix[kA];
    const bool aligned = reinterpret_cast<uintptr_t>(a.first) % kVectorBytes == 0;
    const bool gapless = a.row_stride == depth_ && a.col_stride == 1;
    columns_ = !kWhole && !gapless && a.access == Access::columns;
    whole_ = kWhole || (aligned && (columns_ ? a.col_stride : depth_) % kVector == 0);
    stage_elements_ = Traits::kWaveRows * depth_;
    passes_ = 0;
    if (!kWhole && (stage_elements_ == 0 || !(columns_ || (gapless && aligned)))) return;
#pragma unroll
    for (int passes = 1; passes <= kMaxPasses; ++passes) {
      passes_ += passes * stage_elements_ <= Traits::kRingElements && (passes == 1 || (passes - 1) * Traits::kPassRows < place.rows);
    }
  }

  __device__ bool in_columns() const { return columns_; }

  // The maximum number of passes in flight, at most the tile's number of passes. It is 0 if A has no suitable layout, or if shared memory
  // is too small for one pass.
  __device__ int passes() const { return passes_; }

  // Starts the copies of the pass whose first row is `row`; rows after the tile's last row are not copied. At most passes() calls may be
  // ahead of read().
  __device__ void start(int lane, int row) {
    const int left = place_.rows - row, rows = left < Traits::kWaveRows ? left : Traits::kWaveRows;
    const T* const first = static_cast<const T*>(place_.matrix[kA].first);
    T* const stage = ring_ + newest_ * stage_elements_;
    if (rows > 0 && columns_) {
      copy_columns(lane, first + row, rows, stage);
    } else if (rows > 0) {
      copy_rows(lane, first + row * depth_, rows * depth_, stage);
    }
    cp_async_commit_group();
    newest_ = newest_ == passes_ - 1 ? 0 : newest_ + 1;
  }

  // Waits for the oldest pass in flight.
  __device__ void await() const {
    await_all_but<0>();
    wave_barrier();
  }

  // Reads the vector at K element `k` from a row of the oldest pass. Only its first `count` elements exist; the others are left unchanged.
  __device__ void read(unsigned row, int k, int count, Vector<T, kVector>& x) const {
    const T* const stage = ring_ + newest_ * stage_elements_;  // the stage that will be overwritten next
    if (columns_) {
      read_elements<Traits::kWaveRows>(stage + k * Traits::kWaveRows + (kStoresEightRows ? in_column(k, row / 8) * 8 + row % 8 : row),
                                       count, x);
    } else if (whole_) {
      const unsigned vector = (row * depth_ + k) / kVector;
      if (count > 0) x = *reinterpret_cast<const Vector<T, kVector>*>(stage + swizzled_vector(vector) * kVector);
    } else {
      read_elements<1>(stage + row * depth_ + k, count, x);
    }
  }

  // The address of eight adjacent 16-bit rows of one K element, if the oldest pass is column-major.
  __device__ const T* eight_rows(int eight, int k) const {
    return ring_ + newest_ * stage_elements_ + k * Traits::kWaveRows + in_column(k, eight) * 8;
  }

 private:
  static constexpr int kMaxPasses = 6;

  // For 16-bit elements one ldmatrix loads eight rows of eight K elements, which have the same position in each vector of a line
  // (tensor_row_tile.h). The permutation puts these elements into different banks; adjacent elements are in different banks without it.
  static constexpr bool kStoresEightRows = Traits::kTensor && sizeof(T) == 2;
  __device__ static int in_column(int k, int eight) { return kStoresEightRows ? eight ^ (k >> 3 & 3) : eight; }

  // A chain of tests, because a jump through a table would load its target from memory and then fetch instructions there.
  template <int kFirst>
  __device__ void await_all_but() const {
    if constexpr (kFirst < kMaxPasses - 1) {
      if (passes_ > kFirst + 1) return await_all_but<kFirst + 1>();
    }
    cp_async_wait_group<kFirst>();
  }

  template <int kStride>
  __device__ static void read_elements(const T* from, int count, Vector<T, kVector>& x) {
#pragma unroll
    for (int n = 0; n < kVector; ++n) {
      if (n < count) x.element[n] = from[n * kStride];
    }
  }

  __device__ void copy_rows(int lane, const T* const first, int elements, T* const to) const {
    const T* from = first + lane * kVector;
    T* stage = to;
    const int vectors = static_cast<unsigned>(elements) / kVector;
    const LaneVectors<1> mine(lane, whole_);
#pragma unroll 1
    for (int at = lane; at < vectors; at += LaneVectors<1>::kPeriodVectors) {
#pragma unroll
      for (int turn = 0; turn < LaneVectors<1>::kPeriod; ++turn) {
        if (at + turn * kWaveSize >= vectors) break;
        cp_async<kVectorBytes, 256>(stage + mine.place[turn][0] * kVector, from + turn * kWaveSize * kVector, true);
      }
      from += LaneVectors<1>::kPeriodVectors * kVector;
      stage += LaneVectors<1>::kPeriodVectors * kVector;
    }
    if constexpr (!kWhole) {
#pragma unroll 1
      for (int i = vectors * kVector + lane; i < elements; i += kWaveSize) cp_async<sizeof(T)>(to + i, first + i, true);
    }
  }

  // Copies one column after another, each as long as a pass.
  __device__ void copy_columns(int lane, const T* from, int rows, T* stage) const {
    const int64_t stride = place_.matrix[kA].col_stride;
    if (whole_ && rows == Traits::kWaveRows) {
      constexpr int kVectors = Traits::kWaveRows / kVector;
#pragma unroll 2
      for (int i = lane; i < depth_ * kVectors; i += kWaveSize) {
        const int k = i / kVectors, vector = i % kVectors;
        cp_async<kVectorBytes, 256>(stage + (k * kVectors + in_column(k, vector)) * kVector, from + k * stride + vector * kVector, true);
      }
      return;
    }
#pragma unroll 1
    for (int i = lane; i < depth_ * Traits::kWaveRows; i += kWaveSize) {
      const int k = i / Traits::kWaveRows, row = i % Traits::kWaveRows;
      const int at = kStoresEightRows ? k * Traits::kWaveRows + in_column(k, row / 8) * 8 + row % 8 : i;
      if (row < rows) cp_async<sizeof(T)>(stage + at, from + k * stride + row, true);
    }
  }

  const ResolvedTile<T>& place_;
  T* ring_;
  int depth_, stage_elements_, passes_, newest_ = 0;
  bool columns_, whole_;  // whole_: in whole 16-byte vectors
};

// Like RowStream, for a column-major A whose K does not fit shared memory: the copies of one pass, kSteps K elements at a time. (A thread
// that loads its elements into registers has too few loads in flight if a problem has fewer thread blocks than the GPU could run at once.)
template <class Traits, class T>
class ColumnStream {
 public:
  static constexpr int kVector = Traits::kVector, kSteps = 2 * kVector, kStageElements = kSteps * Traits::kWaveRows;
  static constexpr int kStages = Traits::kRingElements / kStageElements;
  static_assert(kStages >= 3 && Traits::kDepth % kSteps == 0);

  // `row`: the first row of the warp's pass. Copies of an earlier pass must have been read by all lanes.
  __device__ ColumnStream(const ResolvedTile<T>& place, T* ring, int row) : place_(place), ring_(ring), row_(row) {
    const MatrixView& a = place.matrix[kA];
    const int left = place.rows - row;
    rows_ = left < 0 ? 0 : left < Traits::kWaveRows ? left : Traits::kWaveRows;
    whole_ = rows_ == Traits::kWaveRows && reinterpret_cast<uintptr_t>(a.first) % kVectorBytes == 0 && a.col_stride % kVector == 0;
  }

  __device__ bool has_rows() const { return rows_ > 0; }

  // Starts the copies of the K elements from `k` on; elements after the end of K are not copied. kStages - 1 calls must be ahead of
  // await().
  __device__ void start(int lane, int k) {
    const int64_t stride = place_.matrix[kA].col_stride;
    const T* const from = static_cast<const T*>(place_.matrix[kA].first) + row_ + k * stride;
    T* const stage = ring_ + newest_ * kStageElements;
    const int left = place_.depth - k, steps = left < kSteps ? left : kSteps;
    if (whole_) {
      constexpr int kVectors = Traits::kWaveRows / kVector;
#pragma unroll
      for (int turn = 0; turn < kSteps * kVectors / kWaveSize; ++turn) {
        const int i = turn * kWaveSize + lane, step = i / kVectors;
        if (step < steps) cp_async<kVectorBytes, 256>(stage + i * kVector, from + step * stride + i % kVectors * kVector, true);
      }
    } else {
#pragma unroll 1
      for (int i = lane; i < steps * Traits::kWaveRows; i += kWaveSize) {
        const int step = i / Traits::kWaveRows, row = i % Traits::kWaveRows;
        if (row < rows_) cp_async<sizeof(T)>(stage + i, from + step * stride + row, true);
      }
    }
    cp_async_commit_group();
    newest_ = newest_ == kStages - 1 ? 0 : newest_ + 1;
  }

  // Waits for the oldest copies in flight. After that, the next start() may overwrite the elements that were read before.
  __device__ void await() const {
    cp_async_wait_group<kStages - 2>();
    wave_barrier();
  }

  // The oldest K elements after await(): the rows of the first element, then of the second. Must be called before the next start().
  __device__ const T* oldest() const { return ring_ + (newest_ == kStages - 1 ? 0 : newest_ + 1) * kStageElements; }

 private:
  const ResolvedTile<T>& place_;
  T* ring_;
  int row_, rows_, newest_ = 0;
  bool whole_;  // in whole 16-byte vectors
};

}  // namespace vbgemm
