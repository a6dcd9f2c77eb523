// The launch that makes the tensor maps of a call's problems in its workspace.
#include <algorithm>

#include "gpu/host/dynamic_shared.h"
#include "gpu/host/pipelined_launch.h"
#include "gpu/host/tensor_maps.h"
#include "gpu/pipelined/pipelined_tile.h"
#include "gpu/tile/kernels.h"

// One thread block, of one warp, for each problem.
extern "C" __global__ void vbgemm_make_maps(VBGEMM_PARAMETERS(vbgemm::MapParameters, parameters)) {
  if constexpr (vbgemm::kWarpgroupProducts) {
    VBGEMM_SHARED(vbgemm::ProblemMaps, maps);
    vbgemm::let_next_kernel_start();
    vbgemm::await_previous_kernel();
    const int problem = static_cast<int>(vbgemm::block_index());
    auto* const to = static_cast<vbgemm::ProblemMaps*>(const_cast<void*>(parameters.call.maps));
    vbgemm::make_maps(parameters, problem, maps, to + problem);
  }
}

namespace vbgemm {
namespace {

static_assert(pipeline_shared_bytes<PipelinedShared<PipelinedCut<Kind::bf16>>>() <= kPipelineMaxShared);
static_assert(pipeline_shared_bytes<PipelinedShared<PipelinedCut<Kind::f16>>>() <= kPipelineMaxShared);

// A map of some matrix at `data`, whose address, size and stride the device replaces.
Error encode_any(CUtensorMap& map, DType dtype, const void* data, uint32_t box_lines) {
  constexpr int kBytes = 128, kLines = 64;
  return encode_map(map, {dtype, data, kBytes / bytes_of(dtype), kLines, 1, kBytes, kBytes * kLines}, box_lines);
}

}  // namespace

bool runs_pipeline() { return has_bulk_copies(reinterpret_cast<const void*>(vbgemm_m384_pipelined_bfloat16)); }

Error make_maps(Kind kind, const KernelParameters& call, Stream stream) {
  constexpr uint32_t kFactorLines = 64, kResultLines = 16;  // of the boxes in which operands are copied and results are stored
  MapParameters parameters{call, {}, {}};
  Error error = encode_any(parameters.factor, arithmetic_of(kind).lhs, call.maps, kFactorLines);
  if (error == kSuccess) error = encode_any(parameters.result, call.result, call.maps, kResultLines);
  if (error != kSuccess) return error;
  return launch_kernel(reinterpret_cast<const void*>(vbgemm_make_maps), call.plan.num_problems, kWaveSize, 0, &parameters, stream);
}

GridOfBlocks grid_of(Kernel kernel, uint32_t blocks) {
  if (kernel != Kernel::m384_pipelined) return {blocks, 1};
  constexpr uint32_t kCluster = PipelinedCut<Kind::bf16>::kCluster;
  const uint32_t clusters = (blocks + kCluster - 1) / kCluster, most = static_cast<uint32_t>(multiprocessors()) / kCluster;
  return {kCluster * (most > 0 ? std::min(clusters, most) : clusters), static_cast<int>(kCluster)};
}

}  // namespace vbgemm
