// The CPU backend's XLA FFI handler of products that are planned at trace time.
#include "cpu/handler.h"

#include "cpu/walk.h"
#include "ffi_common.h"

namespace {

namespace ffi = xla::ffi;

// The handler is stateless: in jaxlib 0.10.2, a stateful CPU target registered at import makes the initialization of every CPU client fail.
ffi::Error Matmul(ffi::ThreadPool pool, ffi::AnyBuffer descriptors, ffi::RemainingArgs operands, ffi::RemainingRets results,
                  int64_t catalogue, int64_t kind, ffi::Span<const int64_t> problems, ffi::Span<const int64_t> epilogues,
                  ffi::Span<const int32_t> launches, int64_t num_factors, int64_t num_addends, int64_t num_runs, int64_t num_tiles,
                  int64_t num_blocks, int64_t num_splits, int64_t num_sums) {
  // If the plan splits K, the lowering appends a result that provides the workspace for the partial sums.
  const size_t extra_results = num_sums > 0;
  vbgemm::Call call;
  ffi::Error error = vbgemm::check_call({descriptors, operands, results, catalogue, kind, problems, epilogues, launches, num_factors,
                                         num_addends, num_runs, num_tiles, num_blocks, num_splits, num_sums},
                                        extra_results, call);
  if (error.failure()) return error;
  if (call.num_launches > 0) return vbgemm::refuse("this call was planned for a GPU");
  vbgemm::CpuCall cpu{};
  if (num_sums > 0) {
    ffi::AnyBuffer sums = **results.get<ffi::AnyBuffer>(results.size() - 1);
    const size_t needed = num_sums * vbgemm::accumulator_bytes(call.kind);
    if (sums.size_bytes() < needed) return vbgemm::refuse("the workspace must have " + std::to_string(needed) + " bytes");
    cpu.sums = sums.untyped_data();
  }
  cpu.kind = call.kind, cpu.out_dtype = call.out_dtype;
  cpu.plan = call.plan;
  cpu.buffers = call.buffers.data(), cpu.elements = call.elements.data();
  cpu.num_operands = call.num_operands, cpu.num_buffers = static_cast<int32_t>(call.buffers.size());
  cpu.num_sums = call.num_sums;
  cpu.past_caches = vbgemm::fills_caches(cpu);
  vbgemm::run(cpu, &pool);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_cpu_matmul, Matmul, VBGEMM_BIND_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
