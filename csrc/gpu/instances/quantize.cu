// The kernels that quantize, one for each form and type of their operands, and their host side.
#include "gpu/elementwise/quantize.h"
#include "gpu/host/quantize_launch.h"

#define VBGEMM_DEFINE_KERNEL(form, name, element)                                                                      \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kQuantizeThreads,                                            \
                                                  (vbgemm::Quantize<element, vbgemm::QuantizeForm::form>::kMinBlocks)) \
      vbgemm_quantize_##form##_##name(VBGEMM_PARAMETERS(vbgemm::QuantizeParameters, parameters)) {                     \
    using Kernel = vbgemm::Quantize<element, vbgemm::QuantizeForm::form>;                                              \
    VBGEMM_READ_PARAMETERS(vbgemm::QuantizeParameters, parameters);                                                    \
    VBGEMM_SHARED(Kernel::Shared, shared);                                                                             \
    Kernel(parameters, shared).run();                                                                                  \
  }
#define VBGEMM_DEFINE_FORM(form)                         \
  VBGEMM_DEFINE_KERNEL(form, float32, float)             \
  VBGEMM_DEFINE_KERNEL(form, bfloat16, vbgemm::BFloat16) \
  VBGEMM_DEFINE_KERNEL(form, float16, vbgemm::Float16)

VBGEMM_DEFINE_FORM(plain)
VBGEMM_DEFINE_FORM(gated)
VBGEMM_DEFINE_FORM(gated_gradient)

namespace vbgemm {
namespace {

#define VBGEMM_FIND(kForm, name, type) \
  if (call.form == QuantizeForm::kForm && call.dtype == DType::type) return reinterpret_cast<const void*>(vbgemm_quantize_##kForm##_##name);
#define VBGEMM_FIND_FORM(kForm) VBGEMM_FIND(kForm, float32, f32) VBGEMM_FIND(kForm, bfloat16, bf16) VBGEMM_FIND(kForm, float16, f16)

const void* find_quantize(const QuantizeCall& call) {
  VBGEMM_FIND_FORM(plain)
  VBGEMM_FIND_FORM(gated)
  VBGEMM_FIND_FORM(gated_gradient)
  return nullptr;
}

}  // namespace

Error quantize(const QuantizeCall& call, Stream stream) {
  const void* const kernel = find_quantize(call);
  QuantizeParameters parameters = call.parameters;
  const int64_t row_blocks = tiles_over(parameters.rows, kQuantizeBlock), col_blocks = tiles_over(parameters.part_cols, kQuantizeBlock);
  const int64_t blocks = call.matrices * row_blocks * col_blocks;
  if (!kernel || blocks > max_blocks(kQuantizeThreads)) return kInvalidValue;
  if (!blocks) return kSuccess;
  // An indexed row may be read several times: the columns of one block stay in L2.
  parameters.down = call.form == QuantizeForm::plain && parameters.index;
  const auto down = static_cast<uint32_t>(row_blocks), across = static_cast<uint32_t>(col_blocks);
  parameters.line = divisor(parameters.down ? down : across), parameters.matrix = divisor(parameters.down ? across : down);
  return launch_kernel(kernel, static_cast<uint32_t>(blocks), kQuantizeThreads, 0, &parameters, stream);
}

}  // namespace vbgemm
