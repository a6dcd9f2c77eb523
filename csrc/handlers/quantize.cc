// The XLA FFI handler that quantizes, of a GPU and of an emulated one.
#include "gpu/host/quantize_call.h"
#include "handlers/backend.h"

namespace vbgemm {
namespace {

ffi::Error Quantize(Where stream, ffi::AnyBuffer x, ffi::AnyBuffer index, ffi::Result<ffi::AnyBuffer> values,
                    ffi::Result<ffi::AnyBuffer> transposed, ffi::Result<ffi::AnyBuffer> scales, bool of_rows) {
  QuantizeCall call;
  const ffi::Error error = check_quantize(x, index, *values, *transposed, *scales, of_rows, call);
  return error.failure() ? error : status_of(quantize(call, stream));
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(vbgemm_quantize, vbgemm::Quantize,
                      xla::ffi::Ffi::Bind()
                          .Ctx<vbgemm::Context>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Attr<bool>("of_rows"));
