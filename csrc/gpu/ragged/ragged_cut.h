// How the pipelined kernel of ragged products divides its work among warps, and what it keeps in shared memory and in its parameters.
//
// A thread block has three warpgroups, and a multiprocessor one thread block. The first warpgroup is the producer: one of its warps issues
// TMA copies into a ring of stages, and another walks the groups and passes on the tiles that it finds. The other two warpgroups are the
// consumers: each multiplies 64 rows of the tile and stores them. All hand-over goes through mbarriers in shared memory, and neither
// consumer waits for the other: while one stores its half of a tile, the other still multiplies, and copies of the next tile are in flight.
#pragma once
#include "descriptor.h"
#include "gpu/arch/cuda_bulk_copy.h"
#include "gpu/ragged/ragged_walk.h"

namespace vbgemm {

// Shared memory, in bytes, that a thread block may use on a multiprocessor of sm_90.
inline constexpr int kRaggedMaxShared = 227 * 1024;

// A is contiguous along K in rows mode, and across K in contraction mode, where A is the transpose of lhs and the groups are ranges of K. B
// is contiguous along K or across it.
template <Kind kKindOfProducts, bool kAcrossOfA, bool kAcrossOfB, int kTileCols, int kBlocks>
struct RaggedCut {
  static constexpr Kind kKind = kKindOfProducts;
  using T = LeftOf<kKind>;
  static constexpr bool kAcrossA = kAcrossOfA, kAcrossB = kAcrossOfB, kContraction = kAcrossA;
  static constexpr int kRows = 128, kCols = kTileCols, kDepth = 64, kCluster = kBlocks;
  static constexpr int kMultiplyingWarps = 8, kThreads = 384;
  // All copies are swizzled boxes of 64 lines of 128 bytes each. The lines of an operand run along its contiguous dimension.
  static constexpr int kBox = 64, kBoxBytes = kBox * 128, kBoxesA = kRows / kBox, kBoxesB = kCols / kBox;
  static constexpr int kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes;
  // A warp stages its 16 rows of results in two boxes at a time, each with 128 bytes of every row. Staging a whole tile would cost one
  // pipeline stage, and with only three stages left the products wait for copies.
  static constexpr int kStoreBoxBytes = 16 * 128, kStoreBoxes = 2, kStagingBytes = kStoreBoxes * kStoreBoxBytes;
  static constexpr int kTiles = 2;  // tiles found ahead of the products
  static constexpr int kStages = (kRaggedMaxShared - 2048 - kMultiplyingWarps * kStagingBytes) / kStageBytes;
  using Units = RaggedUnits<kRows, kCols, kCluster>;
};

template <class Cut>
struct RaggedShared {
  alignas(1024) unsigned char stage[Cut::kStages][Cut::kStageBytes];
  alignas(1024) unsigned char staging[Cut::kMultiplyingWarps][Cut::kStagingBytes];
  SharedBarrier full[Cut::kStages], empty[Cut::kStages];
  RaggedTile tile[Cut::kTiles];
  SharedBarrier tile_full[Cut::kTiles], tile_empty[Cut::kTiles];
  uint32_t unit;  // received from the first thread block of the cluster
  SharedBarrier unit_full, unit_empty;
};
// Shared memory of a thread block is only guaranteed to begin at a multiple of 16 bytes; swizzled boxes need 1024, so that up to 1024 more
// are requested.
template <class Cut>
constexpr int ragged_shared_bytes() {
  constexpr int kBytes = sizeof(RaggedShared<Cut>) + 1024;
  static_assert(kBytes <= kRaggedMaxShared);
  return kBytes;
}

struct RaggedParameters {
  CUtensorMap a, b, out;
  RaggedSizes sizes;
  void* results;
  // A counter of the units that have been taken beyond each cluster's first one; it must be zero when the kernel starts. If it is null,
  // clusters take units in turn.
  unsigned* next_unit;
  const void *bias, *row_scale;
  Activation activation;
  bool wide_results, finishes;  // finishes: the call has a bias, a row scale or an activation, or is gated
};

// A position in a ring, and the parity of the phase that its barriers are in.
template <int kPlaces>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++index == kPlaces) index = 0, parity ^= 1;
  }
};

}  // namespace vbgemm
