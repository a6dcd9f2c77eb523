// The host side of ragged products on a GPU (csrc/ragged_call.h says what they are). One group of m rows makes an ordinary matrix product.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"
#include "ragged.h"

namespace vbgemm {

// What the pipelined kernel computes at a time: 128 x 256 elements of the result a block, by pairs of blocks that share what they copy, or
// alone; or 128 x 128.
enum class RaggedShape : int32_t { automatic, wide_pair, wide, narrow };
inline constexpr int kRaggedShapes = 4;

// Puts the products of all entries into the stream. It neither allocates nor waits nor copies, so it may be recorded into a CUDA graph; the
// sizes are read when the kernels run. The result has the same bits in every run. The plan has one word, a RaggedShape, or none.
Error launch_ragged(const RaggedCall& call, Stream stream);

// The same by the plain kernel, for a call without a batch.
Error launch_ragged_plain(const RaggedCall& entry, Stream stream);
const void* find_ragged_plain(DType dtype);  // its kernel

// Loads the kernel of a call onto the current device, before a launch of it is recorded into a graph.
Error load_ragged(const RaggedCall& call);

}  // namespace vbgemm
