// How a tile of the catalogue is cut up among the waves of its block on tensor cores, and how it lies in shared memory: constants only.
#pragma once
#include "catalogue.h"
#include "gpu/tile/tile_cut.h"

namespace vbgemm {

// Threads that form a product together. (On AMD they are 64: mfma_cut.h.)
inline constexpr int kLanes = 32;

constexpr bool fills_multiprocessor(Kind kind, Kernel kernel) {
  return kernel == Kernel::m256_full || (kernel == Kernel::m256_heavy && kind == Kind::tf32x3);
}

// Blocks of a tensor kernel that a multiprocessor must be able to hold: as many as their registers allow without spills.
constexpr int tensor_min_blocks(Kind kind, Kernel kernel) {
  if (kernel == Kernel::m128_light) return kind == Kind::f64 || kind == Kind::tf32x3 ? 3 : 4;
  if (kernel == Kernel::m128_rows || kernel == Kernel::m128_wide_rows) return tensor_row_blocks(kernel, bytes_of(arithmetic_of(kind).lhs));
  return fills_multiprocessor(kind, kernel) ? 1 : 2;
}

// Shared memory a block may use, so that as many fit into the 228 KB of a multiprocessor, 1 KB of which each block costs beside its own.
// All fit the 163 KB that a block may have on sm_80.
constexpr int tensor_shared_budget(Kind kind, Kernel kernel) {
  if (kernel == Kernel::m128_light) return (kind == Kind::f64 || kind == Kind::tf32x3 ? 74 : 56) * 1024;
  if (kernel == Kernel::m256_dots) return 44 * 1024;
  return (fills_multiprocessor(kind, kernel) ? 160 : 112) * 1024;
}

// Steps along K that lie in that memory at a time, each of so many bytes, beside `other_bytes`.
constexpr int tensor_stages(Kind kind, Kernel kernel, int stage_bytes, int other_bytes = 0) {
  constexpr int kPlace = 512, kMost = 8;  // the tile's place lies there too
  const int fit = (tensor_shared_budget(kind, kernel) - kPlace - other_bytes) / stage_bytes;
  return fit < kMost ? fit : kMost;
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
  static constexpr bool kPiecesOnly = false;  // else only operands that are copied by whole pieces lie like this

  // Where a line is stored. A permutation of the number's bits: it may be applied to parts that share none.
  static constexpr __host__ __device__ int stored(int line) {
    constexpr int kGroup = 8 * kInterleave;
    return !kDepthItems || kInterleave == 1 ? line : line / kGroup * kGroup + line % kInterleave * 8 + line % kGroup / kInterleave;
  }

  // Where an item lies, `ahead` lines behind a line; they share no bits with it.
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) { return (stored(line) + stored(ahead)) * kPitch + item; }
};

inline constexpr int kSwizzleBytes = 1024;

// The same for the products of a warpgroup. Its tensor cores read 8 lines' pieces of 16 bytes at a time: the eight pieces of 128 bytes of a
// line are permuted by the line's number, so that they are in different banks, and so are a line's, which are written together. This is
// the layout that the PTX ISA calls 128-byte swizzling, of 8 lines of 128 bytes at a multiple of kSwizzleBytes. 4-byte elements can also be
// copied there one by one; 2-byte ones come in whole pieces, or not this way.
template <class T, int kOuter, int kDepth, bool kDepthItems_>
struct SwizzledLines {
  static constexpr bool kDepthItems = kDepthItems_;
  static constexpr int kLines = kDepthItems ? kOuter : kDepth, kItems = kDepthItems ? kDepth : kOuter;
  static constexpr int kPiece = kVectorBytes / static_cast<int>(sizeof(T)), kRow = 8 * kPiece, kColumn = kLines * kRow;
  static constexpr int kElements = kLines * kItems;
  static constexpr bool kPiecesOnly = sizeof(T) == 2;
  static_assert(kItems % kRow == 0 && kLines % 8 == 0);

  // As for Lines, line and ahead share no bits: many lines ahead then lie at constant distances.
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) {
    return item / kRow * kColumn + (line + ahead) * kRow + ((item / kPiece ^ line) % 8 ^ ahead % 8) * kPiece + item % kPiece;
  }

  // From one instruction's steps of K to the next's, and from 64 rows of A (columns of B) to the next.
  static constexpr int kDepthStep = kDepthItems ? 2 * kPiece : 16 * kRow, kOuterStep = kDepthItems ? 64 * kRow : kColumn;
  static constexpr int kEightLines = 8 * kRow;
};

// Row (column) g of a wave's half, of which kInterleave are interleaved.
template <int kInterleave>
constexpr __host__ __device__ int interleaved(int half, int g) {
  return half / kInterleave * 8 * kInterleave + kInterleave * g + half % kInterleave;
}

constexpr int largest_of(int a, int b) { return a > b ? a : b; }

// Row `kIndex` of the catalogue; kWarpgroups: for products by four waves together, each of which has 16 of a product's 64 rows. Of 4-byte
// elements these products want K along the lines of shared memory. A has it there as a rule and B doesn't; but one of the two factors may
// come from registers, however it lies, the left one. So they compute the transpose, C^T = B^T A^T, and a wave's rows are C's columns.
template <Kind kKind_, int kIndex_, bool kWarpgroups = false>
struct TensorCut {
  static constexpr Kind kKind = kKind_;
  static constexpr int kIndex = kIndex_;
  using T = LeftOf<kKind>;
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  // The catalogue counts 4-byte elements; others take as many bytes a step.
  static constexpr int kDepth = kShape.k * 4 / kBytes;
  static constexpr int kChunk = kBytes == 2 ? 16 : 8, kChunks = kDepth / kChunk;  // K of one instruction, and how many make a step

  static constexpr int kWaves = kThreads / kLanes;
  static constexpr bool kTransposed = kWarpgroups && kBytes == 4;
  // Narrower tiles are no faster by warpgroups.
  static constexpr bool kSuitsWarpgroups =
      kWaves % 4 == 0 && (kBytes == 2 ? kRows == 16 * kWaves && kCols == 128
                                      : kBytes == 4 && kRows >= (kKind == Kind::tf32 ? 32 : 64) && kCols >= 16 * kWaves);
  static constexpr WaveGrid kGrid = kTransposed   ? WaveGrid{kRows, kCols / kWaves, 1, kWaves, 1}
                                    : kWarpgroups ? WaveGrid{16, kCols, kWaves, 1, 1}
                                                  : wave_grid(kShape);
  static constexpr int kWaveRows = kGrid.rows, kWaveCols = kGrid.cols, kWavesDown = kGrid.down, kWavesAcross = kGrid.across;
  static constexpr int kSplit = kGrid.split;  // waves that share a step's K
  static_assert(kSplit * kWavesDown * kWavesAcross == kWaves && kChunks % kSplit == 0);

  // Whether a step loads its first fragments before it starts copies: that hides some latency, and costs registers to keep them.
  static constexpr bool kLoadsFirst = kKernel == Kernel::m128_light && kKind != Kind::f64 && kKind != Kind::tf32x3;

  // Whether what a step's copies need again stays in registers: where some are left.
  static constexpr bool kKeepsPlaces = kThreads == 128 || fills_multiprocessor(kKind, kKernel);

  // Products of 16 x 8 a wave.
  static constexpr int kBlocksDown = (kTransposed ? kWaveCols : kWaveRows) / 16, kBlocksAcross = (kTransposed ? kWaveRows : kWaveCols) / 8;

  static constexpr bool kInterleaved = kKind == Kind::tf32 || kKind == Kind::tf32x3;
  static constexpr int kRowInterleave = kInterleaved ? kWaveRows / 8 : 1;
  static constexpr int kColInterleave = kTransposed ? kWaveCols / 8 : kInterleaved ? 4 : 1;
  template <bool kSwizzled, int kOuter, bool kDepthItems, int kInterleave>
  using Operand =
      std::conditional_t<kSwizzled, SwizzledLines<T, kOuter, kDepth, kDepthItems>, Lines<T, kOuter, kDepth, kDepthItems, kInterleave>>;
  template <bool kDepthItems>
  using A = Operand<kWarpgroups, kRows, kDepthItems, kRowInterleave>;
  template <bool kDepthItems>
  using B = Operand<kWarpgroups && !kTransposed, kCols, kDepthItems, kColInterleave>;

  static constexpr int kElementsA = largest_of(A<true>::kElements, A<false>::kElements);
  static constexpr int kElementsB = largest_of(B<true>::kElements, B<false>::kElements);
  static constexpr int kStageElements = kElementsA + kElementsB;
  static_assert(!kWarpgroups || kStageElements * kBytes % kSwizzleBytes == 0);
  // What the tensor cores are to see as A's small parts: this step's, and the one's before, which may still be read.
  static constexpr int kSmallElements = kTransposed && kKind == Kind::tf32x3 ? 2 * kElementsA : 0;
  static constexpr int kStages = tensor_stages(kKind, kKernel, kStageElements* kBytes, kSmallElements* kBytes);
  static_assert(kStages >= 2, "the pipeline needs two stages: lower the tile's step along K");

  // Afterwards the same memory holds the sums, of each share of K. Lanes write to four neighbouring rows at a time, of a transposed product
  // to every second of eight: each row has banks of its own.
  static constexpr int kSumPitch = kCols + (kTransposed ? 4 : 8), kPlane = kRows * kSumPitch;
  static constexpr int kSumElements = kSplit * kPlane * static_cast<int>(sizeof(Sum)) / kBytes;
  static constexpr int shared_elements() {
    const int mine = largest_of(kStages * kStageElements + kSmallElements, kSumElements);
    // A launch does not know which of the two its device takes.
    if constexpr (kSuitsWarpgroups && !kWarpgroups) return largest_of(mine, TensorCut<kKind, kIndex, true>::kSharedElements);
    return mine;
  }
  static constexpr int kSharedElements = shared_elements();
};

}  // namespace vbgemm
