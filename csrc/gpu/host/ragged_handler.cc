// A GPU backend's XLA FFI handlers of ragged products: products over rows in groups whose sizes are data.
#include "gpu/host/packed_gpu_call.h"
#include "gpu/host/ragged_gpu_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Ragged(vbgemm::Stream stream, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, int64_t activation, int64_t gated, ffi::Span<const int64_t> sizes,
                  ffi::Span<const int64_t> batch_strides, ffi::Span<const int32_t> plan, int64_t catalogue) {
  return vbgemm::compute_ragged(
      {operands, results, kind, contraction, transpose_rhs, activation, gated, sizes, batch_strides, plan, catalogue}, stream);
}

ffi::Error Packed(vbgemm::Stream stream, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> shapes, ffi::Span<const int64_t> shared,
                  int64_t tile, int64_t catalogue) {
  return vbgemm::compute_packed({operands, results, kind, contraction, transpose_rhs, sizes, shapes, shared}, {tile, catalogue}, stream);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_gpu_ragged, Ragged,
                              VBGEMM_BIND_RAGGED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>()),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_gpu_packed, Packed,
                              VBGEMM_BIND_PACKED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>())
                                  .Attr<int64_t>("tile")
                                  .Attr<int64_t>("catalogue"),
                              {ffi::Traits::kCmdBufferCompatible});
