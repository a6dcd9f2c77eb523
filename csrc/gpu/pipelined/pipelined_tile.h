// The kernel of large 16-bit products on sm_90a: the roles of its warps. Its tiles are those of any plan: of problems of any size, layout
// and alignment, with any epilogue, whole or as K slices. TMA copies operands whose rows are aligned; threads copy others, which is slow.
//
// Two thread blocks form a cluster and compute two blocks of the plan side by side, step by step of K. If their tiles are above each other,
// as neighbours in the plan usually are, they need the same columns of B, and each copies one half of these to both by multicast.
#pragma once
#include "gpu/pipelined/pipelined_store.h"
#include "gpu/pipelined/tile_maps.h"
#include "gpu/tile/tile_kernel.h"

namespace vbgemm {

template <Kind kKindOfProducts>
struct PipelinedCut : PipelineCut<kKindOfProducts, 256> {
  static constexpr int kTiles = 3;  // tiles found ahead, and those whose results are still being stored
  // A consumer that has passed on a tile may still have stores of it under way, by the tile's map, but none of the tile before.
  static_assert(kTilesWithMaps > kTiles);
  static constexpr int kCluster = 2;
};

// A tile as the finder passes it on.
template <class T>
struct PipelinedTile {
  TilePlace<T> place;
  TileMaps* maps;      // in the workspace
  int steps;           // the cluster's stages for this tile: as many as the longer one of its two tiles needs
  bool tensor_copies;  // TMA copies the operands, otherwise threads do
  bool tensor_stores;  // TMA stores C
  bool shares;         // both tiles of the cluster need the same columns of B
  bool ends;           // there is no further tile
};

// What the finders of a cluster tell each other of their tiles. `columns` is null where TMA does not copy them.
struct TileColumns {
  const void* columns;
  int32_t row_stride, col_stride, cols, depth;
};

template <class Cut>
struct PipelinedShared : PipelineBuffers<Cut>, StageBarriers<Cut> {
  PipelinedTile<typename Cut::T> tile[Cut::kTiles];
  alignas(128) CUtensorMap map[3];        // that the finder changes for each tile before it publishes them
  TileColumns mine, beside[Cut::kTiles];  // of this thread block, and of the other one of the cluster
  SharedBarrier tile_full[Cut::kTiles], tile_empty[Cut::kTiles], beside_full[Cut::kTiles];
};

template <class Cut>
class PipelinedBlock {
  using T = typename Cut::T;
  using Tile = PipelinedTile<T>;
  static constexpr int kCopyingThreads = 64;  // that copy what TMA cannot

 public:
  __device__ PipelinedBlock(const PipelinedParameters& parameters, PipelinedShared<Cut>& shared)
      : parameters_(parameters.call), maps_(parameters), shared_(shared), rank_(cluster_rank()) {}

  __device__ void init_barriers() const {
    for (int i = 0; i < Cut::kStages; ++i) {
      init_barrier(shared_.full[i], 1);
      init_barrier(shared_.empty[i], Cut::kCluster * Cut::kMultiplyingWarps);
    }
    for (int i = 0; i < Cut::kTiles; ++i) {
      init_barrier(shared_.tile_full[i], 1);
      init_barrier(shared_.tile_empty[i], 1 + kCopyingThreads / 32 + Cut::kMultiplyingWarps);
      init_barrier(shared_.beside_full[i], 1);
    }
    fence_barrier_init();
  }

  // The tile finder: the first warp of the thread block. The grid's thread blocks take those of the plan in turn. The first tile is found
  // before the previous kernel has ended.
  __device__ void find_tiles() const {
    copy_words(shared_.map[kA], maps_.factor);
    copy_words(shared_.map[kB], maps_.factor);
    copy_words(shared_.map[kC], maps_.result);
    RingPlace<Cut::kTiles> place;
    RingPlace<kTilesWithMaps> maps;
    for (int first = block_index() / Cut::kCluster * Cut::kCluster; first < parameters_.launch_blocks; first += grid_blocks()) {
      Walk mine = walk_of(first + rank_), other = walk_of(first + (rank_ ^ 1));
      for (; mine.tile < mine.end || other.tile < other.end; ++mine.tile, ++other.tile, place.advance(), maps.advance()) {
        wait_phase(shared_.tile_empty[place.index], place.parity ^ 1);
        find(mine, place, maps.index);
        pass_on(place);
      }
    }
    wait_phase(shared_.tile_empty[place.index], place.parity ^ 1);
    if (thread_index() == 0) shared_.tile[place.index].ends = true;
    pass_on(place);
  }

  // The producer of operands that TMA copies. One warp runs it, of which one lane issues the copies.
  __device__ void copy_by_tma(int lane) const {
    await_previous_kernel();
    each_tile([&](const Tile& tile, RingPlace<Cut::kTiles> place, RingPlace<Cut::kStages>& stages) {
      wave_barrier();  // all lanes have seen the tile
      if (lane == 0) {
        copy_tile(tile, stages);
        arrive(shared_.tile_empty[place.index]);
      }
      wave_barrier();  // a named barrier is for whole warps
      meet_producers();
    });
  }

  // The producers of other operands: two warps, `thread` of which counts from 0. They store lines along K, in the layout of TMA's boxes.
  __device__ void copy_by_threads(int thread) const {
    await_previous_kernel();
    each_tile([&](const Tile& tile, RingPlace<Cut::kTiles> place, RingPlace<Cut::kStages>& stages) {
      const int depth = tile.place.depth;
      for (int step = 0; step < tile.steps; ++step, stages.advance()) {
        if (tile.tensor_copies) continue;
        const int k = step * Cut::kDepth;
        wait_phase(shared_.empty[stages.index], stages.parity ^ 1);
        unsigned char* const stage = shared_.stage[stages.index];
        const MatrixView &a = tile.place.matrix[kA], &b = tile.place.matrix[kB];
        if (k < depth) copy_lines(stage, a.first, a.row_stride, a.col_stride, tile.place.rows, k, depth, thread);
        if (k < depth)
          copy_lines(stage + Cut::kBoxesA * Cut::kBoxBytes, b.first, b.col_stride, b.row_stride, tile.place.cols, k, depth, thread);
        fence_async_proxy();
        named_barrier(1, kCopyingThreads);
        if (thread == 0) arrive(shared_.full[stages.index]);
      }
      wave_barrier();
      if (thread % 32 == 0) arrive(shared_.tile_empty[place.index]);
      meet_producers();
    });
  }

  // The consumers. Eight warps run this, and `warp` counts from 0.
  __device__ void multiply_tiles(int warp, int lane) {
    const int half = warp / 4;
    await_previous_kernel();
    each_tile([&](const Tile& tile, RingPlace<Cut::kTiles> place, RingPlace<Cut::kStages>& stages) {
      const bool computes = tile.place.rows > half * 64;  // otherwise only the other half does
      const int depth = computes ? tile.place.depth : 0, passed = (depth + Cut::kDepth - 1) / Cut::kDepth;
      const auto release = [&](int stage) __attribute__((always_inline)) {
        // In this order: once the other thread block has all our arrivals it may go on, and arrive here for the next use of the stage.
        if (lane == 0) {
          arrive(shared_.empty[stage]);
          arrive_at(shared_.empty[stage], rank_ ^ 1);
        }
      };
      if (computes) {
        float sums[Cut::kBlocks][4];
        if (depth == 0) {
          for (auto& block : sums) block[0] = block[1] = block[2] = block[3] = 0;
        } else {
          const bool across_a = tile.tensor_copies && is_across(tile.place.matrix[kA]);
          const bool across_b = tile.tensor_copies && !is_across(tile.place.matrix[kB]);
          const auto clear = [](int, int) {};
          const auto overlapped = [] {};
          if (across_a && across_b) {
            multiply_stages<Cut, true, true, true>(shared_, depth, half, stages, sums, clear, overlapped, release);
          } else if (across_a) {
            multiply_stages<Cut, true, false, true>(shared_, depth, half, stages, sums, clear, overlapped, release);
          } else if (across_b) {
            multiply_stages<Cut, false, true, true>(shared_, depth, half, stages, sums, clear, overlapped, release);
          } else {
            multiply_stages<Cut, false, false, true>(shared_, depth, half, stages, sums, clear, overlapped, release);
          }
        }
        unsigned char* const staging = shared_.staging[warp];
        if (tile.tensor_stores) {
          store_by_tma<Cut>(tile.maps->c, tile.place, warp, sums, staging, lane);
        } else {
          store_by_threads<Cut>(tile.place, warp, sums, staging, lane);
        }
      } else {
        wait_stores_read();  // of the tile before, as those who store do
      }
      for (int step = passed; step < tile.steps; ++step, stages.advance()) {
        wait_phase(shared_.full[stages.index], stages.parity);
        wave_barrier();  // all lanes have seen the end of the phase: once the stage is released, it may be followed by that of the next
        release(stages.index);
      }
      wave_barrier();
      if (lane == 0) arrive(shared_.tile_empty[place.index]);
    });
    wait_stores();
  }

 private:
  // Whether a matrix is contiguous down its columns. One that is contiguous in both directions counts as one of rows.
  static __device__ bool is_across(const MatrixView& x) { return x.col_stride != 1; }

  // Copies a tile's operands by TMA, if that can copy them.
  __device__ void copy_tile(const Tile& tile, RingPlace<Cut::kStages>& stages) const {
    const TilePlace<T>& place = tile.place;
    const int depth = place.depth, boxes_a = boxes(place.rows, Cut::kBoxesA), boxes_b = boxes(place.cols, Cut::kBoxesB);
    TileMaps* const maps = tile.maps;
    const int steps = tile.steps;
    const bool copies = tile.tensor_copies, shares = tile.shares;
    const bool across_a = is_across(place.matrix[kA]), across_b = !is_across(place.matrix[kB]);
    for (int step = 0; step < steps; ++step, stages.advance()) {
      if (!copies) continue;
      const int k = step * Cut::kDepth;
      wait_phase(shared_.empty[stages.index], stages.parity ^ 1);
      SharedBarrier& full = shared_.full[stages.index];
      if (k >= depth) {
        arrive(full);
        continue;
      }
      unsigned char* const stage = shared_.stage[stages.index];
      arrive_expecting(full, (boxes_a + boxes_b) * Cut::kBoxBytes);
      for (int box = 0; box < boxes_a; ++box) {
        const int along = box * Cut::kBox;
        copy_box(stage + box * Cut::kBoxBytes, maps->a, across_a ? along : k, across_a ? k : along, 0, full);
      }
      for (int box = 0; box < boxes_b; ++box) {
        const int along = box * Cut::kBox, x = across_b ? along : k, y = across_b ? k : along;
        unsigned char* const to = stage + (Cut::kBoxesA + box) * Cut::kBoxBytes;
        if (!shares) copy_box(to, maps->b, x, y, 0, full);
        if (shares && box % 2 == rank_) copy_box_to(3, to, maps->b, x, y, 0, full);
      }
    }
  }

  // Both kinds of producers pass every tile together. Otherwise the one that has nothing to copy for a tile would run ahead by more than
  // one use of a stage, and take the end of an earlier use for that of a later one: a barrier only tells the parity of its phase.
  __device__ void meet_producers() const { named_barrier(2, 32 + kCopyingThreads); }

  static __device__ int boxes(int lines, int most) { return min(max(lines + Cut::kBox - 1, 0) / Cut::kBox, most); }

  __device__ void pass_on(const RingPlace<Cut::kTiles>& place) const {
    wave_barrier();
    if (thread_index() == 0) arrive(shared_.tile_full[place.index]);
  }

  // Calls `take` for each tile that the finder passes on; it has to advance the stages by the tile's steps of K.
  template <class Take>
  __device__ void each_tile(const Take& take) const {
    RingPlace<Cut::kTiles> tiles;
    RingPlace<Cut::kStages> stages;
    for (;; tiles.advance()) {
      wait_phase(shared_.tile_full[tiles.index], tiles.parity);
      const Tile& tile = shared_.tile[tiles.index];
      if (tile.ends) return;
      take(tile, tiles, stages);
    }
  }

  static constexpr int kRow = held_by(Cut::kKind, Kernel::m384_pipelined).row[0];  // of the catalogue
  static_assert(kTiles[kRow].m == Cut::kRows && kTiles[kRow].n == Cut::kCols && kTiles[kRow].threads == Cut::kThreads);
  static_assert(k_step(kTiles[kRow], sizeof(T), kCdna) == Cut::kDepth);
  static __device__ TileExtent extent_of(int tile_id) {
    if (tile_id == kRow) return {Cut::kRows, Cut::kCols, 0, false};
    return {0, 0, 0, false};
  }

  __device__ Walk walk_of(int block) const {
    const Walk walk = block < parameters_.launch_blocks ? tiles_of_block(parameters_, block) : Walk{0, 0};
    return walk.tile < walk.end ? walk : Walk{0, 0};  // so that counting on from a first tile that lies does not overflow
  }

  // The finder's lanes copy a map from the launch parameters.
  static __device__ void copy_words(CUtensorMap& to, const CUtensorMap& from) {
    static_assert(sizeof from == 4 * 32);
    reinterpret_cast<uint32_t*>(&to)[thread_index()] = reinterpret_cast<const uint32_t*>(&from)[thread_index()];
  }

  // Finds a tile, makes its maps, and learns of the other thread block's tile. Whatever the descriptors hold, a tile that is not entirely
  // inside the call's buffers has no rows: the thread block then only takes part in the cluster's steps.
  __device__ void find(const Walk& walk, const RingPlace<Cut::kTiles>& at, int maps_index) const {
    const int lane = thread_index();
    Tile& tile = shared_.tile[at.index];
    TilePlace<T>& place = tile.place;
    if (lane == 0) place.code = kNoCode;
    if (walk.tile < walk.end) find_tile<false>(parameters_, walk.tile, extent_of, place);
    wave_barrier();

    const bool there = place.code != kNoCode;
    LinesOfMatrix lines{};
    if (there && lane <= kC) {
      const int bytes = lane < kC ? static_cast<int>(sizeof(T)) : result_bytes<T>(place.result_type());
      lines = lines_of(place.matrix[lane], lane == kB ? place.depth : place.rows, lane == kA ? place.depth : place.cols, bytes);
    }
    const bool copies = value_of_lane(lines.data != nullptr, kA) && value_of_lane(lines.data != nullptr, kB);
    // TMA stores rows of the type of the call's results, and only whole vectors of 16 bytes: behind the last column of other rows, it would
    // overwrite up to 14 bytes, which belong to another result or to no result.
    const bool fits = there && !place.fused && !is_across(place.matrix[kC]) && place.result_type() == parameters_.result;
    const bool stores = value_of_lane(lines.data != nullptr && lines.whole_vectors, kC) && fits;
    if (lane == 0) {
      const MatrixView& b = place.matrix[kB];
      shared_.mine = {};
      if (there) shared_.mine.depth = place.depth;
      if (copies) {
        shared_.mine = {b.first, static_cast<int32_t>(b.row_stride), static_cast<int32_t>(b.col_stride), place.cols, place.depth};
      }
      arrive_expecting(shared_.beside_full[at.index], sizeof(TileColumns));
    }
    wave_barrier();
    constexpr int kWords = sizeof(TileColumns) / sizeof(uint32_t);
    uint32_t *const mine = reinterpret_cast<uint32_t*>(&shared_.mine), *const beside =
                                                                           reinterpret_cast<uint32_t*>(&shared_.beside[at.index]);
    if (lane < kWords) send(beside + lane, rank_ ^ 1, mine[lane], shared_.beside_full[at.index]);

    if (lines.data) replace_tensor(shared_.map[lane], lines.data, lines.items, lines.lines, lines.line_bytes);
    wave_barrier();
    TileMaps& maps = static_cast<TileMaps*>(const_cast<void*>(parameters_.maps))[block_index() * kTilesWithMaps + maps_index];
    await_previous_kernel();  // which may have the workspace
    publish_maps<kC + 1>(&maps.a, shared_.map);

    wait_phase(shared_.beside_full[at.index], at.parity);
    const bool same = count_lanes(lane < kWords && beside[lane] != mine[lane]) == 0;
    if (lane > 0) return;
    if (!there) place.rows = place.cols = place.depth = 0;
    const int depth = max(place.depth, shared_.beside[at.index].depth);
    tile.maps = &maps;
    tile.steps = (depth + Cut::kDepth - 1) / Cut::kDepth;
    tile.tensor_copies = copies;
    tile.tensor_stores = stores;
    tile.shares = copies && same;
    tile.ends = false;
  }

  // Copies kDepth steps of K of up to four boxes of lines; each thread has one step of all lines.
  __device__ void copy_lines(unsigned char* to, const void* from, int64_t line_stride, int64_t step_stride, int lines, int k, int depth,
                             int thread) const {
    constexpr int kTogether = 8;
    static_assert(kCopyingThreads == Cut::kDepth && sizeof(T) == 2);
    const uint16_t* const first = static_cast<const uint16_t*>(from) + (k + thread) * step_stride;
    const bool exists = k + thread < depth;
    for (int begin = 0; begin < lines; begin += kTogether) {
      uint16_t x[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) x[i] = exists && begin + i < lines ? load_awaited(first + (begin + i) * line_stride) : 0;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int line = begin + i;
        *reinterpret_cast<uint16_t*>(to + line * 128 + ((thread / 8 ^ (line & 7)) * 16) + thread % 8 * 2) = x[i];
      }
    }
  }

  const KernelParameters& parameters_;
  const PipelinedParameters& maps_;
  PipelinedShared<Cut>& shared_;
  int rank_;
};

template <class Cut>
__device__ inline void run_pipelined(const PipelinedParameters& parameters, Unaligned<PipelinedShared<Cut>>& dynamic) {
  auto& shared = aligned_in(dynamic);
  PipelinedBlock<Cut> block(parameters, shared);
  const int warp = value_of_lane(thread_index() / 32, 0), lane = thread_index() % 32;
  if (parameters.call.next_may_start) let_next_kernel_start();
  prefetch_descriptors<Cut::kThreads>(parameters.call.plan);
  if (thread_index() == 0) block.init_barriers();
  cluster_barrier();
  if (warp < 4) {
    shrink_registers<40>();
    if (warp == 0) {
      block.find_tiles();
    } else if (warp == 1) {
      block.copy_by_tma(lane);
    } else {
      block.copy_by_threads(thread_index() - 64);
    }
  } else {
    grow_registers<232>();
    block.multiply_tiles(warp - 4, lane);
  }
  // A thread block must not end while the other one of its cluster still copies to it or arrives at its barriers.
  wave_barrier();
  cluster_barrier();
}

#define VBGEMM_DEFINE_PIPELINED_KERNEL(name, kind)                                               \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(384, 1)                                        \
      vbgemm_m384_pipelined_##name(VBGEMM_PARAMETERS(vbgemm::PipelinedParameters, parameters)) { \
    if constexpr (vbgemm::kWarpgroupProducts) {                                                  \
      using Cut = vbgemm::PipelinedCut<vbgemm::Kind::kind>;                                      \
      VBGEMM_DYNAMIC_SHARED(vbgemm::Unaligned<vbgemm::PipelinedShared<Cut>>, dynamic);           \
      vbgemm::run_pipelined<Cut>(parameters, dynamic);                                           \
    } else {                                                                                     \
      vbgemm::trap();                                                                            \
    }                                                                                            \
  }

}  // namespace vbgemm
