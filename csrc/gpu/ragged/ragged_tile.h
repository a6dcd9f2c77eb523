// The pipelined kernel of ragged products: the loops of its three roles, which ragged_cut.h describes.
#pragma once
#include "gpu/ragged/ragged_cut.h"
#include "gpu/ragged/ragged_gather.h"
#include "gpu/ragged/ragged_store.h"

namespace vbgemm {

// For measurements: a build without copies or stores shows how fast the remaining parts are alone.
#ifndef VBGEMM_RAGGED_COPIES
#define VBGEMM_RAGGED_COPIES 1
#endif
#ifndef VBGEMM_RAGGED_STORES
#define VBGEMM_RAGGED_STORES 1
#endif

template <class Cut>
class RaggedBlock {
 public:
  __device__ RaggedBlock(const RaggedParameters& parameters, RaggedShared<Cut>& shared)
      : parameters_(parameters), shared_(shared), rank_(Cut::kCluster > 1 ? cluster_rank() : 0) {}

  __device__ void init_barriers() const {
    for (int i = 0; i < Cut::kStages; ++i) {
      init_barrier(shared_.full[i], 1 + 32 * Cut::kGatheringWarps);
      init_barrier(shared_.empty[i], Cut::kCluster * Cut::kMultiplyingWarps);
    }
    for (int i = 0; i < Cut::kTiles; ++i) {
      init_barrier(shared_.tile_full[i], 1);
      init_barrier(shared_.tile_empty[i], 1 + Cut::kGatheringWarps + Cut::kMultiplyingWarps);
    }
    init_barrier(shared_.unit_full, 1);
    init_barrier(shared_.unit_empty, 1);
    fence_barrier_init();
  }

  // The tile finder. One warp runs it.
  __device__ void find_tiles(int lane) const {
    const typename Cut::Units units({}, parameters_.sizes.columns());
    RaggedWalk<typename Cut::Units> walk(parameters_.sizes, units, lane, rank_);
    RingPlace<Cut::kTiles> place;
    const int clusters = grid_blocks() / Cut::kCluster;
    for (int unit = static_cast<int>(block_index()) / Cut::kCluster;; place.advance()) {
      wait_phase(shared_.tile_empty[place.index], place.parity ^ 1);
      wave_barrier();  // all lanes have seen the end of the phase, before that of the next can follow
      RaggedTile& tile = shared_.tile[place.index];
      bool ends = false;
      if (walk.find(unit, tile)) {
        ends = tile.depth < 0;
        arrive(shared_.tile_full[place.index]);
      }
      if (count_lanes(ends) > 0) return;
      // Whether this is an even or an odd tile, without a register of its own: the warp has none left.
      static_assert(Cut::kTiles % 2 == 1);
      const uint32_t parity = (place.parity ^ place.index) & 1;
      unit = parameters_.next_unit ? clusters + take_unit(lane, parity) : unit + clusters;
    }
  }

  // Returns the next unit that no cluster has taken. Which cluster computes a unit does not affect the result. The first thread block of a
  // cluster takes the unit and sends its number to the other one.
  __device__ int take_unit(int lane, uint32_t parity) const {
    uint32_t unit = 0;
    if (rank_ == 0) {
      if (lane == 0) unit = take_next(parameters_.next_unit);
      if (Cut::kCluster > 1) {
        wait_phase(shared_.unit_empty, parity ^ 1);
        wave_barrier();
        if (lane == 0) send(&shared_.unit, 1, unit, shared_.unit_full);
      }
      return static_cast<int>(value_of_lane(unit, 0));
    }
    if (lane == 0) arrive_expecting(shared_.unit_full, 4);
    wait_phase(shared_.unit_full, parity);
    unit = *static_cast<volatile uint32_t*>(&shared_.unit);
    wave_barrier();
    if (lane == 0) arrive_at(shared_.unit_empty, 0);
    return static_cast<int>(unit);
  }

  // The producer of the operands. One thread runs it.
  __device__ void copy_operands() const {
    RingPlace<Cut::kTiles> tiles;
    RingPlace<Cut::kStages> stages;
    while (true) {
      wait_phase(shared_.tile_full[tiles.index], tiles.parity);
      const RaggedTile tile = shared_.tile[tiles.index];
      arrive(shared_.tile_empty[tiles.index]);
      tiles.advance();
      if (tile.depth < 0) return;
      const int boxes_a = Cut::kGathers ? 0 : (tile.rows + Cut::kBox - 1) / Cut::kBox;
      // B's boxes; in a gated product those of the gate, then as many of the other half of the matrix.
      const int halves = parameters_.sizes.gated ? 2 : 1, most_b = Cut::kBoxesB / halves;
      const int boxes_b = min(max(tile.cols + Cut::kBox - 1, 0) / Cut::kBox, most_b);
      const bool shares_a = Cut::kCluster > 1 && tile.shared == Shared::a, shares_b = Cut::kCluster > 1 && tile.shared == Shared::b;
      for (int k = 0; k < tile.depth; k += Cut::kDepth, stages.advance()) {
        wait_phase(shared_.empty[stages.index], stages.parity ^ 1);
        SharedBarrier& full = shared_.full[stages.index];
        unsigned char* const stage = shared_.stage[stages.index];
        if (!VBGEMM_RAGGED_COPIES) {
          arrive(full);
          continue;
        }
        arrive_expecting(full, (boxes_a + halves * boxes_b) * Cut::kBoxBytes);
        const int deep = tile.first + k;
        for (int box = 0; box < boxes_a; ++box) {
          const int along = tile.row + box * Cut::kBox;
          copy_shared(shares_a, box, stage + box * Cut::kBoxBytes, parameters_.a, Cut::kAcrossA ? along : deep,
                      Cut::kAcrossA ? deep : along, 0, full);
        }
        for (int half = 0; half < halves; ++half) {
          for (int i = 0; i < boxes_b; ++i) {
            const int box = half * most_b + i, along = half * parameters_.sizes.n + tile.col + i * Cut::kBox;
            copy_shared(shares_b, box, stage + (Cut::kBoxesA + box) * Cut::kBoxBytes, parameters_.b, Cut::kAcrossB ? along : deep,
                        Cut::kAcrossB ? deep : along, Cut::kContraction ? 0 : tile.matrix, full);
          }
        }
      }
    }
  }

  // The consumers. Eight warps run this, and `warp` counts from 0.
  __device__ void multiply_tiles(int warp, int lane) {
    const int half = warp / 4;
    RingPlace<Cut::kTiles> tiles;
    RingPlace<Cut::kStages> stages;
    Waiting waiting;
    for (;; tiles.advance()) {
      wait_phase(shared_.tile_full[tiles.index], tiles.parity);
      const RaggedTile& tile = shared_.tile[tiles.index];
      const int depth = tile.depth;
      // Otherwise this half of the tile has no rows, or the tile has no columns: only the other half, or the other thread block, computes.
      const bool exists = tile.rows > half * 64 && tile.cols > 0;
      if (depth <= 0 || !exists) store_waiting(waiting, warp, lane);
      if (depth < 0) break;
      if (!exists) {
        for (int k = 0; k < depth; k += Cut::kDepth, stages.advance()) {
          wait_phase(shared_.full[stages.index], stages.parity);
          wave_barrier();  // all lanes have seen the end of the phase
          release_stage(stages.index, lane);
        }
        release_tile(tiles.index, lane);
      } else if (depth == 0) {
        if (!accumulates()) store_zeros<Cut>(destination(tile, warp), lane, parameters_.wide_results);
        release_tile(tiles.index, lane);
      } else {
        float sums[kBlocks][4];
        multiply(depth, half, lane, stages, sums, [&]() __attribute__((always_inline)) { store_waiting(waiting, warp, lane); });
        if (VBGEMM_RAGGED_STORES || parameters_.sizes.m < 0) {
          store(tile, tiles.index, warp, lane, sums, waiting);
        } else {
          release_tile(tiles.index, lane);
        }
      }
    }
    wait_stores();
  }

 private:
  // Results that are still to be stored, and the place in the ring of their tile, which is kept until then.
  struct Waiting {
    NarrowRows<Cut> rows;
    int place = 0;
  };

  static constexpr int kBlocks = Cut::kBlocks;

  __device__ void store_waiting(Waiting& waiting, int warp, int lane) const {
    if (!waiting.rows.waits()) return;
    waiting.rows.template store_waiting<Cut::kContraction>(destination(shared_.tile[waiting.place], warp), shared_.staging[warp], lane);
    release_tile(waiting.place, lane);
  }

  // This warp no longer needs the tile at a place of the ring.
  __device__ void release_tile(int place, int lane) const {
    wave_barrier();
    if (lane == 0) arrive(shared_.tile_empty[place]);
  }

  // When both thread blocks of a cluster need the same operand, each copies every other box to both by multicast.
  __device__ void copy_shared(bool shares, int box, void* to, const CUtensorMap& map, int x, int y, int z, SharedBarrier& full) const {
    if (!shares) {
      copy_box(to, map, x, y, z, full);
    } else if (box % 2 == rank_) {
      copy_box_to(3, to, map, x, y, z, full);
    }
  }

  // This warp no longer reads the stage, so that the copies of both thread blocks may overwrite it.
  __device__ void release_stage(int stage, int lane) const {
    if (lane > 0) return;
    arrive(shared_.empty[stage]);
    if (Cut::kCluster > 1) arrive_at(shared_.empty[stage], rank_ ^ 1);
  }

  template <class Overlapped>
  __device__ void multiply(int depth, int half, int lane, RingPlace<Cut::kStages>& stages, float (&sums)[kBlocks][4],
                           const Overlapped& overlapped) const {
    multiply_stages<Cut, Cut::kAcrossA, Cut::kAcrossB, !Cut::kContraction>(
        shared_, depth, half, stages, sums,
        [&](int stage, int begin) __attribute__((always_inline)) {
          if (Cut::kContraction) clear_lines(stage, half, begin);
        },
        overlapped, [&](int stage) __attribute__((always_inline)) { release_stage(stage, lane); });
  }

  // Clears the lines of both operands that belong to the next group: they have to be zero on both sides, because 0 times an Inf or NaN of
  // the other operand is not 0. Both consumer warpgroups clear B's lines; they write the same zeros.
  __device__ void clear_lines(int stage, int half, int begin) const {
    constexpr int kVectors = 8;  // 16-byte vectors in a line; the swizzle permutes them within the line
    const int end = (begin + Cut::kChunk - 1) / Cut::kChunk * Cut::kChunk;  // products read no further
    if (begin == end) return;
    const int thread = thread_index() % 128, count = (end - begin) * kVectors;
    for (int i = thread; i < count * (1 + Cut::kBoxesB); i += 128) {
      const int box = i / count, vector = i - box * count;
      unsigned char* const to = shared_.stage[stage] + (box == 0 ? half : Cut::kBoxesA + box - 1) * Cut::kBoxBytes;
      reinterpret_cast<Vector<uint32_t, 4>*>(to + begin * 128)[vector] = {};
    }
    fence_async_proxy();
    named_barrier(1 + half, 128);
  }

  // The destination of this warp's rows.
  __device__ RowsDestination destination(const RaggedTile& tile, int warp) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const int row = tile.row + warp * 16;
    const int64_t line = Cut::kContraction ? int64_t{tile.matrix} * sizes.k + row : row, row_bytes = int64_t{sizes.n} * result_bytes();
    return {static_cast<char*>(parameters_.results) + line * row_bytes + tile.col * result_bytes(),
            row_bytes,
            tile.rows - warp * 16,
            min(tile.cols, sizes.gated ? Cut::kCols / 2 : Cut::kCols),
            parameters_.out,
            tile.col,
            row,
            Cut::kContraction ? tile.matrix : 0,
            accumulates()};
  }
  __device__ bool accumulates() const { return Cut::kContraction && parameters_.accumulates; }
  __device__ int result_bytes() const { return parameters_.wide_results ? 4 : 2; }

  __device__ void store(const RaggedTile& tile, int place, int warp, int lane, const float (&sums)[kBlocks][4], Waiting& waiting) const {
    constexpr bool kClipped = Cut::kContraction;
    const RaggedSizes& sizes = parameters_.sizes;
    const RowsDestination to = destination(tile, warp);
    unsigned char* const staging = shared_.staging[warp];
    const bool finishes = !Cut::kContraction && parameters_.finishes;
    const bool gates = sizes.gated && !parameters_.bias && !parameters_.row_scale;
    const auto store_values = [&](auto blocks, const auto& value) __attribute__((always_inline)) {
      constexpr int kValueBlocks = decltype(blocks)::value;
      if (Cut::kElement == 4 || parameters_.wide_results) {
        store_wide<Cut, kClipped, kValueBlocks>(to, value, staging, lane);
      } else if constexpr (Cut::kElement == 2) {
        waiting.rows.template store<kClipped, kValueBlocks>(to, value, staging, lane);
      }
    };
    if (!finishes) {
      store_values(std::integral_constant<int, kBlocks>{}, [&](int block, int i) __attribute__((always_inline)) { return sums[block][i]; });
    } else if (gates && parameters_.activation == Activation::silu) {
      store_values(std::integral_constant<int, kBlocks / 2>{}, gated<Activation::silu>(sums));
    } else if (gates && parameters_.activation == Activation::gelu) {
      store_values(std::integral_constant<int, kBlocks / 2>{}, gated<Activation::gelu>(sums));
    } else {
      store_finished<Cut>(to, sums, reinterpret_cast<float*>(staging), lane, finish_of(tile, warp));
    }
    waiting.place = place;
    if (!waiting.rows.waits()) release_tile(place, lane);
  }

  __device__ RaggedFinish finish_of(const RaggedTile& tile, int warp) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const char* const bias = static_cast<const char*>(parameters_.bias);
    const float* const row_scale = static_cast<const float*>(parameters_.row_scale);
    return {bias ? bias + (int64_t{tile.matrix} * sizes.columns() + tile.col) * result_bytes() : nullptr,
            row_scale ? row_scale + tile.row + warp * 16 : nullptr, parameters_.activation, sizes.gated ? sizes.n : 0,
            parameters_.wide_results};
  }

  const RaggedParameters& parameters_;
  RaggedShared<Cut>& shared_;
  int rank_;
};

template <class Cut>
__device__ inline void run_ragged(const RaggedParameters& parameters, Unaligned<RaggedShared<Cut>>& dynamic) {
  auto& shared = aligned_in(dynamic);
  RaggedBlock<Cut> block(parameters, shared);
  const int warp = value_of_lane(thread_index() / 32, 0), lane = thread_index() % 32;
  if (thread_index() == 0) {
    if (!Cut::kGathers) prefetch_map(parameters.a);
    prefetch_map(parameters.b);
    prefetch_map(parameters.out);
    block.init_barriers();
  }
  if constexpr (Cut::kCluster > 1) {
    cluster_barrier();
  } else {
    block_barrier();
  }
  await_previous_kernel();
  if (warp < 4) {
    shrink_registers<40>();
    if (warp == 0) {
      if (lane == 0) block.copy_operands();
    } else if (warp == 1) {
      block.find_tiles(lane);
    } else if constexpr (Cut::kGathers) {
      RowGatherer<Cut>(parameters, shared, warp - 2, lane).run();
    }
  } else {
    grow_registers<232>();
    block.multiply_tiles(warp - 4, lane);
  }
  // A thread block must not end while the other one of its cluster still copies to it or arrives at its barriers.
  if constexpr (Cut::kCluster > 1) {
    wave_barrier();
    cluster_barrier();
  }
}

// The kernel's name says which operands are contiguous across K: none or B for rows, both for a contraction.
#define VBGEMM_DEFINE_RAGGED_KERNEL(name, kind, across_a, across_b, cols, cluster, gathers)                               \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(384, 1) name(VBGEMM_PARAMETERS(vbgemm::RaggedParameters, parameters)) { \
    if constexpr (vbgemm::kWarpgroupProducts) {                                                                           \
      using Cut = vbgemm::RaggedCut<vbgemm::Kind::kind, across_a, across_b, cols, cluster, gathers>;                      \
      VBGEMM_DYNAMIC_SHARED(vbgemm::Unaligned<vbgemm::RaggedShared<Cut>>, dynamic);                                       \
      vbgemm::run_ragged<Cut>(parameters, dynamic);                                                                       \
    } else {                                                                                                              \
      vbgemm::trap();                                                                                                     \
    }                                                                                                                     \
  }

}  // namespace vbgemm
