// Limits that the kernels of both vendors are built with and Python plans for: no vendor's headers are needed to read them.
#pragma once

namespace vbgemm {

// A launch's parameters. HIP gives 4 KB. CUDA gives 32764 bytes from 12.1 on, but they reach the device with each launch from a stream,
// whatever is in them: on an H100 that takes 4 us beyond those of 8 KB, 1.3 us for 16 KB, 0 for less. Graphs have them there.
constexpr int most_parameter_bytes(bool cdna) { return cdna ? 4096 : 16384; }

inline constexpr int kBufferBytes = 16;  // of an entry of the table of buffers

// As many entries as fit into a launch's parameters beside the rest; a table with more lies in the call's workspace.
constexpr int max_parameter_buffers(bool cdna) { return (most_parameter_bytes(cdna) - 256) / kBufferBytes; }

// What a block takes of an array, where a launch works on many arrays of different sizes.
inline constexpr int kArrayChunkBytes = 16 * 1024;

// A ragged call has this workspace, or none: then blocks take tiles in turn, however long those take.
inline constexpr int kRaggedWorkspaceBytes = 4;

}  // namespace vbgemm
