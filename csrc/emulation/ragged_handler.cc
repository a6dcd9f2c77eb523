// The custom calls of ragged products, for XLA's CPU platform: the GPU backend's checks, and its kernels on emulated threads.
#include <cstring>

#include "gpu/host/packed_gpu_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Packed(ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction, int64_t transpose_rhs,
                  ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> shapes, ffi::Span<const int64_t> shared, int64_t tile,
                  int64_t catalogue) {
  for (size_t i = 0; i < results.size(); ++i) {  // NaN, so that elements that are not written show
    const ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    std::memset(result.untyped_data(), 0xff, result.size_bytes());
  }
  return vbgemm::compute_packed({operands, results, kind, contraction, transpose_rhs, sizes, shapes, shared}, {tile, catalogue}, {});
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_emulated_packed, Packed,
                              VBGEMM_BIND_PACKED_ARGUMENTS(ffi::Ffi::Bind()).Attr<int64_t>("tile").Attr<int64_t>("catalogue"));
