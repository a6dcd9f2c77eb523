// How a tile of the catalogue is divided among the warps of its thread block on tensor cores, and how its operands are laid out in shared
// memory. The file holds compile-time constants only.
#pragma once
#include "catalogue.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

// Threads that execute one MMA: a warp. (On AMD GPUs a wave has 64: mfma_traits.h.)
inline constexpr int kLanes = 32;

constexpr bool is_8bit(Kind kind) { return bytes_of(arithmetic_of(kind).lhs) == 1; }
template <Kind kKind>
inline constexpr bool kIs8Bit = is_8bit(kKind);  // a constant, because device code cannot call the function

// Whether a kernel holds the tiles with the fewest accumulators, which run with the most thread blocks per multiprocessor.
constexpr bool is_light(Kernel kernel) { return kernel == Kernel::m128_light || kernel == Kernel::m128_long; }

// Whether a multiprocessor holds only three thread blocks of the light kernels, not four: with four there would be too few registers, or
// only two stages of byte types, which are padded the most.
constexpr bool has_three_light_blocks(Kind kind) { return kind == Kind::f64 || kind == Kind::tf32x3 || is_8bit(kind); }

// Whether a kernel is meant to run with one thread block on a multiprocessor.
constexpr bool fills_multiprocessor(Kind kind, Kernel kernel) {
  return kernel == Kernel::m256_full || (kernel == Kernel::m256_heavy && kind == Kind::tf32x3);
}

// The minimum number of thread blocks of a tensor kernel that a multiprocessor must be able to hold: as many as the registers permit
// without spills.
constexpr int tensor_min_blocks(Kind kind, Kernel kernel) {
  if (is_light(kernel)) return has_three_light_blocks(kind) ? 3 : 4;
  if (kernel == Kernel::m128_rows || kernel == Kernel::m128_wide_rows) return tensor_row_blocks(kernel, bytes_of(arithmetic_of(kind).lhs));
  return fills_multiprocessor(kind, kernel) ? 1 : 2;
}

// Upper bound of the shared memory, in bytes, of a thread block, so that the number of thread blocks above fits the 228 KB of a
// multiprocessor; each thread block costs 1 KB beside its own. All values fit the 163 KB that a thread block may use on sm_80.
constexpr int tensor_shared_budget(Kind kind, Kernel kernel) {
  if (is_light(kernel)) return (has_three_light_blocks(kind) ? 74 : 56) * 1024;
  if (kernel == Kernel::m256_dots) return 44 * 1024;
  return (fills_multiprocessor(kind, kernel) ? 160 : 112) * 1024;
}

// Pipeline depth: how many stages of `stage_bytes` fit the shared memory budget beside `other_bytes`.
constexpr int tensor_stages(Kind kind, Kernel kernel, int stage_bytes, int other_bytes = 0) {
  constexpr int kPlace = 512, kMax = 8;  // kPlace: bytes for the ResolvedTile, which is in shared memory too
  const int fit = (tensor_shared_budget(kind, kernel) - kPlace - other_bytes) / stage_bytes;
  return fit < kMax ? fit : kMax;
}

// One operand's part of a K step in shared memory. It keeps the operand's major order in global memory, so that either order is copied in
// 16-byte vectors. With kKMajor a line holds one row of A (column of B); without, it holds one K element of all rows (columns). A fragment
// covers eight rows, here called a half (of the sixteen rows of an mma instruction). kInterleave halves are interleaved: row kInterleave g
// + j is row g of half j. A lane then reads one row of each half by one access along a line. In K-major order the halves are stored one
// after the other. MN-major lines of 1-byte elements are permuted as well. One ldmatrix loads 32 of them, 16 rows wide, and gives a lane
// two adjacent rows of eight lines. These must be the K elements 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3, as in fragments loaded from
// K-major lines.
template <class T, int kOuter, int kDepth, bool kKMajor_, int kInterleave_>
struct Lines {
  static constexpr bool kKMajor = kKMajor_;
  static constexpr int kInterleave = kInterleave_;
  static constexpr int kLines = kKMajor ? kOuter : kDepth, kItems = kKMajor ? kDepth : kOuter;
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  // Padded against bank conflicts: the 16-byte vectors of eight lines fall into different banks, or 32 bytes of four lines if lanes read
  // them without ldmatrix.
  static constexpr int kPadding = (kBytes == 8 || (kBytes == 4 && !kKMajor) ? 32 : 16) / kBytes;
  static constexpr int kPitch = kItems + kPadding;
  static constexpr int kElements = kLines * kPitch;
  static constexpr bool kVectorsOnly = false;   // if true, only operands that are copied in 16-byte vectors have this layout
  static constexpr bool kMayTranspose = false;  // if true, so may operands whose elements are adjacent in adjacent lines

  // The position at which a line is stored: a permutation of the bits of its index. It may therefore be applied separately to summands of
  // the index that have no bits in common.
  static constexpr __host__ __device__ int stored(int line) {
    constexpr int kGroup = 8 * kInterleave;
    if (kBytes == 1 && !kKMajor) return (line & ~0xe) | (line & 0xc) >> 1 | (line & 0x2) << 2;
    return !kKMajor || kInterleave == 1 ? line : line / kGroup * kGroup + line % kInterleave * 8 + line % kGroup / kInterleave;
  }

  // The position of an item in the line `ahead` lines after `line`; the two values have no bits in common.
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) { return (stored(line) + stored(ahead)) * kPitch + item; }
};

// Alignment in bytes of a swizzled operand.
inline constexpr int kSwizzleBytes = 1024;

// The layout of an operand for wgmma, which reads 16-byte vectors of 8 lines at a time. The eight vectors in 128 bytes of a line are XORed
// with the line index, so that neither reads across lines nor writes along a line have bank conflicts. This is the layout that the PTX ISA
// calls 128-byte swizzling: 8 lines of 128 bytes at a multiple of kSwizzleBytes. 4-byte elements can also be copied here one by one; 2-byte
// elements come in 16-byte vectors, or not in this layout.
template <class T, int kOuter, int kDepth, bool kKMajor_>
struct SwizzledLines {
  static constexpr bool kKMajor = kKMajor_;
  static constexpr int kLines = kKMajor ? kOuter : kDepth, kItems = kKMajor ? kDepth : kOuter;
  static constexpr int kVectorItems = kVectorBytes / static_cast<int>(sizeof(T)), kRow = 8 * kVectorItems, kColumn = kLines * kRow;
  static constexpr int kElements = kLines * kItems;
  static constexpr bool kVectorsOnly = sizeof(T) == 2, kMayTranspose = sizeof(T) == 4;
  static_assert(kItems % kRow == 0 && kLines % 8 == 0);

  // As in Lines, `line` and `ahead` have no bits in common, so that lines far ahead are at constant distances.
  static constexpr __host__ __device__ int at(int line, int item, int ahead = 0) {
    return item / kRow * kColumn + (line + ahead) * kRow + ((item / kVectorItems ^ line) % 8 ^ ahead % 8) * kVectorItems +
           item % kVectorItems;
  }

  // kDepthStep: distance between the K steps of one instruction and the next. kOuterStep: distance between 64 rows of A (columns of B) and
  // the next 64.
  static constexpr int kDepthStep = kKMajor ? 2 * kVectorItems : 16 * kRow, kOuterStep = kKMajor ? 64 * kRow : kColumn;
  static constexpr int kEightLines = 8 * kRow;
};

// The row (column) g of a half of the warp's rows if kInterleave halves are interleaved.
template <int kInterleave>
constexpr __host__ __device__ int interleaved(int half, int g) {
  return half / kInterleave * 8 * kInterleave + kInterleave * g + half % kInterleave;
}

constexpr int largest_of(int a, int b) { return a > b ? a : b; }

// How row `kIndex` of the catalogue is divided. kWarpgroups: for wgmma, in which each of four warps has 16 of an MMA's 64 rows. For 4-byte
// elements wgmma requires operands in shared memory to be contiguous along K (K-major). A usually is, or is turned while it is copied
// (CopyMode::across), and B is not; but the left-hand factor may come from registers, in any layout. So these tiles compute the transpose,
// C^T = B^T A^T, and a warp's rows are columns of C.
template <Kind kKind_, int kIndex_, bool kWarpgroups = false>
struct TensorTraits {
  static constexpr Kind kKind = kKind_;
  static constexpr int kIndex = kIndex_;
  using T = LeftOf<kKind>;
  using Right = RightOf<kKind>;  // same size as T; where only the size matters, B's elements are treated as T
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr Kernel kKernel = kernel_of(kShape);
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  static constexpr uint32_t kResults = arithmetic_of(kKind).results();  // for 1-byte elements; other types store T or Sum

  static constexpr int kDepth = k_step(kShape, kBytes, kCdna);
  // K of one MMA, and MMAs per K step.
  static constexpr int kChunk = kBytes == 1 ? 32 : kBytes == 2 ? 16 : 8, kChunks = kDepth / kChunk;

  static constexpr int kWaves = kThreads / kLanes;
  static constexpr bool kTransposed = kWarpgroups && kBytes == 4;
  // Narrower tiles are no faster with wgmma (docs/design/kernels.md, K6 and K7).
  static constexpr bool kSuitsWgmma =
      kWaves % 4 == 0 && (kBytes == 2 ? kRows == 16 * kWaves && kCols == 128
                                      : kBytes == 4 && kRows >= (kKind == Kind::tf32 ? 32 : 64) && kCols >= 16 * kWaves);
  static constexpr WaveGrid kGrid = kTransposed   ? WaveGrid{kRows, kCols / kWaves, 1, kWaves, 1}
                                    : kWarpgroups ? WaveGrid{16, kCols, kWaves, 1, 1}
                                                  : wave_grid(kShape);
  static constexpr int kWaveRows = kGrid.rows, kWaveCols = kGrid.cols, kWavesM = kGrid.down, kWavesN = kGrid.across;
  static constexpr int kSplit = kGrid.split;  // warps that take different K slices of each K step
  static_assert(kSplit * kWavesM * kWavesN == kWaves && kChunks % kSplit == 0);

  // Whether a step loads its first fragments before it starts copies. This hides some latency, and costs registers to hold the fragments.
  static constexpr bool kIsFloat8 = kBytes == 1 && !std::is_integral_v<T>;
  static constexpr bool kLoadsFirst = is_light(kKernel) && kKind != Kind::f64 && kKind != Kind::tf32x3 && !kIsFloat8;

  // Whether the copies' addresses stay in registers: only in kernels that have registers to spare.
  static constexpr bool kKeepsAddresses = kThreads == 128 || fills_multiprocessor(kKind, kKernel);

  // A warp's MMA blocks of 16 x 8.
  static constexpr int kBlocksM = (kTransposed ? kWaveCols : kWaveRows) / 16, kBlocksN = (kTransposed ? kWaveRows : kWaveCols) / 8;

  static constexpr bool kInterleaved = kKind == Kind::tf32 || kKind == Kind::tf32x3;
  static constexpr int kRowInterleave = kInterleaved ? kWaveRows / 8 : kBytes == 1 ? 2 : 1;
  static constexpr int kColInterleave = kTransposed ? kWaveCols / 8 : kInterleaved ? 4 : kBytes == 1 ? 2 : 1;
  template <bool kSwizzled, int kOuter, bool kKMajor, int kInterleave>
  using Operand = std::conditional_t<kSwizzled, SwizzledLines<T, kOuter, kDepth, kKMajor>, Lines<T, kOuter, kDepth, kKMajor, kInterleave>>;
  template <bool kKMajor>
  using A = Operand<kWarpgroups, kRows, kKMajor, kRowInterleave>;
  template <bool kKMajor>
  using B = Operand<kWarpgroups && !kTransposed, kCols, kKMajor, kColInterleave>;

  static constexpr int kElementsA = largest_of(A<true>::kElements, A<false>::kElements);
  static constexpr int kElementsB = largest_of(B<true>::kElements, B<false>::kElements);
  static constexpr int kStageElements = kElementsA + kElementsB;
  static_assert(!kWarpgroups || kStageElements * kBytes % kSwizzleBytes == 0);
  // The small parts of A (tf32x3), double-buffered because wgmma may still be reading the previous step's.
  static constexpr int kSmallElements = kTransposed && kKind == Kind::tf32x3 ? 2 * kElementsA : 0;
  static constexpr int kStages = tensor_stages(kKind, kKernel, kStageElements* kBytes, kSmallElements* kBytes);
  static_assert(kStages >= 2, "the pipeline needs two stages: lower the tile's step along K");

  // After the last step the same memory holds the accumulators of each K slice. The lanes of a warp write to four adjacent rows at a time
  // (to every second of eight rows for a transposed product); the pitch puts these rows into different banks.
  static constexpr int kPitchInSums = kCols + (kTransposed ? 4 : 8), kPlane = kRows * kPitchInSums;
  static constexpr int kSumElements = kSplit * kPlane * static_cast<int>(sizeof(Sum)) / kBytes;
  static constexpr int shared_elements() {
    const int mine = largest_of(kStages * kStageElements + kSmallElements, kSumElements);
    // The launch does not know whether its device runs the wgmma code, so the size must suffice for both variants.
    if constexpr (kSuitsWgmma && !kWarpgroups) return largest_of(mine, TensorTraits<kKind, kIndex, true>::kSharedElements);
    return mine;
  }
  static constexpr int kSharedElements = shared_elements();
};

}  // namespace vbgemm
