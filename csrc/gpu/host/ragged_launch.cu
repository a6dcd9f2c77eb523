// The launches of a ragged product: the pipelined kernel where the plan names it and it can run, else a list of tiles and a kernel of the
// catalogue that computes them.
#include <algorithm>

#include "gpu/host/launch.h"
#include "gpu/host/ragged_launch.h"
#include "gpu/host/sm90_launch.h"
#include "gpu/ragged/ragged_sizes.h"
#include "gpu/ragged/tile_list.h"
#include "gpu/vendor_tiles.h"

extern "C" __global__ void vbgemm_tile_list(VBGEMM_PARAMETERS(vbgemm::TileListParameters, parameters));

namespace vbgemm {
namespace {

// Writes the list of `num_tiles` tiles to the workspace, and fills in `plan` with it. The tiles' buffers are lhs, rhs, the bias if there is
// one, and the result (launch_tiles).
Error list_tiles(const RaggedCall& call, int32_t num_tiles, Descriptors& plan, Stream stream) {
  const TileShape& tile = kTiles[call.plan.tile];
  auto* const epilogues = static_cast<TileEpilogues*>(call.workspace);
  const bool finishes = call.bias || call.activation != Activation::none;
  TileListParameters parameters{};
  parameters.sizes = sizes_of(call);
  parameters.tile = {tile.m, tile.n};
  parameters.tile_id = call.plan.tile;
  parameters.transpose_rhs = call.transpose_rhs;
  parameters.lhs = 0, parameters.rhs = 1, parameters.bias = call.bias ? 2 : -1, parameters.out = call.bias ? 3 : 2;
  parameters.activation = call.activation;
  parameters.epilogues = finishes ? epilogues : nullptr;
  parameters.tiles = reinterpret_cast<ReadyTile*>(epilogues + 1);
  parameters.num_tiles = num_tiles;
  // No more warps than can run at once, because each of them walks the groups from the first one on.
  constexpr int kWarps = 16;
  const int warps = kWarps * std::max(multiprocessors(), 1);
  parameters.each = (num_tiles + warps - 1) / warps;
  const auto blocks = static_cast<uint32_t>((num_tiles + parameters.each - 1) / parameters.each);
  plan = {};
  plan.tiles = parameters.tiles;
  plan.problems = finishes ? epilogues->problem : nullptr, plan.epilogues = finishes ? epilogues->epilogue : nullptr;
  plan.num_problems = 2, plan.num_tiles = plan.num_blocks = num_tiles;
  return launch_kernel(reinterpret_cast<const void*>(vbgemm_tile_list), blocks, kWaveSize, 0, &parameters, stream);
}

Error launch_tiles(const RaggedCall& call, Stream stream) {
  const TileShape& tile = kTiles[call.plan.tile];
  const auto num_tiles = static_cast<int32_t>(max_tiles(call, tile.m, tile.n));
  GpuCall tiles{};
  Error error = list_tiles(call, num_tiles, tiles.plan, stream);
  if (error != kSuccess) return error;
  const int64_t columns = call.n;
  const void* buffers[4] = {call.lhs, call.rhs, call.bias, call.out};
  int64_t elements[4] = {call.lhs_rows * call.k, call.contraction ? call.m * columns : call.rhs_groups * call.k * columns,
                         call.groups * columns, results_of(call)};
  if (!call.bias) buffers[2] = buffers[3], elements[2] = elements[3];
  const Launch launch_of_all{static_cast<int32_t>(kernel_of(tile)), 0, num_tiles};
  tiles.kind = call.kind;
  tiles.out_dtype = call.out_dtype;
  tiles.plan_is_computed = true;
  tiles.launches = &launch_of_all, tiles.num_launches = 1;
  tiles.buffers = buffers, tiles.elements = elements;
  tiles.num_operands = call.bias ? 3 : 2, tiles.num_buffers = tiles.num_operands + 1;
  return launch(tiles, stream);
}

bool takes_pipeline(const RaggedCall& call) { return call.plan.shape != RaggedShape::none && runs_ragged_pipeline(call); }
bool takes_tiles(const RaggedCall& call) { return call.plan.tile >= 0 && has_all(kRaggedTiles, call); }

}  // namespace

bool has_ragged_tile(const TileShape& tile, Kind kind) {
  if (!tile.is_gpu() || tile.partition == ThreadPartition::warpgroup_rows) return false;
  return has_code(tile, kind, kCdna) || (!tile.tensor && has_code(tile, plain_kind_of(kind), kCdna));  // as find_kernel chooses
}

bool has_ragged_kernel(const RaggedCall& call) { return takes_pipeline(call) || takes_tiles(call); }

Error launch_ragged(const RaggedCall& call, Stream stream) {
  if (takes_pipeline(call)) return launch_ragged_pipeline(call, stream);
  return takes_tiles(call) ? launch_tiles(call, stream) : kInvalidValue;
}

}  // namespace vbgemm
