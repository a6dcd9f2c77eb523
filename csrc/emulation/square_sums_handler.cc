// The custom call that sums squares, for XLA's CPU platform: the GPU backend's checks, and its kernels on emulated threads.
#include "gpu/host/square_sums_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error SquareSums(ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> sums, ffi::Result<ffi::AnyBuffer> partials) {
  std::vector<vbgemm::Buffer> arrays;
  vbgemm::SquareSumsCall call;
  const ffi::Error error = vbgemm::check_square_sums(operands, *sums, *partials, arrays, call);
  if (error.failure()) return error;
  return vbgemm::square_sums(call, {}) == vbgemm::kSuccess ? ffi::Error::Success() : ffi::Error::Internal("launch failed");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_emulated_square_sums, SquareSums,
                              ffi::Ffi::Bind().RemainingArgs().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
