// The XLA FFI handler that sums squares, of a GPU and of an emulated one.
#include "gpu/host/square_sums_call.h"
#include "handlers/backend.h"

namespace vbgemm {
namespace {

ffi::Error SquareSums(Where stream, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> sums, ffi::Result<ffi::AnyBuffer> partials) {
  std::vector<Buffer> arrays;
  SquareSumsCall call;
  const ffi::Error error = check_square_sums(operands, *sums, *partials, arrays, call);
  return error.failure() ? error : status_of(square_sums(call, stream));
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(vbgemm_square_sums, vbgemm::SquareSums,
                      xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().RemainingArgs().Ret<xla::ffi::AnyBuffer>().Ret<xla::ffi::AnyBuffer>());
