#include "gpu/host/tensor_maps.h"

namespace vbgemm {
namespace {

using EncodeMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                               const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                               CUtensorMapFloatOOBfill);

// The driver function is looked up through the runtime, so that libcuda need not be linked.
EncodeMap find_encode_map() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const Error error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
  const Error error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  return error == kSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeMap>(function) : nullptr;
}

}  // namespace

Error encode_map(CUtensorMap& map, const TensorOfLines& tensor, uint32_t box_lines) {
  static const EncodeMap encode = find_encode_map();
  if (!encode) return cudaErrorSymbolNotFound;
  const auto type = tensor.dtype == DType::bf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : tensor.dtype == DType::f16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                    : bytes_of(tensor.dtype) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(tensor.items), static_cast<cuuint64_t>(tensor.lines),
                               static_cast<cuuint64_t>(tensor.matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(tensor.line_stride), static_cast<cuuint64_t>(tensor.matrix_stride)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(128 / bytes_of(tensor.dtype)), box_lines, 1}, steps[3] = {1, 1, 1};
  const CUresult result = encode(&map, type, 3, const_cast<void*>(tensor.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? kSuccess : kInvalidValue;
}

bool has_bulk_copies(const void* kernel) {
  int device = 0, major = 0;
  cudaFuncAttributes compiled{};
  return cudaGetDevice(&device) == kSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == kSuccess &&
         major == 9 && cudaFuncGetAttributes(&compiled, kernel) == kSuccess && compiled.ptxVersion >= 90;
}

}  // namespace vbgemm
