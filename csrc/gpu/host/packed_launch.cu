// The launches of packed rows times weights of different shapes: a list of tiles, and a kernel of the catalogue that computes them.
#include <vector>

#include "gpu/host/launch.h"
#include "gpu/host/packed_launch.h"
#include "gpu/ragged/packed_list.h"

extern "C" __global__ void vbgemm_packed_list(VBGEMM_PARAMETERS(vbgemm::PackedListParameters, parameters));

namespace vbgemm {
namespace {

const void* entry_of(const RaggedOperand& operand, int64_t entry, int element_bytes) {
  return static_cast<const char*>(operand.data) + entry * operand.batch_stride[0] * element_bytes;
}

Error list_tiles(const PackedCall& call, int64_t entry, int32_t num_tiles, Stream stream) {
  const TileShape& tile = kTiles[call.tile];
  PackedListParameters parameters{};
  parameters.group_sizes = entry_of(call.group_sizes, entry, call.wide_sizes ? 8 : 4);
  parameters.shapes = call.device_shapes;
  parameters.rows = call.rows, parameters.x_size = call.x_size, parameters.y_size = call.y_size;
  parameters.groups = static_cast<int32_t>(call.groups);
  parameters.wide_sizes = call.wide_sizes, parameters.contraction = call.contraction, parameters.transpose_rhs = call.transpose_rhs;
  parameters.tile = {tile.m, tile.n}, parameters.tile_id = call.tile;
  parameters.tiles = static_cast<ReadyTile*>(call.workspace), parameters.num_tiles = num_tiles;
  const auto blocks = static_cast<uint32_t>((num_tiles + kWaveSize - 1) / kWaveSize);
  return launch_kernel(reinterpret_cast<const void*>(vbgemm_packed_list), blocks, kWaveSize, 0, &parameters, stream);
}

Error launch_entry(const PackedCall& call, int64_t entry, Stream stream) {
  const TileShape& tile = kTiles[call.tile];
  const auto num_tiles = static_cast<int32_t>(max_packed_tiles(call, tile));
  if (num_tiles == 0) return kSuccess;
  Error error = list_tiles(call, entry, num_tiles, stream);
  if (error != kSuccess) return error;
  const int in = bytes_of(call.dtype), out = bytes_of(call.out_dtype);
  std::vector<const void*> buffers{entry_of(call.x, entry, in)};
  std::vector<int64_t> elements{call.x_size};
  const auto add = [&](const void* data, int64_t count) { buffers.push_back(data), elements.push_back(count); };
  if (call.contraction) add(entry_of(call.y, entry, in), call.y_size);
  for (int64_t i = 0; i < call.groups; ++i) {
    add(entry_of(call.weights[i], entry, call.contraction ? out : in), call.shapes[2 * i] * call.shapes[2 * i + 1]);
  }
  if (!call.contraction) add(entry_of(call.y, entry, out), call.y_size);
  const Launch launch_of_all{static_cast<int32_t>(kernel_of(tile)), 0, num_tiles};
  GpuCall tiles{};
  tiles.kind = call.kind, tiles.out_dtype = call.out_dtype;
  tiles.plan.tiles = static_cast<const ReadyTile*>(call.workspace);
  tiles.plan.num_problems = 1, tiles.plan.num_tiles = tiles.plan.num_blocks = num_tiles;
  tiles.plan_is_computed = true;
  tiles.launches = &launch_of_all, tiles.num_launches = 1;
  tiles.buffers = buffers.data(), tiles.elements = elements.data();
  tiles.num_buffers = static_cast<int>(call.num_buffers()), tiles.num_operands = call.contraction ? 2 : tiles.num_buffers - 1;
  tiles.workspace = static_cast<char*>(call.workspace) + packed_list_bytes(call);
  return launch(tiles, stream);
}

}  // namespace

Error launch_packed(const PackedCall& call, Stream stream) {
  Error error = kSuccess;
  for (int64_t entry = 0; entry < call.entries && error == kSuccess; ++entry) error = launch_entry(call, entry, stream);
  return error;
}

}  // namespace vbgemm
