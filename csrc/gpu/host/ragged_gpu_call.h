// What the handlers of ragged products on a GPU, and on an emulated one, do with their arguments.
#pragma once
#include "gpu/host/ragged_launch.h"
#include "gpu/host/status.h"
#include "ragged_call.h"

namespace vbgemm {

inline ffi::Error compute_ragged(const RaggedArguments& given, Stream stream) {
  RaggedCall call;
  const auto has_tile = [&](const TileShape& tile) { return has_ragged_tile(tile, call.kind); };
  ffi::Error error = check_ragged(given, call);
  if (error.success()) error = check_ragged_plan(given, has_tile, call);
  if (error.failure()) return error;
  if (!has_ragged_kernel(call)) {
    return refuse("this ragged product was planned for another GPU: lower it on this machine, or in the context jax_vbgemm.target(...)");
  }
  return status_of(launch_ragged(call, stream));
}

}  // namespace vbgemm
