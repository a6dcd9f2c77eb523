// The kernels that add arrays, one an element type, and their host side.
#include <algorithm>

#include "add_scaled.h"
#include "launch.h"

#define VBGEMM_DEFINE_ADD_SCALED(kind, element)                                             \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kAddScaledThreads, 4)             \
      vbgemm_add_scaled_##kind(VBGEMM_PARAMETERS(vbgemm::AdditionParameters, parameters)) { \
    VBGEMM_READ_PARAMETERS(vbgemm::AdditionParameters, parameters);                         \
    vbgemm::AddScaled<element>::run(parameters);                                            \
  }

VBGEMM_DEFINE_ADD_SCALED(float32, float)
VBGEMM_DEFINE_ADD_SCALED(float64, double)
VBGEMM_DEFINE_ADD_SCALED(bfloat16, vbgemm::BFloat16)
VBGEMM_DEFINE_ADD_SCALED(float16, vbgemm::Float16)

namespace vbgemm {
namespace {

constexpr int64_t kMostBlocks = 1 << 23;  // of a launch; their threads must be fewer than 2^32 on AMD's GPUs

const void* find_add_scaled(DType dtype) {
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
  const void* const kernel = find_add_scaled(call.dtype);
  if (!kernel) return kInvalidValue;
  const bool narrow = call.dtype == DType::bf16 || call.dtype == DType::f16;
  const size_t sum_bytes = call.dtype == DType::f64 ? sizeof(double) : sizeof(float);
  const int64_t chunk = chunk_of(narrow ? sizeof(uint16_t) : sum_bytes);

  AdditionParameters parameters;
  for (int first = 0; first < call.num_members; first += parameters.count) {
    int64_t blocks = 0;
    int count = 0;
    for (; count < std::min(kMaxAdditions, call.num_members - first); ++count) {
      const Addition& addition = call.members[first + count];
      const int64_t more = addition.elements / chunk + (addition.elements % chunk != 0);
      if (more < 0 || more > kMostBlocks) return kInvalidValue;
      if (blocks + more > kMostBlocks) break;
      parameters.first_block[count] = static_cast<int32_t>(blocks);
      parameters.additions[count] = addition;
      blocks += more;
    }
    parameters.count = count;
    parameters.alpha = static_cast<const char*>(call.alpha) + first * sum_bytes;
    parameters.beta = static_cast<const char*>(call.beta) + first * sum_bytes;
    if (blocks == 0) continue;
    const Error error = launch_kernel(kernel, static_cast<uint32_t>(blocks), kAddScaledThreads, 0, &parameters, stream);
    if (error != kSuccess) return error;
  }
  return kSuccess;
}

}  // namespace vbgemm
