// The XLA FFI handler of products that are planned at trace time, of every backend.
#include "handlers/backend.h"

#ifdef VBGEMM_CPU
#include "cpu/walk.h"
#else
#include "gpu/host/launch.h"
#endif

namespace vbgemm {
namespace {

#ifdef VBGEMM_CPU

// If the plan splits K, the lowering appends a result that provides the workspace for the partial sums.
bool has_workspace(const Arguments& given) { return given.num_sums > 0; }
size_t needed_bytes(const Call& call) { return call.num_sums * accumulator_bytes(call.kind); }

ffi::Error compute(const Call& call, void* workspace, Where pool) {
  if (call.num_launches > 0) return refuse("this call was planned for a GPU");
  CpuCall cpu{};
  cpu.sums = workspace;
  cpu.kind = call.kind, cpu.out_dtype = call.out_dtype;
  cpu.plan = call.plan;
  cpu.buffers = call.buffers.data(), cpu.elements = call.elements.data();
  cpu.num_operands = call.num_operands, cpu.num_buffers = static_cast<int32_t>(call.buffers.size());
  cpu.num_sums = call.num_sums;
  cpu.may_stream = fills_caches(cpu);
  run(cpu, &pool);
  return ffi::Error::Success();
}

#else

// If the kernels need a workspace, the lowering appends a result that provides it.
bool has_workspace(const Arguments& given) {
  const size_t results = given.results.size(), buffers = given.operands.size() + results;
  const auto* const launches = reinterpret_cast<const Launch*>(given.launches.begin());
  const bool pipelined = has_pipelined_tiles(launches, static_cast<int>(given.launches.size() * sizeof(int32_t) / sizeof(Launch)));
  return results > 1 && (pipelined || given.num_sums > 0 || buffers > static_cast<size_t>(kMaxParameterBuffers) + 1);
}
size_t needed_bytes(const Call& call) {
  return workspace_bytes(call.kind, static_cast<int>(call.buffers.size()), call.num_sums,
                         has_pipelined_tiles(call.launches, call.num_launches));
}

ffi::Error compute(const Call& call, void* workspace, Where stream) {
  GpuCall gpu{};
  gpu.num_sums = call.num_sums;
  gpu.workspace = workspace;
  gpu.kind = call.kind, gpu.out_dtype = call.out_dtype;
  gpu.plan = call.plan;
  gpu.launches = call.launches, gpu.num_launches = call.num_launches;
  gpu.buffers = call.buffers.data(), gpu.elements = call.elements.data();
  gpu.num_buffers = static_cast<int>(call.buffers.size()), gpu.num_operands = call.num_operands;
  return status_of(launch(gpu, stream));
}

#endif

// The handler is stateless: in jaxlib 0.10.2, a stateful CPU target registered at import makes the initialization of every CPU client fail.
ffi::Error Matmul(Where where, ffi::AnyBuffer descriptors, ffi::RemainingArgs operands, ffi::RemainingRets results, Attributes attributes) {
  const Arguments given{attributes, descriptors, operands, results};
  const bool workspace = has_workspace(given);
  Call call;
  if (ffi::Error error = check_call(given, /*extra_results=*/workspace ? 1 : 0, call); error.failure()) return error;
  const size_t needed = needed_bytes(call);
  if (needed == 0) return compute(call, nullptr, where);
  ffi::AnyBuffer memory = **results.get<ffi::AnyBuffer>(results.size() - 1);
  if (!workspace || memory.size_bytes() < needed) return refuse("the workspace must have " + std::to_string(needed) + " bytes");
  return compute(call, memory.untyped_data(), where);
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(
    vbgemm_matmul, vbgemm::Matmul,
    xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().Arg<xla::ffi::AnyBuffer>().RemainingArgs().RemainingRets().Attrs<vbgemm::Attributes>());
