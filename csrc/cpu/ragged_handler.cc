// The CPU backend's XLA FFI handler of ragged products: products over rows in groups whose sizes are data.
#include "cpu/group_walk.h"
#include "cpu/handler.h"
#include "ragged_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Ragged(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, int64_t activation, int64_t gated, ffi::Span<const int64_t> sizes,
                  ffi::Span<const int64_t> batch_strides, ffi::Span<const int32_t> plan, int64_t catalogue) {
  vbgemm::RaggedCall call;
  ffi::Error error = vbgemm::check_ragged(
      {operands, results, kind, contraction, transpose_rhs, activation, gated, sizes, batch_strides, plan, catalogue}, call);
  if (error.failure()) return error;
  if (plan.size() > 0) return vbgemm::refuse("this call was planned for a GPU");
  if (call.gated || call.gather.data || call.accumulator.data) {
    return vbgemm::refuse("this call was lowered for a GPU: the CPU has neither gated nor gathered products nor accumulators");
  }
  vbgemm::run(call, &pool);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_cpu_ragged, Ragged, VBGEMM_BIND_RAGGED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
