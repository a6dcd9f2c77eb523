#include "cpu/handler.h"

#include "cpu/walk.h"
#include "ffi_common.h"

namespace {

namespace ffi = xla::ffi;

// Stateless: a stateful CPU target registered at import makes all CPU initialisation fail in jaxlib 0.10.2.
ffi::Error Matmul(ffi::ThreadPool pool, ffi::AnyBuffer descriptors, ffi::RemainingArgs operands, ffi::RemainingRets results,
                  int64_t catalogue, int64_t kind, ffi::Span<const int64_t> problems, ffi::Span<const int64_t> epilogues,
                  ffi::Span<const int32_t> launches, int64_t num_factors, int64_t num_addends, int64_t num_runs, int64_t num_tiles,
                  int64_t num_blocks, int64_t num_splits, int64_t num_sums) {
  vbgemm::Call call;
  ffi::Error error = vbgemm::check_call({descriptors, operands, results, catalogue, kind, problems, epilogues, launches, num_factors,
                                         num_addends, num_runs, num_tiles, num_blocks, num_splits, num_sums},
                                        /*extra_results=*/0, call);
  if (error.failure()) return error;
  if (call.plan.tiles) return vbgemm::refuse("this call's tiles were laid out for a GPU");
  vbgemm::run(vbgemm::CpuCall{call.dtype, call.out_dtype, call.plan, call.buffers.data()}, &pool);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_cpu_matmul, Matmul, VBGEMM_BIND_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
