// The launches of the pipelined kernels of sm_90a (gpu/sm90/block.h): of a plan's tiles, and of a ragged product.
#pragma once
#include "gpu/host/launch.h"
#include "ragged.h"

namespace vbgemm {

#ifdef VBGEMM_HAS_PIPELINE

// Whether this build and the current device can run pipelined tiles.
bool runs_pipeline();

// Launches a pipelined kernel for the plan's blocks that `call` names. The grid has at most one CTA per multiprocessor; each CTA computes
// several of the plan's blocks. `call.maps` has to hold kPipelinedMapBytes.
Error launch_pipelined(Kind kind, const void* kernel, const KernelParameters& call, Stream stream);

// Whether the pipelined kernel can compute a ragged call on the current device: it needs an arithmetic and layout of has_ragged_pipeline,
// and operands whose lines are 16-byte aligned.
bool runs_ragged_pipeline(const RaggedCall& call);

Error launch_ragged_pipeline(const RaggedCall& call, Stream stream);

#else

inline bool runs_pipeline() { return false; }
inline Error launch_pipelined(Kind, const void*, const KernelParameters&, Stream) { return kInvalidValue; }
inline bool runs_ragged_pipeline(const RaggedCall&) { return false; }
inline Error launch_ragged_pipeline(const RaggedCall&, Stream) { return kInvalidValue; }

#endif

}  // namespace vbgemm
