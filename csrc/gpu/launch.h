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

// The kernel's address for the launch functions; null where this build has none for the dtype.
const void* find_kernel(DType dtype, Kernel kernel);

// Loads a dtype's kernels onto the current device. CUDA does that at a kernel's first launch otherwise, and the first launch may be one
// that is only recorded into a graph.
Error load_kernels(DType dtype);

// Puts the call's kernels into the stream. It neither allocates nor waits nor copies, so it may be recorded into a CUDA graph. The host
// arrays are not needed after it returns.
Error launch(const GpuCall& call, Stream stream);

}  // namespace vbgemm
