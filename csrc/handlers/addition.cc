// The XLA FFI handler that adds arrays, for GPUs and the emulation.
#include "gpu/host/addition_call.h"
#include "handlers/backend.h"

namespace vbgemm {
namespace {

ffi::Error AddScaled(Where stream, ffi::AnyBuffer scales, ffi::RemainingArgs operands, ffi::RemainingRets results) {
  std::vector<Addition> members;
  AddScaledCall call;
  const ffi::Error error = check_addition(scales, operands, results, members, call);
  return error.failure() ? error : status_of(add_scaled(call, stream));
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(vbgemm_add_scaled, vbgemm::AddScaled,
                      xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().Arg<xla::ffi::AnyBuffer>().RemainingArgs().RemainingRets());
