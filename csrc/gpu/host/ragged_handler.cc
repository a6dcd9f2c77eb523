// A GPU backend's XLA FFI handlers of ragged products: products over rows in groups whose sizes are data.
#include "gpu/host/packed_gpu_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Packed(vbgemm::Stream stream, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> shapes, ffi::Span<const int64_t> shared,
                  int64_t tile, int64_t catalogue) {
  return vbgemm::compute_packed({operands, results, kind, contraction, transpose_rhs, sizes, shapes, shared}, {tile, catalogue}, stream);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_gpu_packed, Packed,
                              VBGEMM_BIND_PACKED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>())
                                  .Attr<int64_t>("tile")
                                  .Attr<int64_t>("catalogue"),
                              {ffi::Traits::kCmdBufferCompatible});
