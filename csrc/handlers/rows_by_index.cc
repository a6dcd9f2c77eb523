// The XLA FFI handler that copies rows by index, for GPUs and the emulation.
#include "gpu/host/rows_by_index_call.h"
#include "handlers/backend.h"

namespace vbgemm {
namespace {

ffi::Error RowsByIndex(Where stream, ffi::AnyBuffer x, ffi::AnyBuffer index, ffi::Result<ffi::AnyBuffer> y) {
  RowsByIndexParameters call;
  const Fault fault = check_rows_by_index(x, index, *y, call);
  return fault ? refuse(*fault) : status_of(rows_by_index(call, stream));
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(
    vbgemm_rows_by_index, vbgemm::RowsByIndex,
    xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().Arg<xla::ffi::AnyBuffer>().Arg<xla::ffi::AnyBuffer>().Ret<xla::ffi::AnyBuffer>());
