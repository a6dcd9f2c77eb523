// Host-side helpers of a ragged call on a GPU: the sizes that the device receives, and one launch for each batch entry.
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
          call.gated,
          call.contraction && call.transpose_rhs,
          call.undefined_rest};
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
