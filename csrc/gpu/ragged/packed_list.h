// The list of the tiles of packed rows times weights of different shapes, which a kernel writes from the group sizes, as that of a ragged
// product (tile_list.h).
#pragma once
#include "gpu/ragged/ragged_walk.h"
#include "ragged.h"

namespace vbgemm {

// The tiles' buffers are x; then the weights and y, or, of a contraction, y and the results.
struct PackedListParameters {
  const void* group_sizes;
  const int32_t* shapes;  // k and n of each group
  int64_t rows, x_size, y_size;
  int32_t groups;
  bool wide_sizes, contraction, transpose_rhs;
  TileSize tile;
  int32_t tile_id;
  ReadyTile* tiles;
  int32_t num_tiles;
};

// A group as the walk finds it: its shape, its rows, and where these begin in x and y.
struct PackedGroup {
  int64_t k, n, rows, whole, x, y;  // whole: rows that lie completely in x and y
};

// How many of `rows` rows of `width` elements lie completely in `size` elements, from element `begin` on.
__device__ inline int64_t whole_rows(int64_t rows, int64_t width, int64_t begin, int64_t size) {
  return width == 0 ? rows : lesser(greater((size - begin) / width, int64_t{0}), rows);
}

__device__ inline PackedGroup packed_group(const PackedListParameters& p, int i, int64_t row, int64_t x, int64_t y) {
  const int64_t size = p.wide_sizes ? static_cast<const int64_t*>(p.group_sizes)[i] : static_cast<const int32_t*>(p.group_sizes)[i];
  const int64_t k = p.shapes[2 * i], n = p.shapes[2 * i + 1], rows = lesser(greater(size, int64_t{0}), p.rows - row);
  return {k, n, rows, lesser(whole_rows(rows, k, x, p.x_size), whole_rows(rows, n, y, p.y_size)), x, y};
}

__device__ inline int64_t tiles_along(int64_t size, int each) { return (size + each - 1) / each; }

// Tile `index` of a group. Without depth it is zeros, and nothing is read.
__device__ inline ReadyTile packed_tile(const PackedListParameters& p, int i, const PackedGroup& group, int64_t index) {
  const int64_t rows = p.contraction ? group.k : group.whole, depth = p.contraction ? group.whole : group.k;
  const int64_t down = tiles_along(rows, p.tile.rows), row = index % down * p.tile.rows, col = index / down * p.tile.cols;
  const auto k = static_cast<int32_t>(group.k), n = static_cast<int32_t>(group.n);
  ReadyTile tile{};
  tile.position.tile_id = p.tile_id;
  tile.position.rows = static_cast<int32_t>(lesser(rows - row, int64_t{p.tile.rows}));
  tile.position.cols = static_cast<int32_t>(lesser(group.n - col, int64_t{p.tile.cols}));
  tile.position.depth = static_cast<int32_t>(depth);
  Part& a = tile.part[0];
  Part& b = tile.part[1];
  if (p.contraction) {
    a = {group.x + row, 1, k, 0, 0};
    b = {group.y + col, n, 1, 1, 0};
    tile.part[2] = {row * n + col, n, 1, 2 + i, 0};
  } else {
    a = {group.x + row * k, k, 1, 0, 0};
    b = p.transpose_rhs ? Part{col * k, 1, k, 1 + i, 0} : Part{col, n, 1, 1 + i, 0};
    tile.part[2] = {group.y + row * n + col, n, 1, 1 + p.groups, 0};
  }
  if (depth == 0) a = b = {0, 1, 1, 0, 0};
  return tile;
}

// Tile `index` of the zeros from element `begin` of y on. A tile of no rows ends the list.
__device__ inline ReadyTile tile_of_zeros(const PackedListParameters& p, int64_t begin, int64_t index) {
  const int64_t cols = p.tile.cols, rows = (p.y_size - begin) / cols, down = tiles_along(rows, p.tile.rows), row = index * p.tile.rows;
  const int64_t last = p.y_size - begin - rows * cols;  // elements of a shorter row behind these rows
  ReadyTile tile{};
  tile.position.tile_id = p.tile_id;
  tile.part[0] = tile.part[1] = {0, 1, 1, 0, 0};
  if (index < down) {
    tile.position.rows = static_cast<int32_t>(lesser(rows - row, int64_t{p.tile.rows}));
    tile.position.cols = p.tile.cols;
    tile.part[2] = {begin + row * cols, p.tile.cols, 1, 1 + p.groups, 0};
  } else if (index == down && last > 0) {
    tile.position.rows = 1;
    tile.position.cols = static_cast<int32_t>(last);
    tile.part[2] = {begin + rows * cols, static_cast<int32_t>(last), 1, 1 + p.groups, 0};
  }
  return tile;
}

// The i-th tile of the list. Every thread walks the groups from the first one on.
__device__ inline ReadyTile find_packed_tile(const PackedListParameters& p, int64_t i) {
  int64_t row = 0, x = 0, y = 0;
  for (int group = 0; group < p.groups; ++group) {
    const PackedGroup found = packed_group(p, group, row, x, y);
    const int64_t count = tiles_along(p.contraction ? found.k : found.whole, p.tile.rows) * tiles_along(found.n, p.tile.cols);
    if (i < count) return packed_tile(p, group, found, i);
    i -= count;
    row += found.rows, x += found.rows * found.k, y += found.rows * found.n;
    // No row behind one that does not lie in x and y has a product.
    if (!p.contraction && found.whole < found.rows) {
      y = found.y + found.whole * found.n;
      break;
    }
  }
  return p.contraction ? ReadyTile{} : tile_of_zeros(p, y, i);
}

__device__ inline void write_packed_list(const PackedListParameters& p) {
  await_previous_kernel();  // which may have computed the sizes
  const int64_t i = int64_t{block_index()} * kWaveSize + thread_index();
  if (i < p.num_tiles) p.tiles[i] = find_packed_tile(p, i);
}

}  // namespace vbgemm
