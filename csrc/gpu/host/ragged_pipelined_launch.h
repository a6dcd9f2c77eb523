// The launch of the pipelined kernel of ragged products (gpu/sm90/source_groups.h).
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "ragged.h"

namespace vbgemm {

#ifdef VBGEMM_HAS_PIPELINE

// Whether the pipelined kernel can compute a call, which has no batch, on the current device: of a kind and layout that it has
// (has_ragged_pipeline), with operands whose lines begin at multiples of 16 bytes.
bool runs_ragged_pipeline(const RaggedCall& call);

Error launch_ragged_pipeline(const RaggedCall& call, Stream stream);

#else

inline bool runs_ragged_pipeline(const RaggedCall&) { return false; }
inline Error launch_ragged_pipeline(const RaggedCall&, Stream) { return kInvalidValue; }

#endif

}  // namespace vbgemm
