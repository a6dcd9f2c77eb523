// The kernel of large 16-bit products on sm_90a: the roles of its warps. Its tiles are those of any plan: of problems of any size, layout
// and alignment, with any epilogue, whole or as K slices. TMA copies operands whose rows are aligned; threads copy others, which is slow.
//
// Two thread blocks form a cluster and compute two blocks of the plan side by side, step by step of K. If their tiles are above each other,
// as neighbours in the plan usually are, they need the same columns of B, and each copies one half of these to both by multicast.
#pragma once
#include "gpu/pipelined/pipelined_store.h"
#include "gpu/pipelined/problem_maps.h"
#include "gpu/tile/tile_kernel.h"

namespace vbgemm {

template <Kind kKindOfProducts>
struct PipelinedCut : PipelineCut<kKindOfProducts, 256> {
  static constexpr int kTiles = 3;  // tiles found ahead, and those whose results are still being stored
  static constexpr int kCluster = 2;
};

// A tile as the finder passes it on.
template <class T>
struct PipelinedTile {
  TilePlace<T> place;
  const ProblemMaps* maps;  // of its problem; null where threads copy the operands
  int row, col, first;      // its origin in the problem: row and column of C, and step of K
  int steps;                // the cluster's stages for this tile: as many as the longer one of its two tiles needs
  bool shares;              // both tiles of the cluster need the same columns of B
  bool tensor_stores;       // TMA may store C
  bool ends;                // there is no further tile
};

template <class Cut>
struct PipelinedShared : PipelineShared<Cut> {
  PipelinedTile<typename Cut::T> tile[Cut::kTiles];
  SharedBarrier tile_full[Cut::kTiles], tile_empty[Cut::kTiles];
};

template <class Cut>
class PipelinedBlock {
  using T = typename Cut::T;
  using Tile = PipelinedTile<T>;
  static constexpr int kCopyingThreads = 64;  // that copy what TMA cannot

 public:
  __device__ PipelinedBlock(const KernelParameters& parameters, PipelinedShared<Cut>& shared)
      : parameters_(parameters), shared_(shared), rank_(cluster_rank()) {}

  __device__ void init_barriers() const {
    for (int i = 0; i < Cut::kStages; ++i) {
      init_barrier(shared_.full[i], 1);
      init_barrier(shared_.empty[i], Cut::kCluster * Cut::kMultiplyingWarps);
    }
    for (int i = 0; i < Cut::kTiles; ++i) {
      init_barrier(shared_.tile_full[i], 1);
      init_barrier(shared_.tile_empty[i], 1 + kCopyingThreads / 32 + Cut::kMultiplyingWarps);
    }
    fence_barrier_init();
  }

  // The tile finder: the first warp of the thread block. The grid's thread blocks take those of the plan in turn.
  __device__ void find_tiles() const {
    RingPlace<Cut::kTiles> place;
    for (int first = block_index() / Cut::kCluster * Cut::kCluster; first < parameters_.launch_blocks; first += grid_blocks()) {
      Walk mine = walk_of(first + rank_), other = walk_of(first + (rank_ ^ 1));
      for (; mine.tile < mine.end || other.tile < other.end; ++mine.tile, ++other.tile, place.advance()) {
        wait_phase(shared_.tile_empty[place.index], place.parity ^ 1);
        find(mine, other, shared_.tile[place.index]);
        pass_on(place);
      }
    }
    wait_phase(shared_.tile_empty[place.index], place.parity ^ 1);
    if (thread_index() == 0) shared_.tile[place.index].ends = true;
    pass_on(place);
  }

  // The producer of operands that TMA copies. One warp runs it, of which one lane issues the copies.
  __device__ void copy_by_tma(int lane) const {
    const ProblemMaps* latest = nullptr;
    each_tile([&](const Tile& tile, RingPlace<Cut::kTiles> place, RingPlace<Cut::kStages>& stages) {
      wave_barrier();  // all lanes have seen the tile
      if (lane == 0) {
        copy_tile(tile, latest, stages);
        arrive(shared_.tile_empty[place.index]);
      }
      wave_barrier();  // a named barrier is for whole warps
      meet_producers();
    });
  }

  // The producers of other operands: two warps, `thread` of which counts from 0. They store lines along K, in the layout of TMA's boxes.
  __device__ void copy_by_threads(int thread) const {
    each_tile([&](const Tile& tile, RingPlace<Cut::kTiles> place, RingPlace<Cut::kStages>& stages) {
      const int depth = tile.place.depth;
      for (int step = 0; step < tile.steps; ++step, stages.advance()) {
        if (tile.maps) continue;
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
    const ProblemMaps* latest = nullptr;
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
          const bool across_a = tile.maps && tile.maps->across_a, across_b = tile.maps && tile.maps->across_b;
          const auto clear = [](int, int) {};
          if (across_a && across_b) {
            multiply_stages<Cut, true, true>(shared_, depth, half, stages, sums, clear, release);
          } else if (across_a) {
            multiply_stages<Cut, true, false>(shared_, depth, half, stages, sums, clear, release);
          } else if (across_b) {
            multiply_stages<Cut, false, true>(shared_, depth, half, stages, sums, clear, release);
          } else {
            multiply_stages<Cut, false, false>(shared_, depth, half, stages, sums, clear, release);
          }
        }
        unsigned char* const staging = shared_.staging[warp];
        if (tile.tensor_stores) {
          if (tile.maps != latest && lane == 0) acquire_map(tile.maps->c);
          latest = tile.maps;
          store_by_tma<Cut>(tile.maps->c, tile.place, tile.row, tile.col, warp, sums, staging, lane);
        } else {
          store_by_threads<Cut>(tile.place, warp, sums, staging, lane);
        }
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
  // Copies a tile's operands by TMA, if that can copy them.
  __device__ void copy_tile(const Tile& tile, const ProblemMaps*& latest, RingPlace<Cut::kStages>& stages) const {
    const TilePlace<T>& to = tile.place;
    const int depth = to.depth, boxes_a = boxes(to.rows, Cut::kBoxesA), boxes_b = boxes(to.cols, Cut::kBoxesB), row = tile.row,
              col = tile.col;
    const ProblemMaps* const maps = tile.maps;
    const int first = tile.first, steps = tile.steps;
    const bool shares = tile.shares;
    if (maps && maps != latest) {
      acquire_map(maps->a);
      acquire_map(maps->b);
      latest = maps;
    }
    const bool across_a = maps && maps->across_a, across_b = maps && maps->across_b;
    for (int step = 0; step < steps; ++step, stages.advance()) {
      if (!maps) continue;
      const int k = step * Cut::kDepth;
      wait_phase(shared_.empty[stages.index], stages.parity ^ 1);
      SharedBarrier& full = shared_.full[stages.index];
      if (k >= depth) {
        arrive(full);
        continue;
      }
      unsigned char* const stage = shared_.stage[stages.index];
      arrive_expecting(full, (boxes_a + boxes_b) * Cut::kBoxBytes);
      const int deep = first + k;
      for (int box = 0; box < boxes_a; ++box) {
        const int along = row + box * Cut::kBox;
        copy_box(stage + box * Cut::kBoxBytes, maps->a, across_a ? along : deep, across_a ? deep : along, 0, full);
      }
      for (int box = 0; box < boxes_b; ++box) {
        const int along = col + box * Cut::kBox;
        unsigned char* const to = stage + (Cut::kBoxesA + box) * Cut::kBoxBytes;
        const int x = across_b ? along : deep, y = across_b ? deep : along;
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

  // A box has to begin at a multiple of 16 bytes of its lines: TMA traps otherwise.
  static __device__ bool starts_vector(int64_t element) { return element % (16 / int{sizeof(T)}) == 0; }

  // Where a tile is in its problem, and how TMA copies its operands.
  struct Found {
    TilePosition at;
    Part part;  // this lane's, as place_tile needs it
    bool there;
    const ProblemMaps* maps;
    int first;
  };
  __device__ Found find(const Walk& walk) const {
    const Descriptors& plan = parameters_.plan;
    const int lane = thread_index();
    Found found{};
    found.there = walk.tile < walk.end;
    if (!found.there) return found;
    if (plan.tiles) {
      const ReadyTile* const ready = plan.tiles + walk.tile;
      found.at = load_record(&ready->position);
      found.part = load_record(&ready->part[lane < kC ? lane : kC]);
    } else {
      found.there = find_in_run(plan, walk.tile, lane, extent_of, found.at, found.part);
      if (!found.there) return found;
    }
    const TilePosition& at = found.at;
    // The other thread block takes part in all steps of the tile, so that a depth that lies would keep both here for long.
    found.there =
        at.problem >= 0 && at.problem < plan.num_problems && at.depth >= 0 && at.depth <= load_early(&plan.problems[at.problem].k);
    if (!found.there || !parameters_.maps) return found;
    const ProblemMaps* const maps = static_cast<const ProblemMaps*>(parameters_.maps) + at.problem;
    if (!maps->has_factors) return found;
    // The first step of K follows from where the tile's part of A begins. Beyond a slice's last step TMA copies the next slice's steps, and
    // not zeros as beyond K, so that a slice has to end with a whole stage.
    const int64_t offset = value_of_lane(found.part.offset, kA);
    const int64_t first = (offset - maps->offset_a - int64_t{at.row} * maps->row_stride_a) / maps->col_stride_a;
    if (first + at.depth < maps->depth && at.depth % Cut::kDepth != 0) return found;
    if (!starts_vector(maps->across_a ? at.row : first) || !starts_vector(maps->across_b ? at.col : first)) return found;
    found.maps = maps;
    found.first = static_cast<int>(first);
    return found;
  }

  // Fills in this thread block's tile, of which the other one's is beside. Whatever the descriptors hold, a tile that is not entirely
  // inside the call's buffers has no rows: the thread block then only takes part in the cluster's steps.
  __device__ void find(const Walk& mine, const Walk& beside, Tile& tile) const {
    const int lane = thread_index();
    const Found found = find(mine), other = find(beside);
    if (lane == 0) {
      tile.place.code = kNoCode;
      tile.tensor_stores = tile.ends = false;
    }
    wave_barrier();
    const bool is_slice = count_lanes(found.there && lane == kC && found.part.buffer == kAmongSums) > 0;
    if (found.there) place_tile<false, kA>(parameters_, found.at, found.part, extent_of(found.at.tile_id), is_slice, tile.place);
    wave_barrier();
    if (lane > 0) return;
    const auto steps_of = [](const Found& x) { return x.there ? (x.at.depth + Cut::kDepth - 1) / Cut::kDepth : 0; };
    tile.steps = max(steps_of(found), steps_of(other));
    tile.shares = found.maps && found.maps == other.maps && found.at.col == other.at.col && found.at.cols == other.at.cols &&
                  found.first == other.first && found.at.depth == other.at.depth;
    tile.maps = found.maps;
    tile.first = found.first;
    tile.row = found.at.row;
    tile.col = found.at.col;
    if (tile.place.code == kNoCode) {
      tile.place.rows = 0;
      tile.place.cols = tile.shares ? found.at.cols : 0;
      tile.place.depth = tile.shares ? found.at.depth : 0;
      return;
    }
    tile.tensor_stores = tile.maps && tile.maps->has_c && !is_slice && !tile.place.fused && starts_vector(tile.col);
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
  PipelinedShared<Cut>& shared_;
  int rank_;
};

template <class Cut>
__device__ inline void run_pipelined(const KernelParameters& parameters, Unaligned<PipelinedShared<Cut>>& dynamic) {
  auto& shared = aligned_in(dynamic);
  PipelinedBlock<Cut> block(parameters, shared);
  const int warp = value_of_lane(thread_index() / 32, 0), lane = thread_index() % 32;
  if (thread_index() == 0) block.init_barriers();
  cluster_barrier();
  await_previous_kernel();
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

#define VBGEMM_DEFINE_PIPELINED_KERNEL(name, kind)                                            \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(384, 1)                                     \
      vbgemm_m384_pipelined_##name(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) { \
    if constexpr (vbgemm::kWarpgroupProducts) {                                               \
      using Cut = vbgemm::PipelinedCut<vbgemm::Kind::kind>;                                   \
      VBGEMM_DYNAMIC_SHARED(vbgemm::Unaligned<vbgemm::PipelinedShared<Cut>>, dynamic);        \
      vbgemm::run_pipelined<Cut>(parameters, dynamic);                                        \
    } else {                                                                                  \
      vbgemm::trap();                                                                         \
    }                                                                                         \
  }

}  // namespace vbgemm
