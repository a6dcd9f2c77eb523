// The tile source of a ragged product: tiles of row groups, or of the groups of a contraction. The finder walks the groups on the device
// (ragged_walk.h).
#pragma once
#include <type_traits>

#include "descriptor.h"
#include "gpu/ragged/ragged_walk.h"
#include "gpu/sm90/mainloop_mixed.h"
#include "gpu/sm90/mainloop_scaled.h"
#include "gpu/sm90/pipeline.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

// A is lhs, K-major; in a contraction it is the transpose of lhs, the groups are ranges of K, and A is MN-major, or K-major if lhs is
// stored transposed. B is either K-major or MN-major. kGathering: rows of lhs are read by index, which TMA cannot do on Hopper, so threads
// copy A.
template <Kind kMmaKind, bool kContracts, bool kIsMnMajorA, bool kIsMnMajorB, int kTileCols, int kCtas, bool kGathering = false>
struct GroupTraits : PipelineTraits<kMmaKind, kTileCols, kCtas> {
  using Pipeline = PipelineTraits<kMmaKind, kTileCols, kCtas>;
  static constexpr bool kMnMajorA = kIsMnMajorA, kMnMajorB = kIsMnMajorB, kContraction = kContracts, kGathers = kGathering;
  static_assert(!kGathers || (kCtas == 1 && !kContraction));
  static_assert(Pipeline::kElement == 2 || !(kMnMajorA || kMnMajorB));  // wgmma takes operands of other sizes only K-major
  static_assert(!Pipeline::kIs8Bit || !kGathers);
  // Whether consumers pass results to storing warps (store_contraction.h). A box then has all rows of a consumer warpgroup. Not used with
  // 8-bit operands, which leave no registers to hold results, nor for tiles with one round of results, where it was 2 to 3% slower.
  static constexpr bool kHandsOver = kContraction && Pipeline::kElement == 2 && kTileCols > 128;
  static constexpr int kStoreLines = kHandsOver ? Pipeline::kBox : Pipeline::kStoreLines;
  using Units = RaggedUnits<CompiledTileSize<Pipeline::kRows, Pipeline::kCols>, kCtas>;
};

// For 8-bit operands with one scale along K.
template <Kind kMmaKind, int kTileCols>
struct UnpromotedTraits : GroupTraits<kMmaKind, false, false, false, kTileCols, 1> {
  static constexpr bool kPromotes = false;
};

// For rows with K-major weights of a narrower type (mainloop_mixed.h). A stage has 128 bytes of each line of weights, since TMA moves fewer
// bytes no faster: one box per 64 columns of weights, and several boxes along K of the tile's few rows.
template <Kind kMmaKind, DType kWeightType>
struct MixedTraits : PipelineTraits<kMmaKind, 256, 1> {
  using Pipeline = PipelineTraits<kMmaKind, 256, 1>;
  static constexpr bool kMixed = true, kPromotes = true, kMnMajorA = false, kMnMajorB = false, kContraction = false, kGathers = false;
  static constexpr DType kWeights = kWeightType;
  static_assert(bits_of(kWeights) <= 8 && Pipeline::kElement == 2);
  static constexpr int kValuesPerByte = 8 / bits_of(kWeights), kStep = 128, kDepth = kStep * kValuesPerByte;
  static constexpr int kRows = 32, kBoxesA = kDepth / Pipeline::kBox, kBoxBytesA = kRows * 128;
  static constexpr int kStageBytes = kBoxesA * kBoxBytesA + Pipeline::kBoxesB * Pipeline::kBoxBytes;
  static constexpr int kStages = (kPipelineMaxShared - 2048 - Pipeline::kConsumerWarps * Pipeline::kStagingBytes) / kStageBytes;
  // A consumer warpgroup has two boxes of columns, each with the tile's blocks of 8 rows.
  static constexpr int kParts = 2, kBlocks = kParts * kRows / 8;
  using Units = RaggedUnits<CompiledTileSize<kRows, Pipeline::kCols>, 1>;
};

// The unit of work that a cluster's first CTA has taken for both CTAs, and the barriers of results passed to the storing warps.
struct GroupShared {
  uint32_t unit;
  Mbarrier unit_full, unit_empty;
  Mbarrier results_full[2], results_empty[2];
};

struct GroupParameters {
  CUtensorMap a, b[2], out;        // a: unused if rows are gathered; b: one map per half, or the same map twice
  CUtensorMap few_rows;            // mixed products: A in boxes of kFewRows rows
  int32_t split_col, split_depth;  // where the second half of b begins, or kNoSplit
  const void* lhs;                 // gathered rows: lhs, and the index of each row
  const int32_t* gather;
  RaggedSizes sizes;
  void* results;
  // Counts the units taken, not including each cluster's first one; it must be zero when the kernel starts. If it is null, clusters take
  // units round-robin.
  uint32_t* next_unit;
  const void *bias, *row_scale;
  // Scales of 8-bit operands, indexed [row of lhs][K block] and [matrix][column or column block][K block]; in a contraction both are
  // indexed [column block][K block]. With one K block the scale is the same for all stages.
  const float *lhs_scale, *rhs_scale;
  int32_t lhs_blocks, rhs_k_blocks, rhs_column_blocks;
  Activation activation;
  bool wide_results, finishes;  // finishes: the call has a bias, a row scale or an activation, or is gated
  bool accumulates;             // the results are added to the array's contents

  __device__ bool has_column_scales() const { return rhs_scale && rhs_column_blocks == sizes.columns(); }
};

template <class TraitsOfGroups>
class GroupSource {
 public:
  using Traits = TraitsOfGroups;
  using Parameters = GroupParameters;
  using Tile = RaggedTile;
  using Shared = PipelineShared<Traits, Tile, GroupShared>;
  static constexpr bool kFindsEarly = false, kEqualDepths = true, kPartialStages = Traits::kContraction, kCopiesSource = false;

  __device__ GroupSource(const Parameters& parameters, Shared& shared, int rank) : parameters_(parameters), shared_(shared), rank_(rank) {}

  __device__ void prefetch() const {
    if (thread_index() > 0) return;
    if (!Traits::kGathers) prefetch_tensormap(parameters_.a);
    prefetch_tensormap(parameters_.b[0]);
    prefetch_tensormap(parameters_.b[1]);
    prefetch_tensormap(parameters_.out);
    if (Traits::kMixed) prefetch_tensormap(parameters_.few_rows);
  }

  __device__ void init_barriers() const {
    mbarrier_init(shared_.source.unit_full, 1);
    mbarrier_init(shared_.source.unit_empty, 1);
    for (int half = 0; half < 2; ++half) {
      mbarrier_init(shared_.source.results_full[half], 4);  // warps
      mbarrier_init(shared_.source.results_empty[half], 1);
    }
  }

  // The tile finder, which one warp runs.
  __device__ void find_tiles(int lane) const {
    const typename Traits::Units units({}, parameters_.sizes.columns());
    RaggedWalk<typename Traits::Units> walk(parameters_.sizes, units, lane, rank_);
    PipelineState<Traits::kTiles> slot;
    const int clusters = grid_blocks() / Traits::kCluster;
    for (int unit = static_cast<int>(block_index()) / Traits::kCluster;; slot.advance()) {
      mbarrier_wait(shared_.tile_empty[slot.index], slot.parity ^ 1);
      wave_barrier();  // all lanes have seen this phase complete before the next one can
      RaggedTile& tile = shared_.tile[slot.index];
      bool ends = false;
      if (walk.find(unit, tile)) {
        ends = tile.depth < 0;
        mbarrier_arrive(shared_.tile_full[slot.index]);
      }
      if (popc_ballot(ends) > 0) return;
      // The parity of the tile count, derived from the ring state because the warp has no register left for a counter.
      static_assert(Traits::kTiles % 2 == 1);
      const uint32_t parity = (slot.parity ^ slot.index) & 1;
      unit = parameters_.next_unit ? clusters + take_unit(lane, parity) : unit + clusters;
    }
  }

  // A warpgroup computes 64 rows of a tile, or every other 64 columns of a mixed product's tile.
  static __device__ bool computes(const Tile& tile, int half) {
    return Traits::kMixed ? tile.cols > half * Traits::kBox : tile.rows > half * Traits::kBox && tile.cols > 0;
  }

  // In a gated product, B's boxes are first the gate's, then the other half's.
  __device__ TileBoxes boxes(const Tile& tile) const {
    TileBoxes boxes;
    boxes.halves = parameters_.sizes.gated ? 2 : 1, boxes.boxes_per_half = Traits::kBoxesB / boxes.halves;
    boxes.a = &parameters_.a, boxes.b = parameters_.b;
    boxes.split_col = parameters_.split_col, boxes.split_depth = parameters_.split_depth;
    boxes.boxes_a = Traits::kGathers ? 0 : Traits::kMixed ? Traits::kBoxesA : (tile.rows + Traits::kBox - 1) / Traits::kBox;
    boxes.bytes_a = Traits::kBoxBytesA;
    if constexpr (Traits::kMixed) {
      if (tile.rows <= kFewRows) boxes.a = &parameters_.few_rows, boxes.bytes_a = kFewRows * 128;
    }
    boxes.boxes_b = min(max(tile.cols + Traits::kBox - 1, 0) / Traits::kBox, boxes.boxes_per_half);
    boxes.mn_major_a = Traits::kMnMajorA, boxes.mn_major_b = Traits::kMnMajorB;
    boxes.shares_a = tile.shared == SharedOperand::a, boxes.shares_b = tile.shared == SharedOperand::b;
    boxes.depth = tile.depth;
    const RaggedSizes& sizes = parameters_.sizes;
    boxes.row = Traits::kContraction ? tile.row : tile.row % sizes.lhs_rows, boxes.col = tile.col;
    boxes.k_begin = tile.k_begin, boxes.k_begin_a = Traits::kContraction ? tile.k_begin % sizes.lhs_rows : tile.k_begin;
    boxes.matrix = Traits::kContraction ? 0 : tile.matrix % sizes.rhs_groups;
    return boxes;
  }

  // Block scales. Each half of a tile's columns lies in one block. In a gated product the tile's second half belongs to the matrix's other
  // half; otherwise it lies in the next block, or in the same block if the tile is one block wide.
  __device__ StageScales scales(const Tile& tile, int warp, int lane) const {
    const Parameters& p = parameters_;
    const float* at[StageScales::kCount] = {};
    const bool has_block_scales = p.rhs_scale && (Traits::kContraction || !p.has_column_scales());
    const int first = Traits::kContraction && p.rhs_k_blocks > 1 ? tile.k_begin / kScaledDepth : 0;  // block of K
    const int k_blocks = Traits::kContraction ? p.rhs_k_blocks : p.lhs_blocks;                       // of lhs
#pragma unroll
    for (int i = 0; p.lhs_scale && i < kScaledRows; ++i) {
      const int line = Traits::kContraction ? min(tile.row / kScaledColumns, p.lhs_blocks - 1)
                                            : tile.row + min(warp * 16 + lane / 4 + 8 * i, tile.rows - 1);
      at[i] = p.lhs_scale + int64_t{line} * k_blocks + first;
    }
#pragma unroll
    for (int i = 0; has_block_scales && i < 2; ++i) {
      const int column = p.sizes.gated ? i * p.sizes.n + tile.col : tile.col + i * (Traits::kCols / 2) / kScaledColumns * kScaledColumns;
      const int block = min(column / kScaledColumns, p.rhs_column_blocks - 1);
      const int matrix = Traits::kContraction ? 0 : tile.matrix;
      at[kScaledRows + i] = p.rhs_scale + (int64_t{matrix} * p.rhs_column_blocks + block) * p.rhs_k_blocks + first;
    }
    const bool of_row = p.lhs_scale && k_blocks > 1, of_col = has_block_scales && p.rhs_k_blocks > 1;
    return StageScales(at, {of_row, of_row, of_col, of_col});
  }

  // Per-column scales are constant along K, so they multiply the tile's accumulators.
  __device__ void scale_columns(const Tile& tile, int lane, float (&sums)[Traits::kBlocks][4]) const {
    const Parameters& p = parameters_;
    if (Traits::kContraction || !p.has_column_scales()) return;
    const float* const scale = p.rhs_scale + int64_t{tile.matrix} * p.rhs_column_blocks + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < Traits::kBlocks; ++block) {
      const bool in_second = p.sizes.gated && block >= Traits::kBlocks / 2;                                  // in the second half
      const int col = min(tile.col + (in_second ? block - Traits::kBlocks / 2 : block) * 8, p.sizes.n - 8);  // n is a multiple of 16
      const float* const two = scale + (in_second ? p.sizes.n : 0) + col;
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[block][i] *= two[i % 2];
    }
  }

  // For mixed products: a scale per column or per column block.
  __device__ StageScales weight_scales(const Tile& tile, int warp, int lane) const {
    const Parameters& p = parameters_;
    const float* column[StageScales::kCount] = {};  // two in each of the thread's two boxes
#pragma unroll
    for (int i = 0; p.rhs_scale && i < StageScales::kCount; ++i) {
      const int left = (p.sizes.gated ? 0 : i / 2 * 2 * Traits::kBox) + warp / 4 * Traits::kBox + warp % 4 * 16 + lane / 4 + i % 2 * 8;
      const int within = min(tile.col + left, p.sizes.n - 1), product_col = p.sizes.gated && i / 2 > 0 ? p.sizes.n + within : within;
      const int block = p.has_column_scales() ? product_col : min(product_col / kScaledColumns, p.rhs_column_blocks - 1);
      column[i] = p.rhs_scale + (int64_t{tile.matrix} * p.rhs_column_blocks + block) * p.rhs_k_blocks;
    }
    const bool varies = p.rhs_scale && p.rhs_k_blocks > 1;
    return StageScales(column, {varies, varies, varies, varies});
  }

  template <class Multiply>
  static __device__ __forceinline__ void with_layout(const Tile&, const Multiply& multiply) {
    multiply(std::bool_constant<Traits::kMnMajorA>{}, std::bool_constant<Traits::kMnMajorB>{});
  }

  // Zeroes the lines of both operands that belong to the next group. Both operands must be zero there, because 0 times an Inf or NaN of the
  // other operand is not 0. Both consumer warpgroups clear B's lines, which is harmless.
  __device__ void clear_lines(int stage, int half, int begin) const {
    constexpr int kVectors = 8;  // 16-byte vectors in a line; the swizzle permutes them within the line
    const int end = (begin + Traits::kChunk - 1) / Traits::kChunk * Traits::kChunk;  // MMAs read no further
    if (begin == end) return;
    const int thread = thread_index() % 128, count = (end - begin) * kVectors;
    for (int i = thread; i < count * (1 + Traits::kBoxesB); i += 128) {
      const int box = i / count, vector = i - box * count;
      unsigned char* const to = shared_.stage[stage] + (box == 0 ? half : Traits::kBoxesA + box - 1) * Traits::kBoxBytes;
      reinterpret_cast<Vector<uint32_t, 4>*>(to + begin * 128)[vector] = {};
    }
    fence_proxy_async();
    bar_sync(kConsumerBarrier + half, 128);
  }

 private:
  // Returns the next unit that no cluster has taken. Which cluster computes a unit does not affect the result. The first CTA of a cluster
  // takes the unit and sends its number to the other one.
  __device__ int take_unit(int lane, uint32_t parity) const {
    uint32_t unit = 0;
    if (rank_ == 0) {
      if (lane == 0) unit = take_next(parameters_.next_unit);
      if (Traits::kCluster > 1) {
        mbarrier_wait(shared_.source.unit_empty, parity ^ 1);
        wave_barrier();
        if (lane == 0) st_async(&shared_.source.unit, 1, unit, shared_.source.unit_full);
      }
      return static_cast<int>(shfl(unit, 0));
    }
    if (lane == 0) mbarrier_arrive_expect_tx(shared_.source.unit_full, 4);
    mbarrier_wait(shared_.source.unit_full, parity);
    unit = *static_cast<volatile uint32_t*>(&shared_.source.unit);
    wave_barrier();
    if (lane == 0) mbarrier_arrive_remote(shared_.source.unit_empty, 0);
    return static_cast<int>(unit);
  }

  const Parameters& parameters_;
  Shared& shared_;
  int rank_;
};

}  // namespace vbgemm
