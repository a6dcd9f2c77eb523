// The host side of packed rows times weights of different shapes on a GPU; csrc/packed_call.h defines the call.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "ragged.h"

namespace vbgemm {

// Enqueues the products of all batch entries on the stream, under the conditions of launch_ragged().
Error launch_packed(const PackedCall& call, Stream stream);

}  // namespace vbgemm
