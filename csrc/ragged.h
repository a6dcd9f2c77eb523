// A ragged product (over rows in groups whose sizes are data) as a kernel gets it; ragged_call.h defines what it computes.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "descriptor.h"

namespace vbgemm {

// One operand of all batch entries; data is null if the call does not have the operand.
struct RaggedOperand {
  const void* data;
  int64_t batch_stride[2];  // in elements
};

// The tile shape of the pipelined kernel on a GPU. wide_pair and wide: 128 x 256 elements of the result for each thread block, in clusters
// of two thread blocks that share copies (except in contractions and TF32), or single thread blocks. narrow: 128 x 128. none: the call is
// not for the pipelined kernel. (Which is the fastest depends on the device: ragged/plan.py.)
enum class RaggedShape : int32_t { none, wide_pair, wide, narrow };
inline constexpr const char* kRaggedShapeNames[] = {"none", "wide_pair", "wide", "narrow"};
inline constexpr int kRaggedShapes = sizeof(kRaggedShapeNames) / sizeof(kRaggedShapeNames[0]);

// How a GPU computes a call: the pipelined kernel's shape, and whether its thread blocks take tiles from a counter in the workspace; and
// the tile of the catalogue for GPUs and operands without that kernel, or -1.
struct RaggedPlan {
  RaggedShape shape;
  int32_t counted, tile;
};

// Whether there are pipelined kernels of a kind and layout, on devices that have any.
inline bool has_ragged_pipeline(Kind kind, bool contraction, bool transpose_rhs, bool gathers) {
  if (kind == Kind::bf16 || kind == Kind::f16) return !(contraction && gathers);
  return kind == Kind::tf32 && !contraction && transpose_rhs && !gathers;
}

struct RaggedCall {
  DType dtype, out_dtype;  // dtype: of lhs and rhs; out_dtype: of the result
  Kind kind;
  bool contraction, transpose_rhs, gated;
  Activation activation;
  bool wide_sizes;  // group_sizes are int64
  int64_t m, k, n, groups, total_groups, lhs_rows;
  int64_t batch[2];
  RaggedOperand lhs, rhs, group_sizes, bias, row_scale, group_offset, gather, accumulator;  // accumulator: its memory is that of the result
  void* out;
  void* workspace;
  int64_t workspace_bytes;
  RaggedPlan plan;  // on a GPU

  int64_t columns() const { return gated ? 2 * n : n; }  // of a matrix of rhs in ragged rows
};

// The head of the list of tiles: the epilogue of tiles whose group has a matrix, and that of tiles of zeros.
struct TileEpilogues {
  Problem problem[2];
  Epilogue epilogue[2];
};

constexpr int64_t tiles_over(int64_t size, int each) { return (size + each - 1) / each; }

// The maximum number of tiles of `rows` x `cols`, whatever the group sizes are.
inline int64_t max_tiles(const RaggedCall& call, int rows, int cols) {
  const int64_t across = tiles_over(call.columns(), cols), nonempty = call.m < call.total_groups ? call.m : call.total_groups;
  return call.contraction ? call.groups * tiles_over(call.k, rows) * across : (call.m / rows + nonempty + 1) * across;
}

// The size in bytes of the counter of tiles, and of the list of all tiles that a GPU computes by a tile of the catalogue (with the
// epilogues of tiles with and without a matrix).
inline constexpr int64_t kRaggedCounterBytes = 4;
// Upper bounds with which nothing overflows 32 bits: of a size, to which the device adds that of a tile; and of the tiles in a list, of
// which it counts 16 rows at a time.
inline constexpr int64_t kRaggedMostSize = INT32_MAX - 4096, kRaggedMostTiles = int64_t{1} << 26;
inline int64_t ragged_list_bytes(const RaggedCall& call, const TileShape& tile) {
  return static_cast<int64_t>(sizeof(TileEpilogues)) + max_tiles(call, tile.m, tile.n) * static_cast<int64_t>(sizeof(ReadyTile));
}
inline int64_t ragged_workspace_bytes(const RaggedCall& call) {
  const int64_t counter = call.plan.counted ? kRaggedCounterBytes : 0;
  const int64_t list = call.plan.tile >= 0 ? ragged_list_bytes(call, kTiles[call.plan.tile]) : 0;
  return counter < list ? list : counter;
}

}  // namespace vbgemm
