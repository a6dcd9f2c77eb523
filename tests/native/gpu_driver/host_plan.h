// Plans made without Python, for the stand-alone driver: boxes of equal tiles, sorted by kernel and divided into thread blocks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catalogue.h"
#include "descriptor.h"
#include "gpu/host/launch.h"
#include "gpu_driver/device.h"

namespace vbgemm::driver {

// A rectangle of tiles of one problem and one row of the catalogue: `batches` x `tiles_y` x `tiles_x` tiles from (batch, row, col) on. The
// K of each tile is divided into `slices` slices, each computed by a thread block.
struct Box {
  int problem, tile_id;
  int batch, row, col, batches, tiles_y, tiles_x;
  int k_begin, k_end;
  int slices = 1;
  bool mirrored = false;

  int slice_begin(int slice) const { return k_begin + static_cast<int>(static_cast<int64_t>(k_end - k_begin) * slice / slices); }
};

struct HostPlan {
  Kind kind = Kind::f32;
  DType out_dtype = DType::f32;
  std::vector<Problem> problems;
  std::vector<Epilogue> epilogues;  // one for each problem, or none
  std::vector<TileRun> runs;
  std::vector<ReadyTile> tiles;      // in place of runs
  std::vector<SplitTile> splits;     // only together with ready tiles
  std::vector<int32_t> block_first;  // empty if every block holds one tile
  std::vector<Launch> launches;
  int num_tiles = 0, num_blocks = 0;
  int64_t num_sums = 0;
};

// A plan in the device's memory.
struct DevicePlan {
  explicit DevicePlan(const HostPlan& plan) : blob(bytes_of(plan)), launches(plan.launches) {
    const char* at = blob.data();
    const auto next = [&at](const auto& items) {
      using Item = std::decay_t<decltype(items[0])>;
      const Item* first = items.empty() ? nullptr : reinterpret_cast<const Item*>(at);
      at += items.size() * sizeof(Item);
      return first;
    };
    descriptors.tiles = next(plan.tiles);
    descriptors.problems = next(plan.problems);
    descriptors.epilogues = next(plan.epilogues);
    descriptors.runs = next(plan.runs);
    descriptors.splits = next(plan.splits);
    descriptors.block_first = next(plan.block_first);
    descriptors.num_problems = static_cast<int32_t>(plan.problems.size());
    descriptors.num_runs = static_cast<int32_t>(plan.runs.size());
    descriptors.num_tiles = plan.num_tiles;
    descriptors.num_splits = static_cast<int32_t>(plan.splits.size());
    descriptors.num_blocks = plan.num_blocks;
  }

  static std::vector<char> bytes_of(const HostPlan& plan) {
    std::vector<char> bytes;
    const auto append = [&bytes](const auto& items) {
      const char* first = reinterpret_cast<const char*>(items.data());
      bytes.insert(bytes.end(), first, first + items.size() * sizeof(items[0]));
    };
    append(plan.tiles);
    append(plan.problems);
    append(plan.epilogues);
    append(plan.runs);
    append(plan.splits);
    append(plan.block_first);
    return bytes;
  }

  DeviceMemory blob;
  std::vector<Launch> launches;
  Descriptors descriptors{};
};

inline int tiles_along(int extent, int tile) { return (extent + tile - 1) / tile; }

// Covers a problem's whole C with tiles of one row of the catalogue.
inline Box whole(const std::vector<Problem>& problems, int problem, int tile_id) {
  const Problem& p = problems[problem];
  return {problem, tile_id, 0, 0, 0, p.batch, tiles_along(p.m, kTiles[tile_id].m), tiles_along(p.n, kTiles[tile_id].n), 0, p.k};
}

// The place of an element of op(X)[batch], in elements of its buffer.
inline int64_t offset_of(const Operand& x, const Problem& p, int batch, int64_t row, int64_t col) {
  return x.offset + batch / p.inner_batch * x.batch_stride[0] + batch % p.inner_batch * x.batch_stride[1] + row * x.row_stride +
         col * x.col_stride;
}

// One K slice of the i-th tile of a box. If there are several slices, its partial sums begin at `sums`.
inline ReadyTile ready_tile(const HostPlan& plan, const Box& box, int i, int slice, int64_t sums) {
  const TileShape& shape = kTiles[box.tile_id];
  const Problem& p = plan.problems[box.problem];
  const int col = box.col + i % box.tiles_x * shape.n, row = box.row + i / box.tiles_x % box.tiles_y * shape.m;
  const int batch = box.batch + i / box.tiles_x / box.tiles_y;
  const auto part = [&](const Operand& x, int64_t from_row, int64_t from_col) {
    return Part{offset_of(x, p, batch, from_row, from_col), static_cast<int32_t>(x.row_stride), static_cast<int32_t>(x.col_stride),
                x.buffer, 0};
  };
  const int rows = std::min(p.m - row, static_cast<int>(shape.m)), cols = std::min(p.n - col, static_cast<int>(shape.n));
  const int begin = box.slice_begin(slice), depth = box.slice_begin(slice + 1) - begin;
  const bool split = box.slices > 1;
  Part c = split ? Part{sums + static_cast<int64_t>(slice) * shape.m * shape.n, shape.n, 1, kStoreToWorkspace, 0} : part(p.c, row, col);
  c.mirrored = box.mirrored && !split;
  return {{box.tile_id, rows, cols, depth, box.problem, batch, row, col}, {part(p.a, row, begin), part(p.b, begin, col), c}, 0};
}

// Adds the i-th tile of a box as its K slices and the reduction of their partial sums.
inline void add_split(HostPlan& plan, Box box, int i) {
  const int slices = std::exchange(box.slices, 1);
  const ReadyTile whole = ready_tile(plan, box, i, 0, 0);
  const TileShape& shape = kTiles[box.tile_id];
  plan.splits.push_back({whole.position, whole.part[2], plan.num_sums, shape.m * shape.n, slices, shape.n, 0});
  plan.num_sums += static_cast<int64_t>(slices) * shape.m * shape.n;
}

// Lays the boxes out as a plan. `block_size()` returns the number of tiles of the next block; without it, every block has one tile.
// `ready`: ready tiles in place of runs; only ready tiles can split K.
inline void lay_out(HostPlan& plan, const std::vector<Box>& boxes, bool ready, const std::function<int()>& block_size = nullptr) {
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    const int first_tile = plan.num_tiles, first_block = plan.num_blocks;
    for (const Box& box : boxes) {
      const TileShape& shape = kTiles[box.tile_id];
      const int count = box.batches * box.tiles_y * box.tiles_x;
      if (static_cast<int>(kernel_of(shape)) != kernel || count == 0) continue;
      if (ready) {
        for (int i = 0; i < count; ++i) {
          for (int slice = 0; slice < box.slices; ++slice) plan.tiles.push_back(ready_tile(plan, box, i, slice, plan.num_sums));
          if (box.slices > 1) add_split(plan, box, i);
        }
      } else {
        plan.runs.push_back({box.problem, box.tile_id, box.row, box.col, box.batch, box.k_begin, box.k_end, plan.num_tiles, box.tiles_y,
                             box.tiles_x, box.mirrored, 0});
      }
      plan.num_tiles += count * box.slices;
    }
    for (int tile = first_tile; block_size && tile < plan.num_tiles; tile += block_size()) {
      plan.block_first.push_back(tile);
      ++plan.num_blocks;
    }
    if (!block_size) plan.num_blocks += plan.num_tiles - first_tile;
    if (plan.num_blocks > first_block) plan.launches.push_back({kernel, first_block, plan.num_blocks - first_block});
  }
  if (block_size) plan.block_first.push_back(plan.num_tiles);
}

// Returns the catalogue's row with this name and thread count, or -1.
inline int find_tile(const std::string& name, int threads, Kind kind) {
  for (int i = 0; i < kNumTiles; ++i) {
    if (kTiles[i].is_gpu() && kTiles[i].name == name && kTiles[i].threads == threads && kTiles[i].built_for(kind)) return i;
  }
  return -1;
}

// One set of buffers for a plan: first the operands, then the results.
struct Buffers {
  std::vector<const void*> data;
  std::vector<int64_t> elements;
  int num_operands = 0;

  void add(const void* first, int64_t count) {
    data.push_back(first);
    elements.push_back(count);
  }
};

inline size_t workspace_of(const HostPlan& plan, int num_buffers) {
  const bool pipelined = has_pipelined_tiles(plan.launches.data(), static_cast<int>(plan.launches.size()));
  return workspace_bytes(plan.kind, num_buffers, plan.num_sums, pipelined);
}

inline GpuCall call_of(const HostPlan& plan, const DevicePlan& device, const Buffers& buffers, const DeviceMemory& workspace) {
  GpuCall call{};
  call.kind = plan.kind;
  call.out_dtype = plan.out_dtype;
  call.plan = device.descriptors;
  call.launches = device.launches.data();
  call.num_launches = static_cast<int>(device.launches.size());
  call.buffers = buffers.data.data();
  call.elements = buffers.elements.data();
  call.num_buffers = static_cast<int>(buffers.data.size());
  call.num_operands = buffers.num_operands;
  call.num_sums = plan.num_sums;
  call.workspace = workspace.bytes() ? workspace.data() : nullptr;
  return call;
}

}  // namespace vbgemm::driver
