// The launch of the pipelined tiles of a plan (gpu/sm90/source_plan.h).
#pragma once
#include "gpu/host/launch.h"

namespace vbgemm {

#ifdef VBGEMM_HAS_PIPELINE

// Whether this build and the current device can run pipelined tiles.
bool runs_pipeline();

// Launches a pipelined kernel for the plan's blocks that `call` names. The grid is at most one thread block for each multiprocessor, each
// of which computes several of the plan's blocks. `call.maps` has to hold kPipelinedMapBytes.
Error launch_pipelined(Kind kind, const void* kernel, const KernelParameters& call, Stream stream);

#else

inline bool runs_pipeline() { return false; }
inline Error launch_pipelined(Kind, const void*, const KernelParameters&, Stream) { return kInvalidValue; }

#endif

}  // namespace vbgemm
