// The kernels that add arrays, one for each element type and one for each conversion of the results, and their host side.
#include "gpu/elementwise/add_scaled.h"
#include "gpu/host/launch.h"

#define VBGEMM_DEFINE_ADD_SCALED(name, ...)                                                 \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kArrayThreads, 4)                 \
      vbgemm_add_scaled_##name(VBGEMM_PARAMETERS(vbgemm::AdditionParameters, parameters)) { \
    VBGEMM_READ_PARAMETERS(vbgemm::AdditionParameters, parameters);                         \
    vbgemm::AddScaled<__VA_ARGS__>::run(parameters);                                        \
  }

VBGEMM_DEFINE_ADD_SCALED(float32, float)
VBGEMM_DEFINE_ADD_SCALED(float64, double)
VBGEMM_DEFINE_ADD_SCALED(bfloat16, vbgemm::BFloat16)
VBGEMM_DEFINE_ADD_SCALED(float16, vbgemm::Float16)
VBGEMM_DEFINE_ADD_SCALED(float32_to_bfloat16, float, vbgemm::BFloat16)
VBGEMM_DEFINE_ADD_SCALED(float32_to_float16, float, vbgemm::Float16)
VBGEMM_DEFINE_ADD_SCALED(bfloat16_to_float16, vbgemm::BFloat16, vbgemm::Float16)

namespace vbgemm {
namespace {

const void* find_add_scaled(DType dtype, DType result) {
  if (dtype == DType::f32 && result == DType::bf16) return reinterpret_cast<const void*>(vbgemm_add_scaled_float32_to_bfloat16);
  if (dtype == DType::f32 && result == DType::f16) return reinterpret_cast<const void*>(vbgemm_add_scaled_float32_to_float16);
  if (dtype == DType::bf16 && result == DType::f16) return reinterpret_cast<const void*>(vbgemm_add_scaled_bfloat16_to_float16);
  if (dtype != result) return nullptr;
  switch (dtype) {
    case DType::f32: return reinterpret_cast<const void*>(vbgemm_add_scaled_float32);
    case DType::f64: return reinterpret_cast<const void*>(vbgemm_add_scaled_float64);
    case DType::bf16: return reinterpret_cast<const void*>(vbgemm_add_scaled_bfloat16);
    case DType::f16: return reinterpret_cast<const void*>(vbgemm_add_scaled_float16);
    default: return nullptr;
  }
}

}  // namespace

Error add_scaled(const AddScaledCall& call, Stream stream) {
  const void* const kernel = find_add_scaled(call.dtype, call.result);
  if (!kernel) return kInvalidValue;
  const size_t bytes = bytes_of(call.dtype), sum_bytes = bytes_of(accumulator_of(call.dtype));

  AdditionParameters parameters;
  Members<Addition>& members = parameters.additions;
  for (int first = 0; first < call.num_members; first += members.count) {
    if (!take_members(call.members + first, call.num_members - first, chunk_of(bytes), members)) return kInvalidValue;
    const int32_t blocks = members.first_block[members.count];
    parameters.alpha = static_cast<const char*>(call.alpha) + first * sum_bytes;
    parameters.beta = static_cast<const char*>(call.beta) + first * sum_bytes;
    if (blocks == 0) continue;
    const Error error = launch_kernel(kernel, static_cast<uint32_t>(blocks), kArrayThreads, 0, &parameters, stream);
    if (error != kSuccess) return error;
  }
  return kSuccess;
}

}  // namespace vbgemm
