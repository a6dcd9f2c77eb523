// The custom call that adds arrays, for XLA's CPU platform: the GPU backend's checks, and its kernels on emulated threads.
#include "gpu/host/addition_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error AddScaled(ffi::AnyBuffer alpha, ffi::AnyBuffer beta, ffi::RemainingArgs operands, ffi::RemainingRets results) {
  std::vector<vbgemm::Addition> members;
  vbgemm::AddScaledCall call;
  const ffi::Error error = vbgemm::check_addition(alpha, beta, operands, results, members, call);
  if (error.failure()) return error;
  return vbgemm::add_scaled(call, {}) == vbgemm::kSuccess ? ffi::Error::Success() : ffi::Error::Internal("launch failed");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_emulated_add_scaled, AddScaled,
                              ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().RemainingArgs().RemainingRets());
