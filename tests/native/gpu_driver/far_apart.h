// The check of an operand whose rows are so far apart that offsets do not fit into 32 bits.
#pragma once
#include <cstdint>

#include "gpu_driver/trial.h"

namespace vbgemm::driver {

inline constexpr int kFarRows = 4;
inline constexpr int64_t kFarStride = (int64_t{1} << 30) + 7;  // so that the last row begins beyond 2^31 elements
inline constexpr size_t kFarApartBytes = sizeof(float) * kFarRows * kFarStride;

// Checks one float32 product in tiles of one row of the catalogue. Its A is in `sparse`, kFarApartBytes on the device, with rows kFarStride
// apart.
inline int far_apart_faults(Kind kind, int tile_id, DeviceMemory& sparse, const OwnStream& stream, uint64_t seed, int margin) {
  constexpr int kCols = 40, kDepth = 37;
  Trial<float> trial(kind, seed, margin);
  trial.cover(trial.add(kFarRows, kCols, kDepth, 1, true), tile_id);
  trial.upload();
  const Problem& dense = trial.plan().problems[0];
  for (int row = 0; row < kFarRows; ++row) {
    sparse.write(trial.elements<float>(dense.a) + row * kDepth, kDepth * sizeof(float), row * kFarStride * sizeof(float));
  }
  HostPlan plan = trial.plan();
  plan.problems[0].a.row_stride = kFarStride;
  lay_out(plan, trial.boxes(), true);
  Buffers buffers = trial.device_buffers();
  buffers.data[dense.a.buffer] = sparse.data();
  buffers.elements[dense.a.buffer] = kFarRows * kFarStride;
  const DevicePlan device(plan);
  const DeviceMemory none(size_t{0});
  require(launch(call_of(plan, device, buffers, none), stream.get()), "launch");
  stream.wait();
  return trial.faults(trial.results());
}

}  // namespace vbgemm::driver
