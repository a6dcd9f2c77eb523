// The GPU kernels' host side: one call computes a whole plan.
#pragma once
#include "../catalogue.h"
#include "kernel_parameters.h"

namespace vbgemm {

struct GpuCall {
  DType dtype, out_dtype;
  Descriptors plan;  // device pointers
  const Launch* launches;
  int num_launches;
  const void* const* buffers;  // device pointers, in a host array
  int num_buffers;
  void* workspace;  // device memory for num_buffers pointers; null where num_buffers <= kMaxParameterPointers
};

// Puts the call's kernels into the stream. It neither allocates nor waits nor copies, so it may be recorded into a CUDA graph. The host
// arrays are not needed after it returns.
Error launch(const GpuCall& call, Stream stream);

}  // namespace vbgemm
