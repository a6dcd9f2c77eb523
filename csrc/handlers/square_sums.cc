// The XLA FFI handlers that sum the squares of arrays and of averages of arrays, for GPUs and the emulation.
#include "gpu/host/averages_call.h"
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

ffi::Error Averages(Where stream, ffi::AnyBuffer scales, ffi::RemainingArgs operands, ffi::RemainingRets results) {
  std::vector<Average> members;
  AveragesCall call;
  const ffi::Error error = check_averages(scales, operands, results, members, call);
  return error.failure() ? error : status_of(averages(call, stream));
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(vbgemm_square_sums, vbgemm::SquareSums,
                      xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().RemainingArgs().Ret<xla::ffi::AnyBuffer>().Ret<xla::ffi::AnyBuffer>());
VBGEMM_DEFINE_HANDLER(vbgemm_averages, vbgemm::Averages,
                      xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().Arg<xla::ffi::AnyBuffer>().RemainingArgs().RemainingRets());
