// The host side of ragged products on a GPU; csrc/ragged_call.h defines the call. A call with one group of m rows is an ordinary matrix
// product.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"
#include "ragged.h"

namespace vbgemm {

// Enqueues the product on the stream. It neither allocates, waits nor copies, so that it may be recorded into a CUDA
// graph; the sizes are read when the kernels run. The result has the same bits in every run. The call's workspace has
// ragged_workspace_bytes().
Error launch_ragged(const RaggedCall& call, Stream stream);

// Whether the plan names a kernel that the current device has for the call.
bool has_ragged_kernel(const RaggedCall& call);

// Whether a plan for this build may name a tile of the catalogue.
bool has_ragged_tile(const TileShape& tile, Kind kind);

}  // namespace vbgemm
