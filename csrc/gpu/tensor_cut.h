// How a tile of the catalogue is cut up among the waves of its block on tensor cores, and how it lies in shared memory: constants only.
#pragma once
#include "../catalogue.h"
#include "tensor_element.h"
#include "tile_cut.h"

namespace vbgemm {

// Threads that form a product together. (On AMD they are 64: mfma_cut.h.)
inline constexpr int kLanes = 32;

// Blocks of a tensor kernel that a multiprocessor must be able to hold: as many as their registers allow without spills.
constexpr int tensor_min_blocks(Kind kind, Kernel kernel) {
  if (kernel == Kernel::m128_light) return kind == Kind::f64 ? 3 : 4;
  return kernel == Kernel::m256_heavy && kind == Kind::tf32x3 ? 1 : 2;
}

// Shared memory a block may use, so that as many fit into the 228 KB of a multiprocessor, 1 KB of which each block costs beside its own.
// All fit the 163 KB that a block may have on sm_80.
constexpr int tensor_shared_budget(Kind kind, Kernel kernel) {
  if (kernel == Kernel::m128_light) return (kind == Kind::f64 ? 74 : 56) * 1024;
  return 112 * 1024;
}

// One operand's part of a step in shared memory. It keeps the direction in which it is contiguous in global memory, so that both are copied
// by vectors: with kDepthItems a line holds one row of A (column of B) along K, else one step of K along the rows (columns).
//
// A wave's products take rows g of eight at a time. kInterleave of these "halves" are interleaved (row kInterleave g + j is row g of half
// j), so that a lane reads one row of each by one access along a line. Where lines are rows they are stored half by half.
template <class T, int kOuter, int kDepth, bool kDepthItems_, int kInterleave_>
struct Lines {
  static constexpr bool kDepthItems = kDepthItems_;
  static constexpr int kInterleave = kInterleave_;
  static constexpr int kLines = kDepthItems ? kOuter : kDepth, kItems = kDepthItems ? kDepth : kOuter;
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  // Eight lines' 16-byte pieces, or four lines' 32 bytes where lanes read along or across them without ldmatrix, in different banks.
  static constexpr int kPadding = (kBytes == 8 || (kBytes == 4 && !kDepthItems) ? 32 : 16) / kBytes;
  static constexpr int kPitch = kItems + kPadding;
  static constexpr int kElements = kLines * kPitch;

  // Where a line is stored. A permutation of the number's bits: it may be applied to parts that share none.
  static constexpr __host__ __device__ int stored(int line) {
    constexpr int kGroup = 8 * kInterleave;
    return !kDepthItems || kInterleave == 1 ? line : line / kGroup * kGroup + line % kInterleave * 8 + line % kGroup / kInterleave;
  }
};

constexpr int largest_of(int a, int b) { return a > b ? a : b; }

// Row `kIndex` of the catalogue.
template <Kind kKind_, int kIndex>
struct TensorCut {
  static constexpr Kind kKind = kKind_;
  using T = typename TensorElement<kKind>::type;
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  // The catalogue counts 4-byte elements; others take as many bytes a step.
  static constexpr int kDepth = kShape.k * 4 / kBytes;
  static constexpr int kChunk = kBytes == 2 ? 16 : 8, kChunks = kDepth / kChunk;  // K of one instruction, and how many make a step

  static constexpr int kWaves = kThreads / kLanes;
  static constexpr WaveGrid kGrid = wave_grid(kShape);
  static constexpr int kWaveRows = kGrid.rows, kWaveCols = kGrid.cols, kWavesDown = kGrid.down, kWavesAcross = kGrid.across;
  static constexpr int kSplit = kGrid.split;  // waves that share a step's K
  static_assert(kSplit * kWavesDown * kWavesAcross == kWaves && kChunks % kSplit == 0);

  // Whether a step loads its first fragments before it starts copies: that hides some latency, and costs registers to keep them.
  static constexpr bool kLoadsFirst = kKernel == Kernel::m128_light && kKind != Kind::f64 && kKind != Kind::tf32x3;

  static constexpr int kBlocksDown = kWaveRows / 16, kBlocksAcross = kWaveCols / 8;  // products of 16 x 8 a wave

  static constexpr bool kInterleaved = kKind == Kind::tf32 || kKind == Kind::tf32x3;
  static constexpr int kRowInterleave = kInterleaved ? kWaveRows / 8 : 1, kColInterleave = kInterleaved ? 4 : 1;
  template <bool kDepthItems>
  using A = Lines<T, kRows, kDepth, kDepthItems, kRowInterleave>;
  template <bool kDepthItems>
  using B = Lines<T, kCols, kDepth, kDepthItems, kColInterleave>;

  // Row (column) g of a wave's half.
  template <int kInterleave>
  static constexpr __host__ __device__ int outer(int half, int g) {
    return half / kInterleave * 8 * kInterleave + kInterleave * g + half % kInterleave;
  }

  static constexpr int kElementsA = largest_of(A<true>::kElements, A<false>::kElements);
  static constexpr int kElementsB = largest_of(B<true>::kElements, B<false>::kElements);
  static constexpr int kStageElements = kElementsA + kElementsB;
  static constexpr int stages() {
    const int fit = (tensor_shared_budget(kKind, kKernel) - 512) / (kStageElements * kBytes);  // the tile's place lies beside them
    return fit < 8 ? fit : 8;
  }
  static constexpr int kStages = stages();
  static_assert(kStages >= 2, "the pipeline needs two stages: lower the tile's step along K");

  // Afterwards the same memory holds the sums, of each share of K.
  static constexpr int kSumPitch = kCols + 8, kPlane = kRows * kSumPitch;
  static constexpr int kSumElements = kSplit * kPlane * static_cast<int>(sizeof(Sum)) / kBytes;
  static constexpr int kSharedElements = largest_of(kStages * kStageElements, kSumElements);
};

}  // namespace vbgemm
