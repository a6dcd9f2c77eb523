// What a kernel is given: the plan, its range of blocks, and the pointer table, all in the launch's parameters.
#pragma once
#include "../descriptor.h"
#include "gpu_vendor.h"

namespace vbgemm {

// As many as fit into a launch's parameters (32,764 bytes) beside the rest; a table with more entries lies in the call's workspace.
inline constexpr int kMaxParameterPointers = 4000;

struct KernelParameters {
  Descriptors plan;
  int32_t first_block, num_blocks;
  int32_t num_buffers;
  int32_t wide_results;         // 16-bit operands whose results hold their accumulators
  const void* const* overflow;  // the whole table, where the parameters cannot hold it
  const void* table[kMaxParameterPointers];

  __device__ const void* pointer(int buffer) const { return overflow ? overflow[buffer] : table[buffer]; }
};

// A piece of a table on its way to the workspace.
struct PointerChunk {
  const void** to;
  int32_t count;
  const void* table[kMaxParameterPointers];
};

static_assert(sizeof(KernelParameters) <= 32764 && sizeof(PointerChunk) <= 32764, "a launch's parameters");

}  // namespace vbgemm
