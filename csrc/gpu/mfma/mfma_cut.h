// How a tile of the catalogue is cut up among the waves of its block on CDNA's matrix units, and how it lies in shared memory: constants
// only.
#pragma once
#include "catalogue.h"
#include "gpu/tile/tile_cut.h"

namespace vbgemm {

// Blocks of a kernel that a unit must be able to hold: as many as its shared memory can, without spills.
constexpr int mfma_min_blocks(Kind kind, Kernel kernel) {
  if (kernel == Kernel::m128_light) return kind == Kind::f32 || kind == Kind::tf32 ? 6 : 4;
  return kernel == Kernel::m128_heavy ? (kind == Kind::f64 ? 2 : 4) : 2;
}

// One operand's part of a step in shared memory: a line holds a row of A (column of B) along K, whatever its direction in global memory.
// 64 bytes of K are four pieces of 16, one for each group of 16 lanes, and one more makes eight neighbouring lines start in different
// banks.
template <class T, int kLines_>
struct MfmaLines {
  static constexpr int kLines = kLines_;
  static constexpr int kPieceItems = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kPieces = 4, kPitch = (kPieces + 1) * kPieceItems;
  static constexpr int kElements = kLines * kPitch;
};

// Row `kIndex` of the catalogue.
template <Kind kKind_, int kIndex>
struct MfmaCut {
  static constexpr Kind kKind = kKind_;
  using T = LeftOf<kKind>;
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads, kWaves = kThreads / kWaveSize;
  static constexpr int kBlock = 16;  // rows and columns of one product

  // The waves share the tile out in pieces as square as they can be.
  static constexpr int waves_down() {
    int down = 1, across = 1;
    while (down * across < kWaves) (kRows / down > kCols / across ? down : across) *= 2;
    return down;
  }
  static constexpr int kWavesDown = waves_down(), kWavesAcross = kWaves / kWavesDown;
  static constexpr int kPieceRows = kRows / kWavesDown, kPieceCols = kCols / kWavesAcross;  // of a wave
  static constexpr int kBlocksDown = kPieceRows / kBlock, kBlocksAcross = kPieceCols / kBlock;
  static_assert(kBlocksDown * kBlocksAcross * kBlock * kBlock * kWaves == kRows * kCols);

  using A = MfmaLines<T, kRows>;
  using B = MfmaLines<T, kCols>;
  static constexpr int kDepth = A::kPieces * A::kPieceItems;  // a step

  // Afterwards the same memory holds sums: of each wave a band of 16 rows at a time, each row four sums longer than the piece, so that
  // lanes 16 apart, which write rows 4 apart, use different banks.
  static constexpr int kBandPitch = kPieceCols + 4, kBandElements = kBlock * kBandPitch;
  static constexpr int kSumElements = kWaves * kBandElements * static_cast<int>(sizeof(Sum) / sizeof(T));
  static constexpr int kSharedElements = A::kElements + B::kElements > kSumElements ? A::kElements + B::kElements : kSumElements;
};

}  // namespace vbgemm
