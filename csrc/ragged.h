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

struct RaggedCall {
  DType dtype, out_dtype;  // dtype: of lhs and rhs; out_dtype: of the result
  Kind kind;
  bool contraction, transpose_rhs, gated;
  Activation activation;
  bool wide_sizes;  // group_sizes are int64
  int64_t m, k, n, groups, total_groups;
  int64_t batch[2];
  RaggedOperand lhs, rhs, group_sizes, bias, row_scale, group_offset;
  void* out;
  void* workspace;
  int64_t workspace_bytes;
  const int32_t* plan;
  int64_t plan_words;

  int64_t columns() const { return gated ? 2 * n : n; }  // of a matrix of rhs in ragged rows
};

// The tile shape of the pipelined kernel on a GPU. wide_pair and wide: 128 x 256 elements of the result for each thread block, in clusters
// of two thread blocks that share copies, or single thread blocks. narrow: 128 x 128.
enum class RaggedShape : int32_t { automatic, wide_pair, wide, narrow };
inline constexpr int kRaggedShapes = 4;

// The fastest shape for groups of so many rows, as measured on an H100 (docs/design/ragged.md). Clusters of two pay where most groups fill
// more than one row of tiles, or where a contraction is deep. Narrow tiles pay where groups are smaller than a tile, so that the time is
// that of reading the matrices: there are more of these tiles to distribute over the multiprocessors. columns: of a matrix of rhs.
constexpr RaggedShape fastest_ragged_shape(bool contraction, int64_t rows, int64_t k, int64_t columns) {
  constexpr int64_t kTileRows = 128;
  if (columns <= 128 || (!contraction && rows < kTileRows)) return RaggedShape::narrow;
  const bool pairs = contraction ? k > kTileRows && rows >= 384 : columns > 256;
  return pairs ? RaggedShape::wide_pair : RaggedShape::wide;
}

// A product of packed rows with weights of different shapes; cpu/packed_handler.cc defines what it computes.
struct PackedCall {
  DType dtype, out_dtype;  // dtype: of the operands; out_dtype: of the results
  Kind kind;
  bool contraction, transpose_rhs, wide_sizes;
  int64_t rows, x_size, y_size, entries, groups;
  const int64_t* shapes;            // k and n of each group
  RaggedOperand x, y, group_sizes;  // only batch_stride[0] is used; y is the result, except in a contraction
  const RaggedOperand* weights;     // of each group; the results of a contraction
};

}  // namespace vbgemm
