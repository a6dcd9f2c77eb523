// What a launch of pipelined tiles needs beside its parameters (gpu/pipelined/pipelined_tile.h).
#pragma once
#include "gpu/host/launch.h"

namespace vbgemm {

// The grid of a launch of so many blocks of the plan, and the thread blocks in each of its clusters. In a pipelined kernel each
// multiprocessor's thread block computes several of the plan's blocks.
struct GridOfBlocks {
  uint32_t blocks;
  int cluster;
};

#ifdef VBGEMM_HAS_PIPELINE

// Whether this build and the current device can run pipelined tiles.
bool runs_pipeline();

// Enqueues the launch that makes the tensor maps of all problems of a call, in `call.maps`, which holds kProblemMapBytes for each. A matrix
// that TMA cannot copy has no map.
Error make_maps(Kind kind, const KernelParameters& call, Stream stream);

GridOfBlocks grid_of(Kernel kernel, uint32_t blocks);

#else

inline bool runs_pipeline() { return false; }
inline Error make_maps(Kind, const KernelParameters&, Stream) { return kInvalidValue; }
inline GridOfBlocks grid_of(Kernel, uint32_t blocks) { return {blocks, 1}; }

#endif

}  // namespace vbgemm
