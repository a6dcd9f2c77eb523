// The one kernel body of large products on sm_90a. Each multiprocessor runs one CTA of three warpgroups. The first warpgroup is the
// producer: one of its warps finds tiles, one issues TMA copies into a ring of stages, and two copy the operands that TMA cannot copy. The
// other two warpgroups are the consumers: each multiplies 64 rows of the tile and stores them. All synchronization uses mbarriers in shared
// memory, and neither consumer waits for the other: while one stores its half of a tile, the other still multiplies, and copies of the next
// tile are in flight.
//
// A kernel is put together from types:
//   Source    which tiles a CTA computes, where TMA finds their operands, and what the CTAs of a cluster share: the tiles of a plan
//             (source_plan.h), or those of groups of rows or of groups of a contraction (source_groups.h); with its Traits, the tile's
//             shape, the number of stages, and the cluster's size (pipeline.h)
//   Copier    the producer of operands that TMA cannot copy (copy_threads.h, copy_gather.h), or NoCopier; where TMA copies all operands,
//             its warps may store what consumers hand over (store_contraction.h)
//   Epilogue  how a consumer warp stores its 16 rows of a tile, or hands them over (store_plan.h, store_groups.h, store_contraction.h)
//
// What the body asks of a Source:
//   kFindsEarly     the first tile is found before the previous kernel of the stream has ended
//   kEqualDepths    the tiles of a cluster have the same depth; otherwise a CTA also skips the extra stages of its peer's tile
//   kCopiesSource   TMA may copy the matrix that an epilogue adds: source_boxes(tile) says which boxes
//   kPartialStages  the MMAs end with the tile's last K element: clear_lines() zeroes the rest of that chunk, later chunks are not read
//   scales(tile, warp, lane)  8-bit operands: a consumer thread's StageScales; scale_columns(tile, lane, sums) applies the scales
//                   of single columns
//   computes(tile, half)      whether a consumer warpgroup has any of the tile's results
//   boxes(tile)     the boxes of the operands that TMA copies, by value, so that the tile need not be kept for it
//   with_layout(tile, multiply)  calls multiply(mn_major_a, mn_major_b) with two compile-time constants: whether A and B are MN-major
#pragma once
#include <type_traits>

#include "gpu/sm90/mainloop.h"
#include "gpu/sm90/mainloop_mixed.h"
#include "gpu/sm90/mainloop_scaled.h"

namespace vbgemm {

// For profiling: a build without copies or stores times the remaining parts.
#ifndef VBGEMM_PIPELINE_COPIES
#define VBGEMM_PIPELINE_COPIES 1
#endif
#ifndef VBGEMM_PIPELINE_STORES
#define VBGEMM_PIPELINE_STORES 1
#endif

// For kernels whose operands are all copied by TMA.
struct NoCopier {
  static constexpr int kWarps = 0;
  static constexpr int kArrivals = 0;          // per stage, in addition to the TMA producer's
  static constexpr bool kCopiesAlone = false;  // each stage is filled either by the copier or by TMA
};

template <class Source, class Copier, class Epilogue>
class PipelinedBlock {
  using Traits = typename Source::Traits;
  using Tile = typename Source::Tile;
  using Stages = PipelineState<Traits::kStages>;

 public:
  using Parameters = typename Source::Parameters;
  using Shared = typename Source::Shared;

  __device__ PipelinedBlock(const Parameters& parameters, Shared& shared)
      : parameters_(parameters), shared_(shared), rank_(Traits::kCluster > 1 ? cluster_ctarank() : 0), source_(parameters, shared, rank_) {}

  __device__ void run() {
    const int warp = shfl(thread_index() / 32, 0), lane = thread_index() % 32;
    source_.prefetch();
    if (thread_index() == 0) init_barriers();
    if constexpr (Traits::kCluster > 1) {
      cluster_sync();
    } else {
      block_barrier();
    }
    if (warp < 4) {
      setmaxnreg_dec<40>();
      if (warp > 0 || !Source::kFindsEarly) await_previous_kernel();
      if (warp == 0) {
        source_.find_tiles(lane);
      } else if (warp == 1) {
        if (lane == 0 || Copier::kCopiesAlone) copy_by_tma(lane);
      } else if constexpr (Copier::kWarps > 0) {
        Copier(parameters_, shared_, thread_index() - 64).run();
      }
    } else {
      setmaxnreg_inc<232>();
      await_previous_kernel();
      multiply_tiles(warp - 4, lane);
    }
    // A CTA must not exit while its peer may still copy to it or arrive at its barriers.
    if constexpr (Traits::kCluster > 1) {
      wave_barrier();
      cluster_sync();
    }
  }

 private:
  __device__ void init_barriers() const {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(shared_.full[i], 1 + Copier::kArrivals);
      mbarrier_init(shared_.empty[i], Traits::kCluster * Traits::kConsumerWarps);
    }
    for (int i = 0; i < Traits::kTiles; ++i) {
      mbarrier_init(shared_.tile_full[i], 1);
      mbarrier_init(shared_.tile_empty[i], 1 + Copier::kWarps + Traits::kConsumerWarps);
    }
    source_.init_barriers();
    fence_mbarrier_init();
  }

  // The TMA producer: a single lane, or a whole warp with one copying lane if it has to synchronize with the copier.
  __device__ void copy_by_tma(int lane) const {
    each_tile<Traits>(shared_, [&](const Tile& tile, int slot, Stages& stages) {
      const TileBoxes boxes = source_.boxes(tile);
      SourceBoxes added{};
      if constexpr (Source::kCopiesSource) added = source_.source_boxes(tile);
      const int cluster_depth = tile.cluster_depth();
      if constexpr (Copier::kCopiesAlone) wave_barrier();  // all lanes have read the tile
      if (lane == 0) {
        mbarrier_arrive(shared_.tile_empty[slot]);
        copy_boxes(boxes, added, cluster_depth, stages);
      }
      if constexpr (Copier::kCopiesAlone) {
        wave_barrier();  // bar.sync counts whole warps
        Copier::sync_with_tma_producer();
      }
    });
  }

  __device__ void copy_boxes(const TileBoxes& boxes, const SourceBoxes& added, int cluster_depth, Stages& stages) const {
    for (int k = 0; k < cluster_depth; k += Traits::kDepth, stages.advance()) {
      if (!boxes.by_tma) continue;
      mbarrier_wait(shared_.empty[stages.index], stages.parity ^ 1);
      Mbarrier& full = shared_.full[stages.index];
      if (!VBGEMM_PIPELINE_COPIES || (!Source::kEqualDepths && k >= boxes.depth)) {
        if (Source::kCopiesSource && added.map) {
          copy_source_boxes(added, (k - boxes.depth) / Traits::kDepth, shared_.stage[stages.index], full);
        } else {
          mbarrier_arrive(full);
        }
        continue;
      }
      unsigned char* const stage = shared_.stage[stages.index];
      mbarrier_arrive_expect_tx(full, boxes.boxes_a * boxes.bytes_a + boxes.halves * boxes.boxes_b * Traits::kBoxBytes);
      const int k_a = boxes.k_begin_a + k, k_of_both = boxes.k_begin + k;
      const bool in_second_k = k_of_both >= boxes.split_depth;
      const int k_b = (in_second_k ? k_of_both - boxes.split_depth : k_of_both) / Traits::kValuesPerByte;
      for (int box = 0; box < boxes.boxes_a; ++box) {
        // A of a mixed product has fewer rows than a box, and its boxes follow each other along K.
        const int mn = boxes.row + (Traits::kMixed ? 0 : box * Traits::kBox), k_box = k_a + (Traits::kMixed ? box * Traits::kBox : 0);
        copy_shared(boxes.shares_a, box, stage + box * Traits::kBoxBytesA, *boxes.a, boxes.mn_major_a ? mn : k_box,
                    boxes.mn_major_a ? k_box : mn, 0, full);
      }
      for (int half = 0; half < boxes.halves; ++half) {
        for (int i = 0; i < boxes.boxes_b; ++i) {
          const int box = half * boxes.boxes_per_half + i, col = boxes.col + i * Traits::kBox;
          const bool in_second_cols = half > 0 || col >= boxes.split_col;
          const int mn = half == 0 && in_second_cols ? col - boxes.split_col : col;
          copy_shared(boxes.shares_b, box, stage + Traits::kBoxesA * Traits::kBoxBytesA + box * Traits::kBoxBytes,
                      boxes.b[in_second_cols || in_second_k], boxes.mn_major_b ? mn : k_b, boxes.mn_major_b ? k_b : mn, boxes.matrix, full);
        }
      }
    }
  }

  // Copies the boxes of the stage-th stage of an epilogue's source matrix; none where the stage lies behind its last column.
  __device__ void copy_source_boxes(const SourceBoxes& from, int stage_index, unsigned char* stage, Mbarrier& full) const {
    const int left = stage_index * SourceBoxes::kAcross * Traits::kBox;
    const int across =
        stage_index < SourceBoxes::kStages ? min(max(from.cols - left + Traits::kBox - 1, 0) / Traits::kBox, SourceBoxes::kAcross) : 0;
    const int down = (from.rows + Traits::kBox - 1) / Traits::kBox;
    if (across == 0) return mbarrier_arrive(full);
    mbarrier_arrive_expect_tx(full, across * down * Traits::kBoxBytes);
    for (int x = 0; x < across; ++x) {
      for (int y = 0; y < down; ++y) {
        tma_load(stage + (x * Traits::kBoxesA + y) * Traits::kBoxBytes, *from.map, left + x * Traits::kBox, y * Traits::kBox, 0, full);
      }
    }
  }

  // If both CTAs of a cluster need the same operand, each copies every other box to both by multicast.
  __device__ void copy_shared(bool shares, int box, void* to, const CUtensorMap& map, int x, int y, int z, Mbarrier& full) const {
    if (Traits::kCluster == 1 || !shares) {
      tma_load(to, map, x, y, z, full);
    } else if (box % 2 == rank_) {
      tma_load_multicast(3, to, map, x, y, z, full);
    }
  }

  // The consumers: eight warps run this, numbered by `warp` from 0.
  __device__ void multiply_tiles(int warp, int lane) {
    const int half = warp / 4;
    Epilogue epilogue(parameters_, shared_, warp, lane);
    PipelineState<Traits::kTiles> tiles;
    Stages stages;
    for (;; tiles.advance()) {
      mbarrier_wait(shared_.tile_full[tiles.index], tiles.parity);
      const Tile& tile = shared_.tile[tiles.index];
      const int depth = tile.depth;
      // False where this warpgroup's part of the tile lies outside of the result: it then only releases the stages.
      const bool computes = Source::computes(tile, half);
      if (depth <= 0 || !computes) epilogue.store_deferred();
      if (tile.ends()) break;
      if (!computes || (Epilogue::kStoresZeros && depth == 0)) {
        if (computes) {
          epilogue.store_zeros(tile);
        } else {
          epilogue.skip();
          skip_stages(0, tile, lane, stages);
        }
        release_tile(shared_, tiles.index, lane);
        continue;
      }
      float sums[Traits::kBlocks][4];
      if constexpr (!Epilogue::kStoresZeros || Traits::kPromotes) clear(sums);
      if (depth > 0) multiply(tile, depth, warp, lane, stages, sums, [&]() __attribute__((always_inline)) { epilogue.store_deferred(); });
      int used = (depth + Traits::kDepth - 1) / Traits::kDepth * Traits::kDepth;  // K elements of the stages that were used
      if constexpr (Source::kCopiesSource) {
        if (tile.source_by_tma) used += add_source(tile, epilogue, lane, stages, sums);
      }
      const bool keeps_tile = VBGEMM_PIPELINE_STORES && epilogue.store(tile, tiles.index, sums);
      if constexpr (!Source::kEqualDepths) skip_stages(used, tile, lane, stages);
      if (!keeps_tile) release_tile(shared_, tiles.index, lane);
    }
    cp_async_bulk_wait_group();
  }

  // Returns the K elements of the stages that hold the source matrix.
  __device__ __forceinline__ int add_source(const Tile& tile, const Epilogue& epilogue, int lane, Stages& stages,
                                            float (&sums)[Traits::kBlocks][4]) const {
#pragma unroll
    for (int i = 0; i < SourceBoxes::kStages; ++i, stages.advance()) {
      mbarrier_wait(shared_.full[stages.index], stages.parity);
      epilogue.add_source(tile, shared_.stage[stages.index], i, sums);
      wave_barrier();  // all lanes have read the stage
      release_stage(stages.index, lane);
    }
    return SourceBoxes::kStages * Traits::kDepth;
  }

  // Hides from the compiler that the accumulators are zero: it would otherwise zero them again before each layout's mainloop.
  static __device__ void clear(float (&sums)[Traits::kBlocks][4]) {
#pragma unroll
    for (auto& block : sums) {
#pragma unroll
      for (float& x : block) keep_in_place(x = 0);
    }
  }

  template <class OverlappedWork>
  __device__ __forceinline__ void multiply(const Tile& tile, int depth, int warp, int lane, Stages& stages,
                                           float (&sums)[Traits::kBlocks][4], const OverlappedWork& overlapped_work) const {
    const int half = warp / 4;
    const auto release = [&](int stage) __attribute__((always_inline)) { release_stage(stage, lane); };
    if constexpr (Traits::kMixed) {
      StageScales scales = source_.weight_scales(tile, warp, lane);
      if (tile.rows <= kFewRows) {
        multiply_mixed_stages<Traits, kFewRows / 8>(shared_, depth, half, stages, sums, scales, overlapped_work, release);
      } else {
        multiply_mixed_stages<Traits, Traits::kRows / 8>(shared_, depth, half, stages, sums, scales, overlapped_work, release);
      }
    } else if constexpr (Traits::kIs8Bit) {
      StageScales scales = source_.scales(tile, warp, lane);
      if constexpr (Traits::kPromotes) {
        multiply_scaled_stages<Traits>(shared_, depth, half, stages, sums, scales, overlapped_work, release);
      } else {
        multiply_unpromoted_stages<Traits>(shared_, depth, half, stages, sums, scales, overlapped_work, release);
      }
      source_.scale_columns(tile, lane, sums);
    } else {
      Source::with_layout(tile, [&](auto mn_major_a, auto mn_major_b) __attribute__((always_inline)) {
        multiply_stages<Traits, decltype(mn_major_a)::value, decltype(mn_major_b)::value, !Source::kPartialStages>(
            shared_, depth, half, stages, sums,
            [&](int stage, int begin) __attribute__((always_inline)) {
              if constexpr (Source::kPartialStages) source_.clear_lines(stage, half, begin);
            },
            overlapped_work, release);
      });
    }
  }

  // Releases the stages from K element `k` on without multiplying them: the stages that only the peer CTA's tile needs, or all stages (k =
  // 0) if this warpgroup's half of the tile lies outside of the result.
  __device__ void skip_stages(int k, const Tile& tile, int lane, Stages& stages) const {
    for (; k < tile.cluster_depth(); k += Traits::kDepth, stages.advance()) {
      mbarrier_wait(shared_.full[stages.index], stages.parity);
      wave_barrier();  // all lanes have seen this phase complete: after the release, the next phase may complete too
      release_stage(stages.index, lane);
    }
  }

  // This warp no longer reads the stage, so that the copies of both CTAs may overwrite it. The local arrival comes first: after the remote
  // one, the peer CTA may already arrive here for the stage's next phase.
  __device__ void release_stage(int stage, int lane) const {
    if (lane > 0) return;
    mbarrier_arrive(shared_.empty[stage]);
    if (Traits::kCluster > 1) mbarrier_arrive_remote(shared_.empty[stage], rank_ ^ 1);
  }

  const Parameters& parameters_;
  Shared& shared_;
  int rank_;
  Source source_;
};

// Defines a kernel. Its block type is the last argument because it may contain commas.
#define VBGEMM_DEFINE_PIPELINED(name, Parameters, ...)                                                              \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(384, 1) name(VBGEMM_PARAMETERS(vbgemm::Parameters, parameters)) { \
    if constexpr (vbgemm::kHasWgmma) {                                                                              \
      using Block = vbgemm::__VA_ARGS__;                                                                            \
      VBGEMM_DYNAMIC_SHARED(vbgemm::Unaligned<Block::Shared>, dynamic);                                             \
      Block(parameters, vbgemm::aligned_in(dynamic)).run();                                                         \
    } else {                                                                                                        \
      vbgemm::trap();                                                                                               \
    }                                                                                                               \
  }

}  // namespace vbgemm
