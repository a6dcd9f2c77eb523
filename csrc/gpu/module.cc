// The extension module of a GPU backend: its XLA FFI handler.
#include <nanobind/nanobind.h>

#include "ffi_common.h"
#include "gpu/launch.h"

namespace {

namespace ffi = xla::ffi;
namespace nb = nanobind;

ffi::Error Matmul(vbgemm::Stream stream, ffi::AnyBuffer descriptors, ffi::RemainingArgs operands, ffi::RemainingRets rets,
                  int64_t catalogue, int64_t kind, ffi::Span<const int64_t> problems, ffi::Span<const int64_t> epilogues,
                  ffi::Span<const int32_t> launches, int64_t num_factors, int64_t num_addends, int64_t num_runs, int64_t num_tiles,
                  int64_t num_blocks) {
  // Where the table of buffers doesn't fit a launch's parameters, the lowering adds a result to keep it in.
  const size_t results = rets.size(), buffers = operands.size() + results;
  const bool workspace = results > 0 && buffers > static_cast<size_t>(vbgemm::kMaxParameterBuffers) + 1;
  vbgemm::Call call;
  ffi::Error error = vbgemm::check_call({descriptors, operands, rets, catalogue, kind, problems, epilogues, launches, num_factors,
                                         num_addends, num_runs, num_tiles, num_blocks},
                                        /*extra_results=*/workspace ? 1 : 0, call);
  if (error.failure()) return error;

  vbgemm::GpuCall gpu{};
  if (workspace) {
    ffi::AnyBuffer buffer = **rets.get<ffi::AnyBuffer>(results - 1);
    if (buffer.size_bytes() < call.buffers.size() * sizeof(vbgemm::Buffer))
      return vbgemm::refuse("the workspace is too small for the buffers");
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
  const vbgemm::Error launched = vbgemm::launch(gpu, stream);
  if (launched != vbgemm::kSuccess) {
    return ffi::Error::Internal(std::string("jax_vbgemm: kernel launch failed: ") + vbgemm::error_name(launched));
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_gpu_matmul, Matmul, VBGEMM_BIND_ARGUMENTS(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<vbgemm::Stream>>()),
                              {ffi::Traits::kCmdBufferCompatible});

#ifdef __HIP_PLATFORM_AMD__
NB_MODULE(_rocm, m) {
  m.doc() = "The ROCm backend of jax_vbgemm.";
#else
NB_MODULE(_cuda, m) {
  m.doc() = "The CUDA backend of jax_vbgemm.";
#endif
  m.def("handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_gpu_matmul)); }, "The XLA FFI handler.");
}
