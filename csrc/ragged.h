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
// of two thread blocks that share copies (except in contractions), or single thread blocks. narrow: 128 x 128. automatic: the caller has
// not chosen, and gets the narrowest that holds all columns, in single thread blocks. (Which is the fastest depends on the device:
// ragged/tile_shape.py.)
enum class RaggedShape : int32_t { automatic, wide_pair, wide, narrow };
inline constexpr const char* kRaggedShapeNames[] = {"automatic", "wide_pair", "wide", "narrow"};
inline constexpr int kRaggedShapes = sizeof(kRaggedShapeNames) / sizeof(kRaggedShapeNames[0]);

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
