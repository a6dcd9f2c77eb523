// The XLA FFI handler of ragged products, of every backend: products of rows in groups of runtime sizes.
#include "handlers/backend.h"
#include "ragged_call.h"

#ifdef VBGEMM_CPU
#include "cpu/group_walk.h"
#else
#include "gpu/host/ragged_launch.h"
#endif

namespace vbgemm {
namespace {

#ifdef VBGEMM_CPU
bool has_tile(const TileShape&, Kind) { return false; }

ffi::Error compute(const RaggedCall& call, Where pool) {
  if (call.plan.shape != RaggedShape::none) return refuse("this call was planned for a GPU");
  if (!has_all(kRaggedCpu, call)) {
    return refuse("this call was lowered for a GPU: the CPU has neither gated nor gathered products nor accumulators nor 8-bit factors");
  }
  run(call, &pool);
  return ffi::Error::Success();
}
#else
bool has_tile(const TileShape& tile, Kind kind) { return has_ragged_tile(tile, kind); }

ffi::Error compute(const RaggedCall& call, Where stream) {
  if (!has_ragged_kernel(call)) {
    return refuse("this ragged product was planned for another GPU: lower it on this machine, or in the context jax_vbgemm.target(...)");
  }
  return status_of(launch_ragged(call, stream));
}
#endif

ffi::Error Ragged(Where where, ffi::RemainingArgs operands, ffi::RemainingRets results, RaggedAttributes attributes) {
  RaggedCall call{};
  Fault fault = check_ragged_call({operands, results, attributes}, call);
  if (!fault) fault = check_ragged_plan(attributes, [&](const TileShape& tile) { return has_tile(tile, call.kind); }, call);
  return fault ? refuse(*fault) : compute(call, where);
}

}  // namespace
}  // namespace vbgemm

VBGEMM_DEFINE_HANDLER(vbgemm_ragged, vbgemm::Ragged,
                      xla::ffi::Ffi::Bind().Ctx<vbgemm::Context>().RemainingArgs().RemainingRets().Attrs<vbgemm::RaggedAttributes>());
