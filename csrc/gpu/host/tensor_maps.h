// TMA descriptors (tensor maps), encoded by the driver, and whether the device supports the kernels that use them.
#pragma once
#include "dtypes.h"
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

// A tensor of `matrices` matrices, each with `lines` lines of `items` adjacent elements. Strides are in bytes; strides and address must be
// multiples of 16.
struct TensorOfLines {
  DType dtype;
  const void* data;
  int64_t items, lines, matrices;
  int64_t line_stride, matrix_stride;
};

// Encodes a map of a 1-, 2- or 4-byte tensor whose swizzled boxes are 128 bytes wide and `box_lines` lines high.
Error encode_map(CUtensorMap& map, const TensorOfLines& tensor, uint32_t box_lines);

// Whether the current device has TMA and wgmma, and `kernel` was compiled for them (sm_90a).
bool has_bulk_copies(const void* kernel);

}  // namespace vbgemm
