// A call of products over rows in groups whose sizes are data, as a kernel gets it. What it has to compute, csrc/ragged_call.h says.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "descriptor.h"

namespace vbgemm {

// One operand of all entries; data is null where the call hasn't it.
struct RaggedOperand {
  const void* data;
  int64_t batch_stride[2];  // elements
};

struct RaggedCall {
  DType dtype, out_dtype;  // of lhs and rhs; of the result
  Kind kind;
  bool contraction, transpose_rhs;
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
};

// A call of packed rows times weights of different shapes; what it has to compute, csrc/cpu/packed_handler.cc says.
struct PackedCall {
  DType dtype, out_dtype;  // of the operands; of the results
  Kind kind;
  bool contraction, transpose_rhs, wide_sizes;
  int64_t rows, x_size, y_size, entries, groups;
  const int64_t* shapes;            // k and n of each group
  RaggedOperand x, y, group_sizes;  // batch_stride[0] alone counts; y is the result but of a contraction
  const RaggedOperand* weights;     // of each group; results of a contraction
};

}  // namespace vbgemm
