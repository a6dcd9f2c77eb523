// How the pipelined kernel of ragged products cuts its work, its shared memory and its parameters.
//
// Three warpgroups a block, a block a multiprocessor. In the first, one warp has the copy engine fill a ring of stages, and one walks the
// groups and passes on the tiles that it finds; the other two multiply, 64 rows of the tile each, and store. Everything is handed over by
// barriers in shared memory, and neither of the two multiplying warpgroups waits for the other: while one stores its half of a tile,
// the other one still multiplies, and the copies of the next tile are under way.
#pragma once
#include "descriptor.h"
#include "gpu/arch/cuda_bulk_copy.h"
#include "gpu/ragged/ragged_walk.h"

namespace vbgemm {

// What a block may have of a multiprocessor of sm_90.
inline constexpr int kRaggedMostShared = 227 * 1024;

// A lies along K (rows) or across it (contraction: A is the transpose of lhs, and groups are ranges of K), B along K or across it.
template <Kind kKindOfProducts, bool kAcrossOfA, bool kAcrossOfB, int kTileCols, int kBlocks>
struct RaggedCut {
  static constexpr Kind kKind = kKindOfProducts;
  using T = LeftOf<kKind>;
  static constexpr bool kAcrossA = kAcrossOfA, kAcrossB = kAcrossOfB, kContraction = kAcrossA;
  static constexpr int kRows = 128, kCols = kTileCols, kDepth = 64, kCluster = kBlocks;
  static constexpr int kMultiplyingWarps = 8, kThreads = 384;
  // All copies are of boxes of 64 lines, 128 bytes each, swizzled: an operand's lines lie along K, or across it.
  static constexpr int kBox = 64, kBoxBytes = kBox * 128, kBoxesA = kRows / kBox, kBoxesB = kCols / kBox;
  static constexpr int kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes;
  // What a warp stages at a time of its 16 rows of results: two boxes, of 128 bytes of each row. All of a tile would cost a stage, and
  // with three of those the products wait for copies.
  static constexpr int kStoreBoxBytes = 16 * 128, kStoreBoxes = 2, kStagingBytes = kStoreBoxes * kStoreBoxBytes;
  static constexpr int kTiles = 2;  // found ahead
  static constexpr int kStages = (kRaggedMostShared - 2048 - kMultiplyingWarps * kStagingBytes) / kStageBytes;
  using Units = RaggedUnits<kRows, kCols, kCluster>;
};

template <class Cut>
struct RaggedShared {
  alignas(1024) unsigned char stage[Cut::kStages][Cut::kStageBytes];
  alignas(1024) unsigned char staging[Cut::kMultiplyingWarps][Cut::kStagingBytes];
  SharedBarrier full[Cut::kStages], empty[Cut::kStages];
  RaggedTile tile[Cut::kTiles];
  SharedBarrier tile_full[Cut::kTiles], tile_empty[Cut::kTiles];
  uint32_t unit;  // passed on by the first block of the cluster
  SharedBarrier unit_full, unit_empty;
};
// The shared memory of a block begins at any multiple of 16 bytes.
template <class Cut>
constexpr int ragged_shared_bytes() {
  constexpr int kBytes = sizeof(RaggedShared<Cut>) + 1024;
  static_assert(kBytes <= kRaggedMostShared);
  return kBytes;
}

struct RaggedParameters {
  CUtensorMap a, b, out;
  RaggedSizes sizes;
  void* results;
  unsigned* next_unit;  // zero when the kernel starts: how many units have been taken beyond each cluster's first; null: in turn
  const void *bias, *row_scale;
  Activation activation;
  bool wide_results, finishes;  // finishes: there is a bias, a row scale or an activation
};

// A place in a ring, and the parity of the phase that its barriers are in.
template <int kPlaces>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++index == kPlaces) index = 0, parity ^= 1;
  }
};

}  // namespace vbgemm
