// Which tile of a ragged product a cluster of CTAs computes next. Each cluster walks the group sizes once, from the first group to the
// last, and finds its units of work on the way. No table of tiles has to be built, and no CTA waits for another one.
#pragma once
#include <cstdint>

#include "gpu/arch/gpu_vendor.h"
#include "ragged.h"

namespace vbgemm {

template <class Number>
__device__ inline Number min_of(Number x, Number y) {
  return x < y ? x : y;
}
template <class Number>
__device__ inline Number max_of(Number x, Number y) {
  return x < y ? y : x;
}

// The sizes known at launch, and pointers to the runtime sizes in device memory.
struct RaggedSizes {
  const void* group_sizes;
  const int32_t* group_offset;
  int32_t m, k, n, g, num_sizes;
  // lhs has this many rows, and rhs this many matrices, which repeat (ragged_call.h).
  int32_t lhs_rows, rhs_groups;
  int32_t entry_groups;  // of an entry of a batch, of which the first and the last have no weights; 0 without a batch
  bool wide_sizes, contraction;
  // The product has twice as many columns as the result, which is activation(first half) times the second half. A tile of the product holds
  // the columns of both halves for a tile of the result.
  bool gated;
  bool rounds_up;       // each group's size is rounded up to a multiple of kScaledDepth
  bool undefined_rest;  // rows without weights get no tiles; otherwise they become zeros

  __device__ int columns() const { return gated ? 2 * n : n; }  // of the product
};

// The tile of one CTA. `SharedOperand` says what the two CTAs of a cluster share: the tile's columns of B, while each has
// rows of its own, or the tile's rows of A.
enum class SharedOperand : int32_t { none, b, a };
struct RaggedTile {
  int32_t matrix;  // which matrix of all entries; below 0 if there is none
  // Where the tile begins in the result. In rows mode `row` counts from the first group's first row, in contraction mode from the first row
  // of the matrix.
  int32_t row, col;
  // The tile's extent in the result; `cols` may exceed the tile's width. If it is empty, this CTA computes nothing, but may have to copy
  // for its peer.
  int32_t rows, cols;
  int32_t k_begin, depth;  // the range of K; depth 0: the tile is zero; depth below 0: there is no further work
  SharedOperand shared;

  __device__ bool ends() const { return depth < 0; }
  __device__ int cluster_depth() const { return depth; }  // the depth of both tiles of the cluster
};

// The size of tiles, known at compile time or at launch.
template <int kRows, int kCols>
struct CompiledTileSize {
  static constexpr int rows = kRows, cols = kCols;
};
struct TileSize {
  int rows, cols;
};

// The unit of work of a cluster is one tile for each of its CTAs. If the number of tile rows is odd, a cluster of two takes the last tile
// row in pairs of columns. Size: one of the two types above.
template <class Size, int kCluster>
struct RaggedUnits {
  // Rasterization order: units are walked column by column in bands of this many tile rows, so that the tiles computed at one time cover an
  // area about as wide as it is high, and share operands in L2.
  static constexpr int kBand = 16 / kCluster;

  Size size;
  int cols;  // tile columns

  __device__ RaggedUnits(Size size, int n) : size(size), cols((n + size.cols - 1) / size.cols) {}

  __device__ int count(int rows) const {
    const int down = (rows + size.rows - 1) / size.rows;
    if constexpr (kCluster == 1) return down * cols;
    return down / 2 * cols + down % 2 * ((cols + 1) / 2);
  }

  // Sets the tile's first row and column within a group of `rows` rows. `rank` is the CTA's rank in its cluster.
  __device__ void place(int rows, int unit, int rank, RaggedTile& tile) const {
    const int down = (rows + size.rows - 1) / size.rows, pairs = down / kCluster;
    int row, col;
    if (unit < pairs * cols) {
      const int band = unit / (kBand * cols), first = band * kBand, height = min_of(kBand, pairs - first), in_band = unit - first * cols;
      row = (first + in_band % height) * kCluster + rank;
      col = in_band / height;
      tile.shared = kCluster == 2 ? SharedOperand::b : SharedOperand::none;
    } else {
      row = down - 1;
      col = (unit - pairs * cols) * kCluster + rank;
      tile.shared = SharedOperand::a;
    }
    tile.row = row * size.rows;
    tile.col = col * size.cols;
    tile.rows = min_of(rows - tile.row, +size.rows);
  }
};

// The walk over the groups, which one warp performs together. Each lane holds kGroupsPerLane adjacent groups of the chunk that the walk has
// reached.
template <class Units>
class RaggedWalk {
 public:
  __device__ RaggedWalk(const RaggedSizes& sizes, const Units& units, int lane, int rank)
      : sizes_(sizes), units_(units), lane_(lane), rank_(rank), offset_(sizes.group_offset ? *sizes.group_offset : 0) {
    load();
    advance_chunk();
  }

  // Finds this CTA's tile of a unit, which must not be smaller than the unit of the previous call. Exactly one lane writes the
  // tile to `to` and returns true. Every lane of the warp must call this.
  __device__ bool find(int unit, RaggedTile& to) {
    while (unit >= chunk_units_ && chunk_ + kChunk < sizes_.num_sizes) {
      chunk_ += kChunk;
      first_unit_ = chunk_units_;
      first_row_ = chunk_rows_;
      advance_chunk();
    }
    if (unit >= chunk_units_) {
      if (lane_ == 0) find_rest(unit - chunk_units_, to);
      return lane_ == 0;
    }
    int row = lane_row_, before = lane_unit_;
    if (unit < before || unit >= lane_end_) return false;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const int group = chunk_ + lane_ * kGroupsPerLane + i, count = count_units(group, size_[i]);
      if (unit < before + count) {
        write_tile(group, row, size_[i], unit - before, to);
        return true;
      }
      row += size_[i];
      before += count;
    }
    return true;
  }

 private:
  static constexpr int kGroupsPerLane = 4, kChunk = kWaveSize * kGroupsPerLane;

  // Returns the index of a group's matrix, or -1 if it has none.
  __device__ int matrix_of(int group) const {
    if (sizes_.entry_groups > 0) {
      const int entry = group / sizes_.entry_groups, within = group - entry * sizes_.entry_groups;
      return within == 0 || within == sizes_.entry_groups - 1 ? -1 : group - 2 * entry - 1;
    }
    const int64_t matrix = int64_t{group} - offset_;
    return matrix >= 0 && matrix < sizes_.g ? static_cast<int>(matrix) : -1;
  }
  __device__ bool has_matrix(int group) const { return matrix_of(group) >= 0; }
  __device__ int count_units(int group, int size) const {
    if (sizes_.contraction) return group < sizes_.num_sizes && has_matrix(group) ? units_.count(sizes_.k) : 0;
    return sizes_.undefined_rest && !has_matrix(group) ? 0 : units_.count(size);
  }

  // Loads the sizes of the chunk after the current one, so that they arrive while the current one is walked.
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      const int group = loaded_ + lane_ * kGroupsPerLane + i;
      next_[i] = 0;
      if (group < sizes_.num_sizes) {
        const int64_t size = sizes_.wide_sizes ? static_cast<const int64_t*>(sizes_.group_sizes)[group]
                                               : static_cast<const int32_t*>(sizes_.group_sizes)[group];
        next_[i] = static_cast<int>(min_of(max_of(size, int64_t{0}), int64_t{sizes_.m}));
        if (sizes_.rounds_up) next_[i] = min_of((next_[i] + kScaledDepth - 1) & -kScaledDepth, sizes_.m);
      }
    }
    loaded_ += kChunk;
  }

  __device__ void advance_chunk() {
    int64_t rows = 0;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) rows += size_[i] = next_[i];
    if (loaded_ < sizes_.num_sizes) load();
    int64_t rows_before, all_rows;
    sum_before(rows, rows_before, all_rows);
    const int64_t begin = min_of(first_row_ + rows_before, int64_t{sizes_.m});
    lane_row_ = static_cast<int>(begin);
    int64_t left = sizes_.m - begin;
    int units = 0;
#pragma unroll
    for (int i = 0; i < kGroupsPerLane; ++i) {
      size_[i] = static_cast<int>(min_of(int64_t{size_[i]}, left));
      left -= size_[i];
      units += count_units(chunk_ + lane_ * kGroupsPerLane + i, size_[i]);
    }
    int units_before, all_units;
    sum_before(units, units_before, all_units);
    lane_unit_ = first_unit_ + units_before;
    lane_end_ = lane_unit_ + units;
    chunk_units_ = first_unit_ + all_units;
    chunk_rows_ = static_cast<int>(min_of(first_row_ + all_rows, int64_t{sizes_.m}));
  }

  // Sums a value over the warp: `before` becomes the sum over the lanes before this one, `all` the sum over all lanes.
  template <class Number>
  __device__ void sum_before(Number mine, Number& before, Number& all) const {
    before = 0, all = mine;
    add_neighbours<1>(before, all);
    add_neighbours<2>(before, all);
    add_neighbours<4>(before, all);
    add_neighbours<8>(before, all);
    add_neighbours<16>(before, all);
    if constexpr (kWaveSize == 64) add_neighbours<32>(before, all);
  }
  template <int kDistance, class Number>
  __device__ void add_neighbours(Number& before, Number& all) const {
    const Number partner_value = swapped<kDistance>(all);
    if (lane_ & kDistance) before += partner_value;
    all += partner_value;
  }
  template <int kDistance>
  __device__ static int swapped(int x) {
    shfl_xor<kDistance>(x);
    return x;
  }
  template <int kDistance>
  // As two 32-bit words, because an array of two would be placed in local memory.
  __device__ static int64_t swapped(int64_t x) {
    const int high = swapped<kDistance>(static_cast<int>(x >> 32)), low = swapped<kDistance>(static_cast<int>(x));
    return static_cast<int64_t>(high) * (int64_t{1} << 32) + static_cast<uint32_t>(low);
  }

  __device__ void write_tile(int group, int row, int size, int unit, RaggedTile& to) const {
    RaggedTile tile;
    units_.place(sizes_.contraction ? sizes_.k : size, unit, rank_, tile);
    set_columns(tile);
    tile.matrix = matrix_of(group);
    if (sizes_.contraction) {
      tile.k_begin = row;
      tile.depth = size;
    } else {
      tile.row += row;
      tile.k_begin = 0;
      tile.depth = tile.matrix >= 0 ? sizes_.k : 0;
    }
    to = tile;
  }

  // Units count columns of the product; a tile counts columns of the result.
  __device__ void set_columns(RaggedTile& tile) const {
    if (sizes_.gated) tile.col /= 2;
    tile.cols = sizes_.n - tile.col;
  }

  // Finds the tile of a unit after the last group: a matrix of a contraction whose group does not exist, or rows that belong to no group.
  // Both are zero.
  __device__ void find_rest(int unit, RaggedTile& to) const {
    RaggedTile tile{};
    tile.depth = -1;
    if (sizes_.contraction) {
      // Matrices whose group does not exist lie before the first and after the last group.
      const int each = units_.count(sizes_.k);
      const int64_t first = min_of(max_of(-int64_t{offset_}, int64_t{0}), int64_t{sizes_.g});
      const int64_t end = min_of(max_of(int64_t{sizes_.num_sizes} - offset_, first), int64_t{sizes_.g});
      const int64_t missing = sizes_.g - (end - first), which = unit / each;
      if (which < missing) {
        units_.place(sizes_.k, unit % each, rank_, tile);
        tile.matrix = static_cast<int>(which < first ? which : which - first + end);
        tile.depth = 0;
      }
    } else if (const int rows = sizes_.m - chunk_rows_; !sizes_.undefined_rest && unit < units_.count(rows)) {
      units_.place(rows, unit, rank_, tile);
      tile.row += chunk_rows_;
      tile.depth = 0;
    }
    set_columns(tile);
    to = tile;
  }

  const RaggedSizes& sizes_;
  Units units_;
  int lane_, rank_, offset_;
  int chunk_ = 0, loaded_ = 0;            // the first group of the current chunk; the first group of the next chunk to load
  int first_unit_ = 0, chunk_units_ = 0;  // number of units before the current chunk, and up to its end
  int64_t first_row_ = 0;
  int chunk_rows_ = 0;
  int size_[kGroupsPerLane] = {}, next_[kGroupsPerLane] = {};
  int lane_row_ = 0, lane_unit_ = 0, lane_end_ = 0;
};

}  // namespace vbgemm
