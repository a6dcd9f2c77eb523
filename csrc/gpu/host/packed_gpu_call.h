// What the handlers of packed rows on a GPU, and on an emulated one, do with their arguments.
#pragma once
#include "gpu/host/packed_launch.h"
#include "gpu/host/ragged_launch.h"
#include "gpu/host/status.h"
#include "packed_call.h"

namespace vbgemm {

inline ffi::Error compute_packed(const PackedArguments& given, const PackedGpuArguments& of_gpu, Stream stream) {
  PackedCall call{};
  std::vector<RaggedOperand> weights;
  const auto has_tile = [&](const TileShape& tile) { return has_ragged_tile(tile, call.kind); };
  ffi::Error error = check_packed(given, /*extra=*/1, weights, call);
  if (error.success()) error = check_packed_on_gpu(given, of_gpu, has_tile, call);
  if (error.failure()) return error;
  return status_of(launch_packed(call, stream));
}

}  // namespace vbgemm
