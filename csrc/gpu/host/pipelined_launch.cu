// The launch of pipelined tiles: its grid, and the tensor maps from which the kernel makes those of its tiles.
#include <algorithm>

#include "gpu/host/dynamic_shared.h"
#include "gpu/host/pipelined_launch.h"
#include "gpu/host/tensor_maps.h"
#include "gpu/sm90/source_plan.h"
#include "gpu/tile/kernels.h"

namespace vbgemm {
namespace {

static_assert(pipeline_shared_bytes<PlanSource<Kind::bf16>::Shared>() <= kPipelineMaxShared);
static_assert(pipeline_shared_bytes<PlanSource<Kind::f16>::Shared>() <= kPipelineMaxShared);

// A map of some matrix at `data`, whose address, size and stride the device replaces.
Error encode_any(CUtensorMap& map, DType dtype, const void* data, uint32_t box_lines) {
  constexpr int kBytes = 128, kLines = 64;
  return encode_map(map, {dtype, data, kBytes / bytes_of(dtype), kLines, 1, kBytes, kBytes * kLines}, box_lines);
}

}  // namespace

bool runs_pipeline() { return has_bulk_copies(reinterpret_cast<const void*>(vbgemm_m384_pipelined_bfloat16)); }

Error launch_pipelined(Kind kind, const void* kernel, const KernelParameters& call, Stream stream) {
  constexpr uint32_t kFactorLines = 64, kResultLines = 16;  // of the boxes in which operands are copied and results are stored
  constexpr int kCluster = PlanCut<Kind::bf16>::kCluster;
  PlanParameters parameters{call, {}, {}};
  Error error = encode_any(parameters.factor, arithmetic_of(kind).lhs, call.maps, kFactorLines);
  if (error == kSuccess) error = encode_any(parameters.result, call.result, call.maps, kResultLines);
  if (error != kSuccess) return error;
  const int clusters = (call.launch_blocks + kCluster - 1) / kCluster, places = std::min(multiprocessors(), kMaxPipelinedBlocks) / kCluster;
  const auto blocks = static_cast<uint32_t>(kCluster * std::min(clusters, std::max(places, 1)));
  return launch_kernel(kernel, blocks, PlanCut<Kind::bf16>::kThreads, kPipelineMaxShared, &parameters, stream, kCluster);
}

}  // namespace vbgemm
