// The tile source of a plan: tiles of problems of any size, layout and alignment, with any epilogue, whole or as K slices. Two CTAs form a
// cluster and compute two blocks of the plan in lockstep along K. If their tiles are in the same tile column, as neighbours in the plan
// usually are, they need the same columns of B, and each CTA copies half of them to both by multicast.
#pragma once
#include <type_traits>

#include "gpu/sm90/pipeline.h"
#include "gpu/sm90/tile_maps.h"
#include "gpu/tile/tile_kernel.h"

namespace vbgemm {

template <Kind kMmaKind>
struct PlanTraits : PipelineTraits<kMmaKind, 256, 2> {
  // When a tile's slot is free again, stores through its map may still be in flight, but those of the tile before it have ended: one set of
  // maps more than slots is enough.
  static_assert(kTilesWithMaps > PlanTraits::kTiles);
};

// A tile as the finder publishes it.
template <class T>
struct PlanTile : ResolvedTile<T> {
  TileMaps* maps;      // in the workspace
  int longer_depth;    // the K elements for which the longer of the cluster's two tiles has stages
  bool by_tma;         // TMA copies the operands; otherwise threads do
  bool source_by_tma;  // TMA copies the epilogue's source matrix into stages behind those of K
  bool stored_by_tma;  // TMA stores C
  bool shares_b;       // both tiles of the cluster need the same columns of B
  bool last;           // marks the end of the work; not a tile

  __device__ bool ends() const { return last; }
  __device__ int cluster_depth() const { return longer_depth; }
};

// The message that a cluster's two finders exchange about their tiles. `columns` (B) is null if TMA does not copy it.
struct TileColumns {
  const void* columns;
  int32_t row_stride, col_stride, cols, depth;
  int32_t source_depth, unused;  // the K elements for which further stages hold the epilogue's source matrix
};

template <int kTiles>
struct PlanShared {
  alignas(128) CUtensorMap map[4];  // the finder updates these for each tile before it publishes them
  TileColumns mine, peer[kTiles];   // of this CTA, and of its peer
  Mbarrier peer_full[kTiles];
};

template <Kind kKind>
class PlanSource {
 public:
  using Traits = PlanTraits<kKind>;
  using T = typename Traits::T;
  using Parameters = PlanParameters;
  using Tile = PlanTile<T>;
  using Shared = PipelineShared<Traits, Tile, PlanShared<Traits::kTiles>>;
  static constexpr bool kFindsEarly = true, kEqualDepths = false, kPartialStages = false, kCopiesSource = true;

  __device__ PlanSource(const Parameters& parameters, Shared& shared, int rank)
      : parameters_(parameters.call), maps_(parameters), shared_(shared), rank_(rank) {}

  __device__ void prefetch() const {
    if (parameters_.next_may_start) let_next_kernel_start();
    prefetch_descriptors<Traits::kThreads>(parameters_.plan, thread_index());
  }

  __device__ void init_barriers() const {
    for (Mbarrier& full : shared_.source.peer_full) mbarrier_init(full, 1);
  }

  // The tile finder: the first warp of the CTA. The grid's CTAs take the blocks of the plan in turn. The first tile is found
  // before the previous kernel has ended.
  __device__ void find_tiles(int) const {
    copy_words(shared_.source.map[kA], maps_.factor);
    copy_words(shared_.source.map[kB], maps_.factor);
    copy_words(shared_.source.map[kC], maps_.result);
    copy_words(shared_.source.map[kSource], maps_.factor);
    PipelineState<Traits::kTiles> slot;
    PipelineState<kTilesWithMaps> maps;
    for (int first = block_index() / Traits::kCluster * Traits::kCluster; first < parameters_.launch_blocks; first += grid_blocks()) {
      TileRange mine = range_of(first + rank_), other = range_of(first + (rank_ ^ 1));
      for (; mine.tile < mine.end || other.tile < other.end; ++mine.tile, ++other.tile, slot.advance(), maps.advance()) {
        mbarrier_wait(shared_.tile_empty[slot.index], slot.parity ^ 1);
        find(mine, slot, maps.index);
        publish_tile(slot);
      }
    }
    mbarrier_wait(shared_.tile_empty[slot.index], slot.parity ^ 1);
    if (thread_index() == 0) shared_.tile[slot.index].last = true;
    publish_tile(slot);
  }

  __device__ TileBoxes boxes(const Tile& tile) const {
    const auto count = [](int lines, int most) { return min(max(lines + Traits::kBox - 1, 0) / Traits::kBox, most); };
    TileBoxes boxes;
    boxes.by_tma = tile.by_tma;
    boxes.a = &tile.maps->a, boxes.b = &tile.maps->b;
    boxes.boxes_a = count(tile.rows, Traits::kBoxesA), boxes.bytes_a = Traits::kBoxBytesA,
    boxes.boxes_b = count(tile.cols, Traits::kBoxesB);
    boxes.mn_major_a = is_column_major(tile.matrix[kA]), boxes.mn_major_b = !is_column_major(tile.matrix[kB]);
    boxes.shares_b = tile.shares_b;
    boxes.depth = tile.depth;
    return boxes;
  }

  __device__ SourceBoxes source_boxes(const Tile& tile) const {
    return {tile.source_by_tma ? &tile.maps->source : nullptr, tile.rows, tile.cols};
  }

  static __device__ bool computes(const Tile& tile, int half) { return tile.rows > half * 64 && tile.cols > 0; }

  // Operands copied by threads are K-major in shared memory.
  template <class Multiply>
  static __device__ __forceinline__ void with_layout(const Tile& tile, const Multiply& multiply) {
    const bool mn_major_a = tile.by_tma && is_column_major(tile.matrix[kA]), mn_major_b = tile.by_tma && !is_column_major(tile.matrix[kB]);
    if (mn_major_a && mn_major_b) {
      multiply(std::true_type{}, std::true_type{});
    } else if (mn_major_a) {
      multiply(std::true_type{}, std::false_type{});
    } else if (mn_major_b) {
      multiply(std::false_type{}, std::true_type{});
    } else {
      multiply(std::false_type{}, std::false_type{});
    }
  }

 private:
  // A matrix that is contiguous in both directions counts as row-major.
  static __device__ bool is_column_major(const MatrixView& x) { return x.col_stride != 1; }

  __device__ void publish_tile(const PipelineState<Traits::kTiles>& slot) const {
    wave_barrier();
    if (thread_index() == 0) mbarrier_arrive(shared_.tile_full[slot.index]);
  }

  static constexpr int kRow = tiles_in_kernel(kKind, pipelined_kernel(Gpus::hopper)).row[0];  // of the catalogue
  static_assert(kTiles[kRow].m == Traits::kRows && kTiles[kRow].n == Traits::kCols && kTiles[kRow].threads == Traits::kThreads);
  static_assert(k_step(kTiles[kRow], sizeof(T), kCdna) == Traits::kDepth);
  static __device__ TileExtent extent_of(int tile_id) {
    if (tile_id == kRow) return {Traits::kRows, Traits::kCols, 0, false};
    return {0, 0, 0, false};
  }

  __device__ TileRange range_of(int block) const {
    const TileRange range = block < parameters_.launch_blocks ? tiles_of_block(parameters_, block) : TileRange{0, 0};
    return range.tile < range.end ? range : TileRange{0, 0};  // so that counting up from an invalid first tile cannot overflow
  }

  // The finder's lanes copy a map from the launch parameters.
  static __device__ void copy_words(CUtensorMap& to, const CUtensorMap& from) {
    static_assert(sizeof from == 4 * 32);
    reinterpret_cast<uint32_t*>(&to)[thread_index()] = reinterpret_cast<const uint32_t*>(&from)[thread_index()];
  }

  // Finds a tile, makes its maps, and exchanges information with the peer CTA. Whatever the descriptors hold, a tile that is not entirely
  // inside the call's buffers gets no rows: the CTA then only keeps pace with its peer.
  __device__ void find(const TileRange& range, const PipelineState<Traits::kTiles>& at, int maps_index) const {
    const int lane = thread_index();
    Tile& place = shared_.tile[at.index];
    if (lane == 0) place.code = kNoCode;
    if (range.tile < range.end) find_tile<true>(parameters_, range.tile, extent_of, place);
    wave_barrier();

    const bool is_valid = place.code != kNoCode, has_source = is_valid && place.fused && place.matrix[kSource].first;
    LinesOfMatrix lines{};
    if (is_valid && lane <= kC + has_source) {
      const int bytes = lane < kC ? static_cast<int>(sizeof(T)) : result_bytes<T>(place.result_type());
      lines = tma_lines_of(place.matrix[lane], lane == kB ? place.depth : place.rows, lane == kA ? place.depth : place.cols, bytes);
      if (lane >= kC && is_column_major(place.matrix[lane])) lines.data = nullptr;
    }
    const bool copies = shfl(lines.data != nullptr, kA) && shfl(lines.data != nullptr, kB);
    // TMA stores rows only in the call's result type, and in whole 16-byte vectors: after the last column of other rows, it would overwrite
    // up to 14 bytes that do not belong to this tile. Registers have room for the epilogue's source matrix, rounded to 16 bits, alone.
    const bool narrow_results = is_valid && !place.stores_sums(),
               copies_source = copies && narrow_results && shfl(lines.data != nullptr, kSource);
    // The mirror image is stored in whole vectors, too.
    const bool mirrors =
        narrow_results && place.rows % (16 / static_cast<int>(sizeof(T))) == 0 && reinterpret_cast<uintptr_t>(place.mirror) % 16 == 0;
    const bool fits = is_valid && place.result_type() == parameters_.result && (mirrors || !place.mirror) &&
                      (!place.fused || (!place.matrix[kBias].first && place.activation == Activation::none)) &&
                      (!has_source || copies_source);
    const bool stored_by_tma = shfl(lines.data != nullptr && lines.whole_vectors, kC) && fits, source_by_tma = stored_by_tma && has_source;
    constexpr int kSourceDepth = SourceBoxes::kStages * Traits::kDepth;  // the K elements of the source's stages
    if (lane == 0) {
      const MatrixView& b = place.matrix[kB];
      TileColumns& mine = shared_.source.mine;
      mine = {};
      if (is_valid) mine.depth = place.depth;
      if (source_by_tma) mine.source_depth = kSourceDepth;
      if (copies) {
        mine.columns = b.first;
        mine.row_stride = static_cast<int32_t>(b.row_stride), mine.col_stride = static_cast<int32_t>(b.col_stride);
        mine.cols = place.cols;
      }
      mbarrier_arrive_expect_tx(shared_.source.peer_full[at.index], sizeof(TileColumns));
    }
    wave_barrier();
    constexpr int kWords = sizeof(TileColumns) / sizeof(uint32_t);
    uint32_t* const mine = reinterpret_cast<uint32_t*>(&shared_.source.mine);
    uint32_t* const peer = reinterpret_cast<uint32_t*>(&shared_.source.peer[at.index]);
    if (lane < kWords) st_async(peer + lane, rank_ ^ 1, mine[lane], shared_.source.peer_full[at.index]);

    if (lines.data) tensormap_replace(shared_.source.map[lane], lines.data, lines.items, lines.lines, lines.line_bytes);
    wave_barrier();
    TileMaps& maps = static_cast<TileMaps*>(const_cast<void*>(parameters_.maps))[block_index() * kTilesWithMaps + maps_index];
    await_previous_kernel();  // which may still be using the workspace
    publish_tensormaps<kSource + 1>(&maps.a, shared_.source.map);

    mbarrier_wait(shared_.source.peer_full[at.index], at.parity);
    const bool same = popc_ballot(lane < kWords && peer[lane] != mine[lane]) == 0;
    if (lane > 0) return;
    if (!is_valid) place.rows = place.cols = place.depth = 0;
    place.maps = &maps;
    const TileColumns& other = shared_.source.peer[at.index];
    const auto staged_depth = [](int depth, int source_depth) {
      return (depth + Traits::kDepth - 1) / Traits::kDepth * Traits::kDepth + source_depth;
    };
    place.longer_depth = max(staged_depth(place.depth, source_by_tma ? kSourceDepth : 0), staged_depth(other.depth, other.source_depth));
    place.source_by_tma = source_by_tma;
    place.by_tma = copies;
    place.stored_by_tma = stored_by_tma;
    place.shares_b = copies && same;
    place.last = false;
  }

  const KernelParameters& parameters_;
  const PlanParameters& maps_;
  Shared& shared_;
  int rank_;
};

}  // namespace vbgemm
