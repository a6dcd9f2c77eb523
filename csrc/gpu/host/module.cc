// The extension module of a GPU backend (_cuda or _rocm): its XLA FFI handlers.
#include <nanobind/nanobind.h>

#include "ffi_common.h"
#include "gpu/host/addition_call.h"
#include "gpu/host/launch.h"
#include "gpu/host/square_sums_call.h"
#include "gpu/host/status.h"

extern "C" XLA_FFI_Error* vbgemm_ragged(XLA_FFI_CallFrame* call_frame);

namespace {

namespace ffi = xla::ffi;
namespace nb = nanobind;

ffi::Error Matmul(vbgemm::Stream stream, ffi::AnyBuffer descriptors, ffi::RemainingArgs operands, ffi::RemainingRets rets,
                  int64_t catalogue, int64_t kind, ffi::Span<const int64_t> problems, ffi::Span<const int64_t> epilogues,
                  ffi::Span<const int32_t> launches, int64_t num_factors, int64_t num_addends, int64_t num_runs, int64_t num_tiles,
                  int64_t num_blocks, int64_t num_splits, int64_t num_sums) {
  // If the kernels need a workspace, the lowering appends a result that provides it.
  const size_t results = rets.size(), buffers = operands.size() + results;
  const auto* const each = reinterpret_cast<const vbgemm::Launch*>(launches.begin());
  const int num_launches = static_cast<int>(launches.size() * sizeof(int32_t) / sizeof(vbgemm::Launch));
  const bool pipelined = vbgemm::has_pipelined_tiles(each, num_launches);
  const bool workspace = results > 1 && (pipelined || num_sums > 0 || buffers > static_cast<size_t>(vbgemm::kMaxParameterBuffers) + 1);
  vbgemm::Call call;
  ffi::Error error = vbgemm::check_call({descriptors, operands, rets, catalogue, kind, problems, epilogues, launches, num_factors,
                                         num_addends, num_runs, num_tiles, num_blocks, num_splits, num_sums},
                                        /*extra_results=*/workspace ? 1 : 0, call);
  if (error.failure()) return error;

  vbgemm::GpuCall gpu{};
  gpu.num_sums = call.num_sums;
  const size_t needed = vbgemm::workspace_bytes(call.kind, static_cast<int>(call.buffers.size()), gpu.num_sums, pipelined);
  if (needed > 0) {
    ffi::AnyBuffer buffer = **rets.get<ffi::AnyBuffer>(results - 1);
    if (!workspace || buffer.size_bytes() < needed) {
      return vbgemm::refuse("the workspace must have " + std::to_string(needed) + " bytes");
    }
    gpu.workspace = buffer.untyped_data();
  }
  gpu.kind = call.kind;
  gpu.out_dtype = call.out_dtype;
  gpu.plan = call.plan;
  gpu.launches = call.launches;
  gpu.num_launches = call.num_launches;
  gpu.buffers = call.buffers.data();
  gpu.elements = call.elements.data();
  gpu.num_buffers = static_cast<int>(call.buffers.size());
  gpu.num_operands = call.num_operands;
  return vbgemm::status_of(vbgemm::launch(gpu, stream));
}

ffi::Error AddScaled(vbgemm::Stream stream, ffi::AnyBuffer alpha, ffi::AnyBuffer beta, ffi::RemainingArgs operands,
                     ffi::RemainingRets results) {
  std::vector<vbgemm::Addition> members;
  vbgemm::AddScaledCall call;
  const ffi::Error error = vbgemm::check_addition(alpha, beta, operands, results, members, call);
  return error.failure() ? error : vbgemm::status_of(vbgemm::add_scaled(call, stream));
}

ffi::Error SquareSums(vbgemm::Stream stream, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> sums,
                      ffi::Result<ffi::AnyBuffer> partials) {
  std::vector<vbgemm::Buffer> arrays;
  vbgemm::SquareSumsCall call;
  const ffi::Error error = vbgemm::check_square_sums(operands, *sums, *partials, arrays, call);
  return error.failure() ? error : vbgemm::status_of(vbgemm::square_sums(call, stream));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_gpu_matmul, Matmul, VBGEMM_BIND_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>()),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    vbgemm_gpu_add_scaled, AddScaled,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().RemainingArgs().RemainingRets(),
    {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    vbgemm_gpu_square_sums, SquareSums,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>().RemainingArgs().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(),
    {ffi::Traits::kCmdBufferCompatible});

#ifdef __HIP_PLATFORM_AMD__
NB_MODULE(_rocm, m) {
  m.doc() = "The ROCm backend of jax_vbgemm.";
#else
NB_MODULE(_cuda, m) {
  m.doc() = "The CUDA backend of jax_vbgemm.";
  m.def(
      "cuda_versions",
      [] {
        int runtime = 0, driver = 0;
        cudaRuntimeGetVersion(&runtime);
        cudaDriverGetVersion(&driver);
        return nb::make_tuple(runtime, driver);
      },
      "The version of CUDA that the kernels were built with and the newest that the driver knows, as 1000 major + 10 minor; 0 without a "
      "driver.");
#endif
  m.def("handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_gpu_matmul)); }, "The XLA FFI handler of products.");
  m.def("add_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_gpu_add_scaled)); }, "The XLA FFI handler of sums.");
  m.def(
      "square_sums_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_gpu_square_sums)); },
      "The XLA FFI handler of sums of squares.");
  m.def(
      "ragged_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_ragged)); },
      "The XLA FFI handler of products over rows in groups whose sizes are data.");
}
