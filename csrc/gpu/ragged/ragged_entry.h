// Host-side helpers of a ragged call: its sizes as the device gets them, and its batch as one call for each entry.
#pragma once
#include "gpu/ragged/ragged_walk.h"
#include "ragged.h"

namespace vbgemm {

inline RaggedSizes sizes_of(const RaggedCall& call) {
  return {call.group_sizes.data,
          static_cast<const int32_t*>(call.group_offset.data),
          static_cast<int32_t>(call.m),
          static_cast<int32_t>(call.k),
          static_cast<int32_t>(call.n),
          static_cast<int32_t>(call.groups),
          static_cast<int32_t>(call.total_groups),
          call.wide_sizes,
          call.contraction,
          call.gated};
}

inline int64_t results_of(const RaggedCall& call) { return call.contraction ? call.groups * call.k * call.n : call.m * call.n; }

// Returns one entry of the batch as a call of its own.
inline RaggedCall entry_of(const RaggedCall& call, int64_t outer, int64_t inner) {
  RaggedCall entry = call;
  entry.batch[0] = entry.batch[1] = 1;
  const int bytes = bytes_of(call.dtype), out_bytes = bytes_of(call.out_dtype);
  const auto move = [&](RaggedOperand& operand, int element_bytes) {
    if (!operand.data) return;
    const int64_t elements = outer * operand.batch_stride[0] + inner * operand.batch_stride[1];
    operand.data = static_cast<const char*>(operand.data) + elements * element_bytes;
  };
  move(entry.lhs, bytes);
  move(entry.rhs, bytes);
  move(entry.group_sizes, call.wide_sizes ? 8 : 4);
  move(entry.bias, out_bytes);
  move(entry.row_scale, accumulator_bytes(call.kind));
  move(entry.group_offset, 4);
  move(entry.gather, 4);
  move(entry.accumulator, out_bytes);
  entry.out = static_cast<char*>(call.out) + (outer * call.batch[1] + inner) * results_of(call) * out_bytes;
  return entry;
}

// Calls `launch`, which returns an Error, for each entry of the batch until a launch fails.
template <class Launch>
Error each_entry(const RaggedCall& call, const Launch& launch) {
  if (results_of(call) == 0) return kSuccess;
  for (int64_t outer = 0; outer < call.batch[0]; ++outer) {
    for (int64_t inner = 0; inner < call.batch[1]; ++inner) {
      const Error error = launch(entry_of(call, outer, inner));
      if (error != kSuccess) return error;
    }
  }
  return kSuccess;
}

}  // namespace vbgemm
