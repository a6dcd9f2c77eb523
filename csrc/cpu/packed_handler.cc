// The CPU backend's XLA FFI handler of packed rows times weights of different shapes.
#include "cpu/group_walk.h"
#include "cpu/handler.h"
#include "packed_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Packed(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> shapes, ffi::Span<const int64_t> shared) {
  vbgemm::PackedCall call{};
  std::vector<vbgemm::RaggedOperand> weights;
  ffi::Error error = vbgemm::check_packed({operands, results, kind, contraction, transpose_rhs, sizes, shapes, shared}, 0, weights, call);
  if (error.success()) vbgemm::run(call, &pool);
  return error;
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_cpu_packed, Packed, VBGEMM_BIND_PACKED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
