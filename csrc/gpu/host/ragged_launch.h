// The host side of ragged products on a GPU; csrc/ragged_call.h defines the call. A call with one group of m rows is an ordinary matrix
// product.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"
#include "ragged.h"

namespace vbgemm {

// Enqueues the products of all batch entries on the stream. It neither allocates, waits nor copies, so that it may be recorded into a CUDA
// graph; the sizes are read when the kernels run. The result has the same bits in every run. The call's plan is one word, a RaggedShape, or
// empty.
Error launch_ragged(const RaggedCall& call, Stream stream);

// As launch_ragged, with the plain kernel, for a call without a batch.
Error launch_ragged_plain(const RaggedCall& entry, Stream stream);
const void* find_ragged_plain(DType dtype);  // the kernel that it launches

// Loads a call's kernel onto the current device, before a launch is recorded into a graph.
Error load_ragged(const RaggedCall& call);

}  // namespace vbgemm
