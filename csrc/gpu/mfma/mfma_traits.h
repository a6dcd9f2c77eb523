// How a tile of the catalogue is divided among the waves of its thread block on CDNA's matrix cores, and how its operands are laid out in
// shared memory. The file holds compile-time constants only.
#pragma once
#include "catalogue.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

// The minimum number of thread blocks of a kernel that a compute unit must be able to hold: as many as its shared memory permits, without
// spills.
constexpr int mfma_min_blocks(Kind kind, Kernel kernel) {
  if (kernel == Kernel::m128_light) return kind == Kind::f32 || kind == Kind::tf32 ? 6 : 4;
  return kernel == Kernel::m128_heavy ? (kind == Kind::f64 ? 2 : 4) : 2;
}

// One operand's part of a K step in shared memory. A line holds a row of A (column of B) along K, whatever the layout in global memory. A
// step of 64 bytes of K is four 16-byte vectors, one for each group of 16 lanes; one vector of padding makes eight adjacent lines start in
// different banks.
template <class T, int kLines_>
struct MfmaLines {
  static constexpr int kLines = kLines_;
  static constexpr int kVectorItems = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kVectors = 4, kPitch = (kVectors + 1) * kVectorItems;
  static constexpr int kElements = kLines * kPitch;
};

// How row `kIndex` of the catalogue is divided.
template <Kind kKind_, int kIndex>
struct MfmaTraits {
  static constexpr Kind kKind = kKind_;
  using T = LeftOf<kKind>;
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads, kWaves = kThreads / kWaveSize;
  static constexpr int kBlock = 16;  // rows and columns of one MFMA

  // The waves divide the tile into rectangles, as square as possible.
  static constexpr int waves_m() {
    int down = 1, across = 1;
    while (down * across < kWaves) (kRows / down > kCols / across ? down : across) *= 2;
    return down;
  }
  static constexpr int kWavesM = waves_m(), kWavesN = kWaves / kWavesM;
  static constexpr int kWaveRows = kRows / kWavesM, kWaveCols = kCols / kWavesN;  // of a wave
  static constexpr int kBlocksM = kWaveRows / kBlock, kBlocksN = kWaveCols / kBlock;
  static_assert(kBlocksM * kBlocksN * kBlock * kBlock * kWaves == kRows * kCols);

  using A = MfmaLines<T, kRows>;
  using B = MfmaLines<T, kCols>;
  static constexpr int kDepth = A::kVectors * A::kVectorItems;  // K elements
  static_assert(kDepth == k_step(kShape, sizeof(T), kCdna));

  // After the last step the same memory holds accumulators: a band of 16 rows of each wave at a time. A row's pitch exceeds the rectangle's
  // width by four sums, so that lanes 16 apart, which write rows 4 apart, use different banks.
  static constexpr int kBandPitch = kWaveCols + 4, kBandElements = kBlock * kBandPitch;
  static constexpr int kSumElements = kWaves * kBandElements * static_cast<int>(sizeof(Sum) / sizeof(T));
  static constexpr int kSharedElements = A::kElements + B::kElements > kSumElements ? A::kElements + B::kElements : kSumElements;
};

}  // namespace vbgemm
