// How a dot-product tile on tensor cores is divided among its warps, and how B is laid out in shared memory: constants and the addresses of
// a lane's operands.
#pragma once
#include "gpu/tensor/tensor_product.h"

namespace vbgemm {

// Four adjacent 16-byte vectors along K form a "line"; lane 4 g + t takes the t-th vector of each line of a row of A and of a column of B.
// An mma instruction assigns other K elements to the lane, but a sum over K does not change if A and B are permuted alike.
template <class T>
struct DotLine {
  static constexpr int kVectorItems = kVectorBytes / static_cast<int>(sizeof(T)), kDepth = 4 * kVectorItems;
  static constexpr int kWords = kVectorBytes / static_cast<int>(sizeof(Register<T>));  // registers in a vector
  using Registers = Vector<Register<T>, kWords>;
};

// B in shared memory, K-major, so that a lane reads a vector by one access. Adjacent columns lie in different banks. kKMajor: B is K-major
// in global memory, too; otherwise it is copied element by element.
template <class T, int kCols, int kDepth, bool kKMajor_>
struct DotColumns {
  using Line = DotLine<T>;
  static constexpr bool kKMajor = kKMajor_, kMayTranspose = false;
  static constexpr int kLines = kKMajor ? kCols : kDepth, kItems = kKMajor ? kDepth : kCols;
  static constexpr int kPitch = kDepth + Line::kDepth, kElements = kCols * kPitch;

  static constexpr int kLineElements = Line::kDepth;  // distance between lines of K

  // The position of an item in the line `ahead` lines after `line`.
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) {
    return kKMajor ? (line + ahead) * kPitch + item : item * kPitch + line + ahead;
  }

  // The offset of this lane's first vector in elements, and its vector of one line in a block of eight columns.
  __device__ static int lane_offset() {
    const int lane = thread_index() % kLanes;
    return lane / 4 * kPitch + lane % 4 * Line::kVectorItems;
  }
  __device__ static typename Line::Registers read(const T* lane_start, int line, int block) {
    return *reinterpret_cast<const typename Line::Registers*>(lane_start + 8 * block * kPitch + line * kLineElements);
  }
};

// B in shared memory, N-major, for 16-bit elements that are N-major in global memory. ldmatrix transposes B on the way to registers: eight
// adjacent columns form a 16-byte row of a matrix, and the next eight columns follow after all K elements. Space after the last columns
// holds the ends of shifted lines.
template <class T, int kCols, int kDepth>
struct DotSteps {
  using Line = DotLine<T>;
  static constexpr bool kKMajor = false, kMayTranspose = false;
  static constexpr int kLines = kDepth, kItems = kCols;
  static constexpr int kBlock = kDepth * 8, kElements = (kCols / 8 + 1) * kBlock;
  static constexpr int kLineElements = Line::kDepth * 8;
  static_assert(sizeof(T) == 2);

  // The position of a K element: elements 2w and 2w + 1 of the t-th vector of 8 become rows 2t and 2t + 1 of matrix w, which gives lane t
  // its w-th register. This permutes the bits of the index, so it may be applied separately to summands that have no bits in common.
  static constexpr __host__ __device__ int stored(int step) {
    return step / Line::kDepth * Line::kDepth + step % 8 / 2 * 8 + step % Line::kDepth / 8 * 2 + step % 2;
  }
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) {
    return item / 8 * kBlock + (stored(line) + stored(ahead)) * 8 + item % 8;
  }

  __device__ static int lane_offset() { return thread_index() % kLanes * 8; }
  __device__ static typename Line::Registers read(const T* lane_start, int line, int block) {
    typename Line::Registers registers;
    ldmatrix_x4_trans(lane_start + block * kBlock + line * kLineElements, registers.element);
    return registers;
  }
};

// How row `kIndex` of the catalogue is divided.
template <Kind kKind_, int kIndex>
struct TensorDotTraits {
  static constexpr Kind kKind = kKind_;
  using T = LeftOf<kKind>;
  using Sum = Accumulator<T>;
  using Line = DotLine<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  static constexpr int kDepth = k_step(kShape, kBytes, kCdna), kLines = kDepth / Line::kDepth;

  // Each warp computes 16 rows and all columns, in MMAs of 16 x 8.
  static constexpr int kWaveRows = 16, kWaveCols = kCols, kWavesM = kThreads / kLanes, kWavesN = 1, kSplit = 1;
  static constexpr int kBlocksM = 1, kBlocksN = kCols / 8;
  static_assert(kWavesM * kWaveRows == kRows && kBlocksN * 8 == kCols && kLines * Line::kDepth == kDepth);

  template <bool kKMajor>
  using B = std::conditional_t<kBytes == 2 && !kKMajor, DotSteps<T, kCols, kDepth>, DotColumns<T, kCols, kDepth, kKMajor>>;
  static constexpr int kStageElements = largest_of(B<true>::kElements, B<false>::kElements);
  static constexpr int kStages = tensor_stages(kKind, kKernel, kStageElements* kBytes);
  static_assert(kStages >= 2, "the pipeline needs two stages: lower the tile's step along K");

  // After the last step the same memory holds the accumulators. The lanes of a warp write four adjacent rows at a time (two rows of 8-byte
  // sums), which the pitch puts into different banks.
  static constexpr bool kTransposed = false;
  static constexpr int kRowInterleave = 1, kColInterleave = 1;
  static constexpr int kPitchInSums = (kBlocksN | 1) * 8, kPlane = kRows * kPitchInSums;
  static constexpr int kSharedElements = largest_of(kStages * kStageElements, kPlane* static_cast<int>(sizeof(Sum)) / kBytes);
};

}  // namespace vbgemm
