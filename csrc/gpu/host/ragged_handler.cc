// The CUDA backend's XLA FFI handler of ragged products: products over rows in groups whose sizes are data.
#include "gpu/host/ragged_launch.h"
#include "ragged_call.h"

namespace {

namespace ffi = xla::ffi;

ffi::Error Ragged(vbgemm::Stream stream, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, int64_t activation, int64_t gated, ffi::Span<const int64_t> sizes,
                  ffi::Span<const int64_t> batch_strides, ffi::Span<const int32_t> plan) {
  vbgemm::RaggedCall call;
  const ffi::Error error =
      vbgemm::check_ragged({operands, results, kind, contraction, transpose_rhs, activation, gated, sizes, batch_strides, plan}, call);
  if (error.failure()) return error;
  if (call.workspace && call.workspace_bytes < vbgemm::kRaggedWorkspaceBytes) {
    return vbgemm::refuse("the workspace must have " + std::to_string(vbgemm::kRaggedWorkspaceBytes) + " bytes");
  }
  if (call.plan_words > 1 || (call.plan_words == 1 && (call.plan[0] < 0 || call.plan[0] >= vbgemm::kRaggedShapes))) {
    return vbgemm::refuse("a ragged call's plan must be empty or one tile shape, from 0 to " + std::to_string(vbgemm::kRaggedShapes - 1));
  }
  const vbgemm::Error launched = vbgemm::launch_ragged(call, stream);
  if (launched == vbgemm::kSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jax_vbgemm: kernel launch failed: ") + vbgemm::error_name(launched));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_cuda_ragged, Ragged,
                              VBGEMM_BIND_RAGGED_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>()),
                              {ffi::Traits::kCmdBufferCompatible});
