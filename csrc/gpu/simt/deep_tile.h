// One tile for a K far larger than M and N: the threads split K among themselves (sliced-K). Each group of a few threads computes the whole
// tile for its own K elements, and at the end the groups' accumulators are added up. Each warp streams its own K elements through shared
// memory in their memory layout. If an operand is MN-major without gaps, as in X^T X, it is copied in aligned 16-byte vectors for any M or
// N.
#pragma once
#include "gpu/simt/lane_sums.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// How a tile is divided, for operands of type T: the rectangle that one thread of a group computes, as large as registers for several
// thread blocks permit; the number of groups in a warp; and the K elements that a warp takes at a time. The catalogue's step is that of the
// whole thread block and counts 4-byte elements; here every group takes at least one K element.
struct DeepSplit {
  int thread_rows, thread_cols, groups, depth;
};
template <class T>
constexpr DeepSplit deep_split(const TileShape& tile) {
  const int most_cols = sizeof(Accumulator<T>) == 8 ? 4 : 8;
  const int rows = tile.m < 8 ? tile.m : 8, cols = tile.n < most_cols ? tile.n : most_cols;
  const int groups = kWaveSize / (tile.m / rows * (tile.n / cols)), step = k_step(tile, sizeof(T), kCdna) * kWaveSize / tile.threads;
  return {rows, cols, groups, step > groups ? step : groups};
}

// How row `kIndex` of the catalogue is divided, for operands of type T.
template <class T, int kIndex>
struct DeepTraits {
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads, kWaves = kThreads / kWaveSize;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));

  static constexpr DeepSplit kSplit = deep_split<T>(kShape);
  static constexpr int kThreadRows = kSplit.thread_rows, kThreadCols = kSplit.thread_cols, kSums = kThreadRows * kThreadCols;
  static constexpr int kDepth = kSplit.depth, kGroups = kSplit.groups, kGroup = kWaveSize / kGroups, kThreadsAcross = kCols / kThreadCols;

  // Padded so that K-major lines begin in different banks of shared memory. (The bank of element (line, k) is that of line x kPitch + k.)
  static constexpr int kPitch = kDepth + kVector;
  static constexpr int kStageA = kRows * kPitch, kStageElements = kStageA + kCols * kPitch;  // of a warp
  static constexpr int kStages = stages_of(kernel_of(kShape), kWaves * kStageElements * static_cast<int>(sizeof(T)));

  // Shared memory holds these stages, and after the last step a tile of sums for each warp.
  static constexpr int kTileSums = kRows * kCols, kSumElements = kTileSums * static_cast<int>(sizeof(Sum) / sizeof(T));
  static constexpr int kWaveElements = kStages * kStageElements > kSumElements ? kStages * kStageElements : kSumElements;
  static constexpr int kSharedElements = kWaves * kWaveElements;
  static_assert(kStages >= 2 && kSharedElements * static_cast<int>(sizeof(T)) <= shared_budget(kernel_of(kShape)));
  static_assert(kRows % kThreadRows == 0 && kCols % kThreadCols == 0 && kGroup <= kWaveSize && kDepth % kGroups == 0);
};

// One operand of a tile: `count` lines, at most kLines, which are rows of A or columns of B. `across` is the distance from one line to the
// next, and `along` the distance from one K element to the next. A thread takes kThreadLines of the lines; `member` says which. Shared
// memory keeps the operand's major order: K-major if it is K-major in global memory, otherwise MN-major.
template <class Traits, class T, int kLines, int kThreadLines>
class DeepOperand {
 public:
  using Sum = typename Traits::Sum;

  __device__ DeepOperand(const MatrixView& view, int count, int64_t across, int64_t along, int member)
      : first_(static_cast<const T*>(view.first)), across_(across), along_(along), count_(count) {
    const bool aligned = reinterpret_cast<uintptr_t>(first_) % kVectorBytes == 0;
    gapless_ = along == count && (across == 1 || count == 1);
    steps_together_ = along == 1 && !gapless_;
    const int64_t lengths = gapless_ ? 0 : steps_together_ ? across : along | count;
    vectors_ = aligned && lengths % kVector == 0 && (gapless_ || steps_together_ || across == 1);
    mine_ = steps_together_ ? member : member * kThreadLines;
    width_ = steps_together_ ? 1 : count | kVector;
  }

  // The thread's i-th line.
  __device__ int line(int i) const { return steps_together_ ? mine_ + i * (kLines / kThreadLines) : mine_ + i; }

  // Starts a warp's copies of `steps` K elements from `k` on.
  __device__ void start(T* shared, int k, int steps) const {
    const T* const from = first_ + k * along_;
    if (gapless_) return copy_all(shared, from, steps * count_);
    if (vectors_) {
      copy_lines<kVector>(shared, from, steps);
    } else {
      copy_lines<1>(shared, from, steps);
    }
  }

  // Reads this thread's lines at one K element. Lines after the last one hold arbitrary values; nothing is stored for them.
  __device__ void read(const T* shared, int k, Sum (&line)[kThreadLines]) const {
    if (steps_together_) {
#pragma unroll
      for (int i = 0; i < kThreadLines; ++i) line[i] = widen(shared[(mine_ + i * (kLines / kThreadLines)) * Traits::kPitch + k]);
      return;
    }
    const T* const from = shared + k * count_ + mine_;
    if (width_ % kVector == 0) return read_lines<kVector>(from, line);
    if (width_ % 2 == 0) return read_lines<2>(from, line);
    read_lines<1>(from, line);
  }

 private:
  static constexpr int kVector = Traits::kVector;

  template <int kWidth>
  __device__ static void read_lines(const T* from, Sum (&line)[kThreadLines]) {
    constexpr int kVectorWidth = kWidth < kThreadLines ? kWidth : kThreadLines;
#pragma unroll
    for (int i = 0; i < kThreadLines; i += kVectorWidth) {
      const auto lines = *reinterpret_cast<const Vector<T, kVectorWidth>*>(from + i);
#pragma unroll
      for (int v = 0; v < kVectorWidth; ++v) line[i + v] = widen(lines.element[v]);
    }
  }

  // Copies elements that are contiguous both in global and in shared memory.
  __device__ void copy_all(T* shared, const T* from, int elements) const {
    constexpr int kCopies = (kLines * Traits::kDepth / kVector + kWaveSize - 1) / kWaveSize;
    const int lane = thread_index() % kWaveSize, pieces = vectors_ ? elements / kVector : 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int piece = lane + i * kWaveSize;
      if (piece < pieces) cp_async<kVectorBytes, 256>(shared + piece * kVector, from + piece * kVector, true);
    }
#pragma unroll 1
    for (int at = pieces * kVector + lane; at < elements; at += kWaveSize) cp_async<sizeof(T)>(shared + at, from + at, true);
  }

  // Copies in the operand's major order, kWidth elements at a time, and the ends element by element.
  template <int kWidth>
  __device__ void copy_lines(T* shared, const T* from, int steps) const {
    const int rows = steps_together_ ? count_ : steps, length = steps_together_ ? steps : count_;
    const int64_t pitch = steps_together_ ? across_ : along_, next = steps_together_ ? 1 : across_;
    const int shared_pitch = steps_together_ ? Traits::kPitch : count_, pieces = (length + kWidth - 1) / kWidth;
#pragma unroll 1
    for (int piece = thread_index() % kWaveSize; piece < rows * pieces; piece += kWaveSize) {
      const int row = piece / pieces, at = (piece - row * pieces) * kWidth;
      const T* const source = from + row * pitch + at * next;
      T* const to = shared + row * shared_pitch + at;
      if (at + kWidth <= length) {
        cp_async<kWidth* static_cast<int>(sizeof(T)), 256>(to, source, true);
      } else {
        for (int i = 0; at + i < length; ++i) cp_async<sizeof(T)>(to + i, source + i, true);
      }
    }
  }

  const T* first_;
  int64_t across_, along_;
  int count_, mine_, width_;
  bool gapless_, steps_together_, vectors_;
};

// Adds the sums of all warps to those of the first warp.
template <class Traits>
__device__ inline void add_waves(const TileStaging<Traits>& staging) {
#pragma unroll
  for (int n = 0; n < TileStaging<Traits>::kElements; ++n) {
    const int at = staging.index(n);
    if (at >= Traits::kTileSums) break;
    typename Traits::Sum sum = staging.element(n);
#pragma unroll
    for (int wave = 1; wave < Traits::kWaves; ++wave) sum = sum + staging.sums[wave * Traits::kTileSums + at];
    staging.element(n) = sum;
  }
}

// Computes one tile. The warps take turns along K; each has the copies of its next kStages - 1 turns in flight before it waits for the
// first.
template <class Traits, class T>
__device__ inline void multiply_deep(const ResolvedTile<T>& place, T* shared) {
  using Sum = typename Traits::Sum;
  const int thread = thread_index(), wave = thread / kWaveSize, lane = thread % kWaveSize, member = lane % Traits::kGroup;
  const MatrixView &a = place.matrix[kA], &b = place.matrix[kB];
  const DeepOperand<Traits, T, Traits::kRows, Traits::kThreadRows> rows(a, place.rows, a.row_stride, a.col_stride,
                                                                        member / Traits::kThreadsAcross);
  const DeepOperand<Traits, T, Traits::kCols, Traits::kThreadCols> cols(b, place.cols, b.col_stride, b.row_stride,
                                                                        member % Traits::kThreadsAcross);
  const int depth = place.depth;
  constexpr int kDepthPerTurn = Traits::kWaves * Traits::kDepth;  // K elements that all warps take in one turn
  T* const stages = shared + wave * Traits::kWaveElements;
  int uncopied = wave * Traits::kDepth;
  const auto start_step = [&](T* stage) {
    const int left = depth - uncopied, steps = left < Traits::kDepth ? left : Traits::kDepth;
    if (steps > 0) {
      rows.start(stage, uncopied, steps);
      cols.start(stage + Traits::kStageA, uncopied, steps);
    }
    uncopied += kDepthPerTurn;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Traits::kStages - 1; ++slot) start_step(stages + slot * Traits::kStageElements);

  Sum sum[Traits::kSums] = {};
  int slot = 0;
#pragma unroll 1
  for (int begin = wave * Traits::kDepth; begin < depth; begin += kDepthPerTurn) {
    cp_async_wait_group<Traits::kStages - 2>();
    wave_barrier();  // this step's data are visible, and no lane reads the previous stage any more
    start_step(stages + (slot == 0 ? Traits::kStages - 1 : slot - 1) * Traits::kStageElements);
    const T* const stage = stages + slot * Traits::kStageElements;
    const int left = depth - begin, steps = left < Traits::kDepth ? left : Traits::kDepth;
#pragma unroll 1
    for (int k = lane / Traits::kGroup; k < steps; k += Traits::kGroups) {
      Sum x[Traits::kThreadRows], y[Traits::kThreadCols];
      rows.read(stage, k, x);
      cols.read(stage + Traits::kStageA, k, y);
#pragma unroll
      for (int i = 0; i < Traits::kThreadRows; ++i) {
#pragma unroll
        for (int j = 0; j < Traits::kThreadCols; ++j) {
          sum[i * Traits::kThreadCols + j] = multiply_add(x[i], y[j], sum[i * Traits::kThreadCols + j]);
        }
      }
    }
    slot = slot == Traits::kStages - 1 ? 0 : slot + 1;
  }

  constexpr int kLeft = Traits::kSums > Traits::kGroups ? Traits::kSums / Traits::kGroups : 1;
  const int first = add_lanes<Traits::kGroup, Traits::kSums>(sum);
  block_barrier();  // all warps have read their last operands
  const TileStaging<Traits> tile{reinterpret_cast<Sum*>(shared)};
  // This lane holds a duplicate of another lane's sum.
  const bool is_duplicate = Traits::kSums < Traits::kGroups && lane >= Traits::kSums * Traits::kGroup;
  if (!is_duplicate) {
    Sum* const mine = tile.sums + wave * Traits::kTileSums;
#pragma unroll
    for (int n = 0; n < kLeft; ++n) {
      const int at = first + n;
      mine[rows.line(at / Traits::kThreadCols) * Traits::kCols + cols.line(at % Traits::kThreadCols)] = sum[n];
    }
  }
  block_barrier();
  add_waves(tile);
  tile.store(place);
}

}  // namespace vbgemm
