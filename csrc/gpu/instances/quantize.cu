// The kernels that quantize, one for each type of their operand, and their host side.
#include "gpu/elementwise/quantize.h"
#include "gpu/host/quantize_launch.h"

#define VBGEMM_DEFINE_KERNEL(name, element)                                               \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kQuantizeThreads, 2)            \
      vbgemm_quantize_##name(VBGEMM_PARAMETERS(vbgemm::QuantizeParameters, parameters)) { \
    VBGEMM_READ_PARAMETERS(vbgemm::QuantizeParameters, parameters);                       \
    VBGEMM_SHARED(vbgemm::Quantize<element>::Shared, shared);                             \
    vbgemm::Quantize<element>(parameters, shared).run();                                  \
  }

VBGEMM_DEFINE_KERNEL(float32, float)
VBGEMM_DEFINE_KERNEL(bfloat16, vbgemm::BFloat16)
VBGEMM_DEFINE_KERNEL(float16, vbgemm::Float16)

namespace vbgemm {
namespace {

const void* find_quantize(DType dtype) {
  switch (dtype) {
    case DType::f32: return reinterpret_cast<const void*>(vbgemm_quantize_float32);
    case DType::bf16: return reinterpret_cast<const void*>(vbgemm_quantize_bfloat16);
    case DType::f16: return reinterpret_cast<const void*>(vbgemm_quantize_float16);
    default: return nullptr;
  }
}

constexpr int64_t blocks_over(int64_t size) { return (size + kQuantizeBlock - 1) / kQuantizeBlock; }

}  // namespace

Error quantize(const QuantizeCall& call, Stream stream) {
  const void* const kernel = find_quantize(call.dtype);
  QuantizeParameters parameters = call.parameters;
  const int64_t blocks = call.matrices * blocks_over(parameters.rows) * blocks_over(parameters.cols);
  if (!kernel || blocks > max_blocks(kQuantizeThreads)) return kInvalidValue;
  return blocks ? launch_kernel(kernel, static_cast<uint32_t>(blocks), kQuantizeThreads, 0, &parameters, stream) : kSuccess;
}

}  // namespace vbgemm
