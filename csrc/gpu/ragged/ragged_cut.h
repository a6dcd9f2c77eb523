// How the pipelined kernel of ragged products divides its work among warps, and what it keeps in shared memory and in its parameters.
//
// A thread block has three warpgroups, and a multiprocessor one thread block. The first warpgroup is the producer: one of its warps issues
// TMA copies into a ring of stages, and another walks the groups and passes on the tiles that it finds. The other two warpgroups are the
// consumers: each multiplies 64 rows of the tile and stores them. All hand-over goes through mbarriers in shared memory, and neither
// consumer waits for the other: while one stores its half of a tile, the other still multiplies, and copies of the next tile are in flight.
#pragma once
#include "descriptor.h"
#include "gpu/pipelined/pipeline.h"
#include "gpu/ragged/ragged_walk.h"

namespace vbgemm {

// A is contiguous along K in rows mode, and across K in contraction mode, where A is the transpose of lhs and the groups are ranges of K. B
// is contiguous along K or across it. kGathering: rows of lhs are read by index, which TMA cannot do on Hopper; two warps of the producer
// copy A then.
template <Kind kKindOfProducts, bool kAcrossOfA, bool kAcrossOfB, int kTileCols, int kBlocks, bool kGathering = false>
struct RaggedCut : PipelineCut<kKindOfProducts, kTileCols> {
  using Pipeline = PipelineCut<kKindOfProducts, kTileCols>;
  static constexpr bool kAcrossA = kAcrossOfA, kAcrossB = kAcrossOfB, kContraction = kAcrossA;
  static constexpr int kCluster = kBlocks;
  static constexpr bool kGathers = kGathering, kThreadsCopy = kGathers;
  static constexpr int kGatheringWarps = kGathers ? Pipeline::kBoxesA : 0;  // one for each box of A
  static_assert(!kGathers || (kCluster == 1 && !kContraction));
  static_assert(Pipeline::kElement == 2 || !(kAcrossA || kAcrossB));  // wgmma takes other types along K alone
  static constexpr int kTiles = 3;  // tiles found ahead of the products, and the one whose results are being stored
  using Units = RaggedUnits<CompiledTileSize<Pipeline::kRows, Pipeline::kCols>, kCluster>;
};

template <class Cut>
struct RaggedShared : PipelineBuffers<Cut>, StageBarriers<Cut> {
  RaggedTile tile[Cut::kTiles];
  SharedBarrier tile_full[Cut::kTiles], tile_empty[Cut::kTiles];
  uint32_t unit;  // received from the first thread block of the cluster
  SharedBarrier unit_full, unit_empty;
};

struct RaggedParameters {
  CUtensorMap a, b, out;  // a: not if rows are gathered
  const void* lhs;        // with its number of rows, and the row that takes the place of each row, where rows are gathered
  const int32_t* gather;
  int32_t lhs_rows;
  RaggedSizes sizes;
  void* results;
  // A counter of the units that have been taken beyond each cluster's first one; it must be zero when the kernel starts. If it is null,
  // clusters take units in turn.
  uint32_t* next_unit;
  const void *bias, *row_scale;
  Activation activation;
  bool wide_results, finishes;  // finishes: the call has a bias, a row scale or an activation, or is gated
  bool accumulates;             // the results are added to what is there
};

}  // namespace vbgemm
