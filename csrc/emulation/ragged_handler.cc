// The custom call of ragged products, for XLA's CPU platform: the GPU backend's checks, and its plain kernels on emulated threads.
#include "gpu/host/ragged_launch.h"
#include "gpu/ragged/ragged_entry.h"
#include "ragged_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Ragged(ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction, int64_t transpose_rhs,
                  int64_t activation, int64_t gated, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> batch_strides,
                  ffi::Span<const int32_t> plan) {
  vbgemm::RaggedCall call;
  const ffi::Error error =
      vbgemm::check_ragged({operands, results, kind, contraction, transpose_rhs, activation, gated, sizes, batch_strides, plan}, call);
  if (error.failure()) return error;
  const auto launch = [](const vbgemm::RaggedCall& entry) { return vbgemm::launch_ragged_plain(entry, {}); };
  return vbgemm::each_entry(call, launch) == vbgemm::kSuccess ? ffi::Error::Success() : ffi::Error::Internal("launch failed");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_emulated_ragged, Ragged, VBGEMM_BIND_RAGGED_ARGUMENTS(ffi::Ffi::Bind()));
