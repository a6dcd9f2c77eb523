// A GPU backend's XLA FFI handler of ragged products: products over rows in groups whose sizes are data.
#include "gpu/host/ragged_gpu_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Ragged(vbgemm::Stream stream, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, int64_t activation, int64_t gated, ffi::Span<const int64_t> sizes,
                  ffi::Span<const int64_t> batch_strides, ffi::Span<const int32_t> plan, int64_t catalogue) {
  return vbgemm::compute_ragged(
      {operands, results, kind, contraction, transpose_rhs, activation, gated, sizes, batch_strides, plan, catalogue}, stream);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_gpu_ragged, Ragged,
                              VBGEMM_BIND_RAGGED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>()),
                              {ffi::Traits::kCmdBufferCompatible});
