// The XLA FFI handler that quantizes, for GPUs and the emulation.
#include "gpu/host/quantize_call.h"
#include "handlers/backend.h"

namespace vbgemm {
namespace {

using Result = ffi::Result<ffi::AnyBuffer>;

ffi::Error Quantize(Where stream, ffi::AnyBuffer x, ffi::AnyBuffer sums, ffi::AnyBuffer index, ffi::AnyBuffer place,
                    ffi::AnyBuffer row_scale, Result values, Result transposed, Result row_scales, Result block_scales, Result partials,
                    int64_t form, int64_t activation, bool of_rows) {
  QuantizeCall call;
  const Fault fault = check_quantize(
      {x, sums, index, place, row_scale, *values, *transposed, *row_scales, *block_scales, *partials, form, activation, of_rows}, call);
  return fault ? refuse(*fault) : status_of(quantize(call, stream));
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(vbgemm_quantize, vbgemm::Quantize,
                      xla::ffi::Ffi::Bind()
                          .Ctx<vbgemm::Context>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Arg<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Ret<xla::ffi::AnyBuffer>()
                          .Attr<int64_t>("form")
                          .Attr<int64_t>("activation")
                          .Attr<bool>("of_rows"));
