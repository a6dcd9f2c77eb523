// How a tile of dot products on tensor cores is cut up among its waves, and how its B lies in shared memory: constants, and where a lane
// finds what it multiplies.
#pragma once
#include "gpu/tensor/tensor_product.h"

namespace vbgemm {

// Of a row of A, and of a column of B, a lane (4 g + t) takes pieces of 16 bytes: the t-th of each four that lie side by side, a "line" of
// K. A product on tensor cores wants other steps of each lane, but a sum doesn't mind in which order its steps come, if A's and B's are
// permuted alike.
template <class T>
struct DotLine {
  static constexpr int kPiece = kVectorBytes / static_cast<int>(sizeof(T)), kDepth = 4 * kPiece;
  static constexpr int kWords = kVectorBytes / static_cast<int>(sizeof(Register<T>));  // registers of a piece
  using Piece = Vector<Register<T>, kWords>;
};

// Columns of B in shared memory, each along K, so that a lane reads a piece by one access; two columns' lines lie in different banks.
// kDepthItems: whether B lies like that in global memory, too, else it is copied by elements.
template <class T, int kCols, int kDepth, bool kDepthItems_>
struct DotColumns {
  using Line = DotLine<T>;
  static constexpr bool kDepthItems = kDepthItems_;
  static constexpr int kLines = kDepthItems ? kCols : kDepth, kItems = kDepthItems ? kDepth : kCols;
  static constexpr int kPitch = kDepth + Line::kDepth, kElements = kCols * kPitch;

  static constexpr int kLineElements = Line::kDepth;  // from one line of K to the next

  // Where an item lies, `ahead` lines behind a line.
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) {
    return kDepthItems ? (line + ahead) * kPitch + item : item * kPitch + line + ahead;
  }

  // Where this lane's pieces begin, and its piece of a line of K and eight columns.
  __device__ static int first() {
    const int lane = thread_index() % kLanes;
    return lane / 4 * kPitch + lane % 4 * Line::kPiece;
  }
  __device__ static typename Line::Piece read(const T* first, int line, int block) {
    return *reinterpret_cast<const typename Line::Piece*>(first + 8 * block * kPitch + line * kLineElements);
  }
};

// Steps of K of B in shared memory, as they lie in global memory, of elements of 16 bits, which are transposed on the way to registers:
// eight columns side by side are a matrix's row of 16 bytes, and the next eight columns lie behind all steps. Behind the last are the ends
// of shifted steps.
template <class T, int kCols, int kDepth>
struct DotSteps {
  using Line = DotLine<T>;
  static constexpr bool kDepthItems = false;
  static constexpr int kLines = kDepth, kItems = kCols;
  static constexpr int kBlock = kDepth * 8, kElements = (kCols / 8 + 1) * kBlock;
  static constexpr int kLineElements = Line::kDepth * 8;
  static_assert(sizeof(T) == 2);

  // Steps 2w and 2w + 1 of the t-th piece of 8 become rows 2t and 2t + 1 of matrix w, which gives lane t its w-th register. A permutation
  // of the number's bits: it may be applied to parts that share none.
  static constexpr __host__ __device__ int stored(int step) {
    return step / Line::kDepth * Line::kDepth + step % 8 / 2 * 8 + step % Line::kDepth / 8 * 2 + step % 2;
  }
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) {
    return item / 8 * kBlock + (stored(line) + stored(ahead)) * 8 + item % 8;
  }

  __device__ static int first() { return thread_index() % kLanes * 8; }
  __device__ static typename Line::Piece read(const T* first, int line, int block) {
    typename Line::Piece piece;
    load_matrices_transposed(first + block * kBlock + line * kLineElements, piece.element);
    return piece;
  }
};

// Row `kIndex` of the catalogue.
template <Kind kKind_, int kIndex>
struct TensorDotCut {
  static constexpr Kind kKind = kKind_;
  using T = LeftOf<kKind>;
  using Sum = Accumulator<T>;
  using Line = DotLine<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  // The catalogue counts 4-byte elements; others take as many bytes a step.
  static constexpr int kDepth = kShape.k * 4 / kBytes, kLines = kDepth / Line::kDepth;

  // A wave has 16 rows to itself, and all columns: products of 16 x 8.
  static constexpr int kWaveRows = 16, kWaveCols = kCols, kWavesDown = kThreads / kLanes, kWavesAcross = 1, kSplit = 1;
  static constexpr int kBlocksDown = 1, kBlocksAcross = kCols / 8;
  static_assert(kWavesDown * kWaveRows == kRows && kBlocksAcross * 8 == kCols && kLines * Line::kDepth == kDepth);

  template <bool kDepthItems>
  using B = std::conditional_t<kBytes == 2 && !kDepthItems, DotSteps<T, kCols, kDepth>, DotColumns<T, kCols, kDepth, kDepthItems>>;
  static constexpr int kStageElements = largest_of(B<true>::kElements, B<false>::kElements);
  static constexpr int kStages = tensor_stages(kKind, kKernel, kStageElements* kBytes);
  static_assert(kStages >= 2, "the pipeline needs two stages: lower the tile's step along K");

  // Afterwards the same memory holds the sums, of which lanes write four (of 8 bytes: two) neighbouring rows at a time: in banks of their
  // own.
  static constexpr bool kTransposed = false;
  static constexpr int kRowInterleave = 1, kColInterleave = 1;
  static constexpr int kSumPitch = (kBlocksAcross | 1) * 8, kPlane = kRows * kSumPitch;
  static constexpr int kSharedElements = largest_of(kStages * kStageElements, kPlane* static_cast<int>(sizeof(Sum)) / kBytes);
};

}  // namespace vbgemm
