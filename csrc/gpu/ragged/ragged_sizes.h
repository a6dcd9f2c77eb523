// The sizes of a ragged call that a GPU receives.
#pragma once
#include "gpu/ragged/ragged_walk.h"
#include "ragged.h"

namespace vbgemm {

inline RaggedSizes sizes_of(const RaggedCall& call) {
  return {call.group_sizes,
          static_cast<const int32_t*>(call.group_offset),
          static_cast<int32_t>(call.m),
          static_cast<int32_t>(call.k),
          static_cast<int32_t>(call.n),
          static_cast<int32_t>(call.groups),
          static_cast<int32_t>(call.total_groups),
          static_cast<int32_t>(call.lhs_rows),
          static_cast<int32_t>(call.rhs_groups),
          static_cast<int32_t>(call.entries > 1 ? call.total_groups / call.entries : 0),
          call.wide_sizes,
          call.contraction,
          call.gated,
          call.contraction && call.transpose_rhs,
          call.undefined_rest};
}

}  // namespace vbgemm
