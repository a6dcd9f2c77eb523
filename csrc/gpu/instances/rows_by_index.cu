// The kernel that copies rows by index, and its host side.
#include "gpu/elementwise/rows_by_index.h"

extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kArrayThreads, vbgemm::RowsByIndex::kMinBlocks)
    vbgemm_copy_rows_by_index(VBGEMM_PARAMETERS(vbgemm::RowsByIndexParameters, parameters)) {
  VBGEMM_READ_PARAMETERS(vbgemm::RowsByIndexParameters, parameters);
  vbgemm::RowsByIndex::run(parameters);
}

namespace vbgemm {

Error rows_by_index(const RowsByIndexParameters& call, Stream stream) {
  RowsByIndexParameters parameters = call;
  const int64_t row_blocks = chunks_of(parameters.rows, kIndexedRows), blocks = row_blocks * chunks_of(parameters.vectors, kIndexedSlab);
  if (blocks > max_blocks(kArrayThreads)) return kInvalidValue;
  if (!blocks) return kSuccess;
  parameters.row_blocks = static_cast<int32_t>(row_blocks);
  const auto kernel = reinterpret_cast<const void*>(vbgemm_copy_rows_by_index);
  return launch_kernel(kernel, static_cast<uint32_t>(blocks), kArrayThreads, 0, &parameters, stream);
}

}  // namespace vbgemm
