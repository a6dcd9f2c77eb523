// The emulation's tensor maps (gpu/host/tensor_maps.h).
#include "gpu/host/tensor_maps.h"

namespace vbgemm {

Error encode_map(CUtensorMap& map, const TensorOfLines& tensor, uint32_t box_lines) {
  map = {static_cast<const char*>(tensor.data),
         tensor.items,
         tensor.lines,
         tensor.matrices,
         tensor.line_stride,
         tensor.matrix_stride,
         bytes_of(tensor.dtype),
         static_cast<int32_t>(box_lines),
         {}};
  return kSuccess;
}

bool has_bulk_copies(const void* kernel) { return kernel != nullptr; }

}  // namespace vbgemm
