// The list of a ragged product's tiles, which a kernel writes from the group sizes. A kernel of the catalogue then computes these tiles as
// if a plan had named them. So ragged products support every tile, arithmetic, alignment and device that batches support.
#pragma once
#include "gpu/ragged/ragged_walk.h"
#include "ragged.h"

namespace vbgemm {

// Which of the epilogues a tile has.
enum class HasMatrix : int32_t { yes, no };

struct TileListParameters {
  RaggedSizes sizes;
  TileSize tile;
  int32_t tile_id;
  bool transpose_rhs;
  int32_t lhs, rhs, bias, out;  // indices into the tile kernel's buffers; bias: below 0 if there is none
  Activation activation;
  TileEpilogues* epilogues;  // null if the call has no epilogue
  ReadyTile* tiles;
  int32_t num_tiles, each;  // each: tiles per thread block of this kernel
};

__device__ inline void write_epilogues(const TileListParameters& parameters) {
  const int64_t columns = parameters.sizes.n;
  for (int i = 0; i < 2; ++i) {
    const bool has_matrix = i == static_cast<int>(HasMatrix::yes);
    Problem problem{};
    problem.m = parameters.sizes.m, problem.n = parameters.sizes.n, problem.k = parameters.sizes.k;
    problem.batch = problem.inner_batch = parameters.sizes.g;
    Epilogue epilogue{};
    epilogue.alpha = {1, 0, -1, 0, 0}, epilogue.beta = {0, 0, -1, 0, 0};
    epilogue.source.buffer = epilogue.bias.buffer = -1;
    if (has_matrix) epilogue.activation = parameters.activation;
    if (has_matrix && parameters.bias >= 0) epilogue.bias = {parameters.bias, 0, 0, 0, 1, {0, columns}};
    parameters.epilogues->problem[i] = problem;
    parameters.epilogues->epilogue[i] = epilogue;
  }
}

__device__ inline ReadyTile ready_tile(const TileListParameters& parameters, const RaggedTile& tile) {
  const RaggedSizes& sizes = parameters.sizes;
  const int64_t matrix = tile.matrix, k = sizes.k, n = sizes.n;
  const HasMatrix has = tile.depth > 0 ? HasMatrix::yes : HasMatrix::no;
  ReadyTile ready{};
  // A tile of no rows ends the list: the kernel leaves it out.
  ready.position = {parameters.tile_id,
                    tile.depth < 0 ? 0 : tile.rows,
                    min_of(tile.cols, parameters.tile.cols),
                    max_of(tile.depth, 0),
                    static_cast<int32_t>(has),
                    tile.matrix,
                    tile.row,
                    tile.col};
  Part& a = ready.part[0];
  Part& b = ready.part[1];
  Part& c = ready.part[2];
  if (sizes.contraction) {
    a = {tile.k_begin % sizes.lhs_rows * k + tile.row, 1, sizes.k, parameters.lhs, 0};
    b = {tile.k_begin * n + tile.col, sizes.n, 1, parameters.rhs, 0};
    c = {(matrix * k + tile.row) * n + tile.col, sizes.n, 1, parameters.out, 0};
  } else {
    const int64_t of_rhs = has == HasMatrix::yes ? tile.matrix % sizes.rhs_groups : 0;
    a = {tile.row % sizes.lhs_rows * k, sizes.k, 1, parameters.lhs, 0};
    b = parameters.transpose_rhs ? Part{(of_rhs * n + tile.col) * k, 1, sizes.k, parameters.rhs, 0}
                                 : Part{of_rhs * k * n + tile.col, sizes.n, 1, parameters.rhs, 0};
    c = {tile.row * n + tile.col, sizes.n, 1, parameters.out, 0};
  }
  if (has == HasMatrix::no) a.offset = b.offset = 0;
  return ready;
}

// A thread block is one warp, which finds consecutive tiles.
__device__ inline void write_tile_list(const TileListParameters& parameters) {
  await_previous_kernel();  // which may have computed the sizes
  const int lane = thread_index(), begin = static_cast<int>(block_index()) * parameters.each;
  if (begin == 0 && lane == 0 && parameters.epilogues) write_epilogues(parameters);
  using Units = RaggedUnits<TileSize, 1>;
  RaggedWalk<Units> walk(parameters.sizes, Units(parameters.tile, parameters.sizes.columns()), lane, 0);
  const int end = min_of(begin + parameters.each, parameters.num_tiles);
  for (int i = begin; i < end; ++i) {
    RaggedTile tile{};
    if (walk.find(i, tile)) parameters.tiles[i] = ready_tile(parameters, tile);
  }
}

}  // namespace vbgemm
