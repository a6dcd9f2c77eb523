// Limits that the GPU kernels are built with and that Python plans for. They need no vendor's headers, so that the CPU module can export
// them.
#pragma once
#include <cstdint>

namespace vbgemm {

// Upper bound of a launch's parameters, in bytes. HIP permits 4 KB. CUDA permits 32764 bytes since 12.1, but each launch from a stream
// transfers their full size to the device. On an H100, parameters of 32 KB take 4 us longer than those of 8 KB or less, and 16 KB take 1.3
// us longer. Launches from a CUDA graph do not pay this, because the graph has its parameters on the device (docs/design/latency.md, L15).
constexpr int max_parameter_bytes(bool cdna) { return cdna ? 4096 : 16384; }

inline constexpr int kBufferBytes = 16;  // bytes per entry of the buffer table

// Width of a vector load. Rows that are aligned to it are read by vector loads.
inline constexpr int kVectorLoadBytes = 16;

// Maximum length of a buffer table in the launch parameters. A longer table is placed in the call's workspace.
constexpr int max_parameter_buffers(bool cdna) { return (max_parameter_bytes(cdna) - 256) / kBufferBytes; }

// The tensor maps of a launch of pipelined tiles, in its call's workspace. Each CTA has maps of four matrices for each of kTilesWithMaps
// tiles, the maximum number between the finder and the last store. kMaxPipelinedBlocks is an upper bound of the multiprocessors of a GPU of
// sm_90; a larger GPU would use only as many.
inline constexpr int kMaxPipelinedBlocks = 160, kTilesWithMaps = 4, kTileMapBytes = 4 * 128;
inline constexpr int kPipelinedMapBytes = kMaxPipelinedBlocks * kTilesWithMaps * kTileMapBytes;

// The size of a call's workspace, which holds the tensor maps, the buffer table if the launch parameters cannot, and the split-K partial
// sums.
constexpr int64_t gpu_workspace_bytes(bool cdna, int num_buffers, int64_t sum_bytes, bool pipelined) {
  const int64_t table = num_buffers > max_parameter_buffers(cdna) ? int64_t{num_buffers} * kBufferBytes : 0;
  return (pipelined ? kPipelinedMapBytes : 0) + table + sum_bytes;
}

// Shared memory, in bytes, that a thread block may use on a multiprocessor of sm_90. A pipelined kernel's launch requests all of it.
inline constexpr int kPipelineMaxShared = 227 * 1024;

// Bytes of one array that a thread block handles in the kernels of many arrays (gpu/elementwise).
inline constexpr int kArrayChunkBytes = 16 * 1024;

}  // namespace vbgemm
