// From a block's number to the matrices its tile reads and writes: every index that a descriptor holds is checked on the way.
#pragma once
#include "../descriptor.h"
#include "gpu_vendor.h"
#include "kernel_parameters.h"

namespace vbgemm {

// A rectangle of a matrix in global memory, from its first element on.
template <class T>
struct MatrixView {
  T* first;
  int64_t row_stride, col_stride;
};

// Where a block stands in its walk: at `tile` (its next is at `last` at the latest) of the launch's block number `block`.
struct Cursor {
  uint32_t block;
  int32_t tile, last;
};

inline constexpr int kNoTile = -1, kWalkEnds = -2;

// A tile ready to compute: C[rows x cols] = A[rows x depth] B[depth x cols].
template <class T>
struct TilePlace {
  MatrixView<const T> a, b;
  MatrixView<T> c;
  int32_t rows, cols, depth;
  int32_t strategy;  // its row of the catalogue; kNoTile where there is nothing to compute, kWalkEnds after the last
  Cursor cursor;
};

struct Extent {
  int rows, cols;
};

__device__ inline int clamp(int64_t value, int low, int high) { return static_cast<int>(value < low ? low : value > high ? high : value); }

// A descriptor read in 8-byte words: they lie at multiples of 8, and a word that is not used is not loaded.
template <class Record>
__device__ inline Record load_record(const Record* address) {
  static_assert(sizeof(Record) % 8 == 0);
  union Words {
    __device__ Words() {}
    uint64_t word[sizeof(Record) / 8];
    Record record;
  } words;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Record) / 8); ++i) {
    words.word[i] = load_readonly(reinterpret_cast<const uint64_t*>(address) + i);
  }
  return words.record;
}

// Before a block's first tile. The grid may be smaller than the launch's range of blocks: each walks every grid_size()-th.
__device__ inline Cursor walk_begins() { return {block_index() - grid_size(), 0, 0}; }

// Moves to the next tile; false where there is none.
__device__ inline bool advance(const KernelParameters& parameters, Cursor& cursor) {
  const Descriptors& plan = parameters.plan;
  ++cursor.tile;
  while (cursor.tile >= cursor.last) {
    cursor.block += grid_size();
    const int64_t block = static_cast<int64_t>(parameters.first_block) + cursor.block;
    if (cursor.block >= static_cast<uint32_t>(parameters.num_blocks) || block < 0 || block >= plan.num_blocks) return false;
    cursor.tile = clamp(plan.block_first ? plan.block_first[block] : block, 0, plan.num_tiles);
    cursor.last = clamp(plan.block_first ? plan.block_first[block + 1] : block + 1, 0, plan.num_tiles);
  }
  return true;
}

// The run that holds a tile: the last whose first tile is not beyond it. The lanes of a wave probe the runs together, so that a search
// among a thousand takes two rounds of loads.
__device__ inline int run_of_tile(const Descriptors& plan, int tile) {
  if (plan.num_runs == plan.num_tiles) return tile;
  const int lane = thread_index() % kWaveSize;
  int low = 0, high = plan.num_runs;
  while (high - low > 1) {
    const int stride = (high - low + kWaveSize - 1) / kWaveSize;
    const int64_t probe = low + static_cast<int64_t>(lane) * stride;
    const int before = count_lanes(probe < high && plan.runs[probe].first_tile <= tile);
    low += (before > 0 ? before - 1 : 0) * stride;
    high = high - low < stride ? high : low + stride;
  }
  return low;
}

// The element of op(X)[batch] at (row, col), and what follows it.
template <class T>
__device__ inline MatrixView<T> view_of(const KernelParameters& parameters, const Operand& x, int outer, int inner, int64_t row,
                                        int64_t col) {
  const int64_t offset = x.offset + outer * x.batch_stride[0] + inner * x.batch_stride[1] + row * x.row_stride + col * x.col_stride;
  return {static_cast<T*>(const_cast<void*>(parameters.pointer(x.buffer))) + offset, x.row_stride, x.col_stride};
}

// Finds the tile after `cursor`. The first wave of a block calls this, and its first lane writes what all of them find. `extent_of` gives
// the size of a strategy's tiles, 0 x 0 for one that this kernel lacks.
template <class T, class ExtentOf>
__device__ inline void place_next_tile(const KernelParameters& parameters, Cursor cursor, const ExtentOf& extent_of, TilePlace<T>& place) {
  const Descriptors& plan = parameters.plan;
  const bool writes = thread_index() == 0;
  const bool found = advance(parameters, cursor);
  if (writes) place.cursor = cursor, place.strategy = found ? kNoTile : kWalkEnds;
  if (!found) return;
  const TileRun run = load_record(plan.runs + run_of_tile(plan, cursor.tile));
  if (run.problem < 0 || run.problem >= plan.num_problems) return;
  const Problem problem = load_record(plan.problems + run.problem);

  // Position in the run: batch, row, column, the column fastest.
  uint32_t index = static_cast<uint32_t>(cursor.tile - run.first_tile), y = 0, x = 0;
  if (index > 0) {
    const uint32_t tiles_x = run.tiles_x > 0 ? run.tiles_x : 1, tiles_y = run.tiles_y > 0 ? run.tiles_y : 1;
    x = index % tiles_x;
    index /= tiles_x;
    y = index % tiles_y;
    index /= tiles_y;
  }
  const Extent extent = extent_of(run.strategy);
  const int64_t batch = static_cast<int64_t>(run.batch) + index;
  const int64_t row = run.row + static_cast<int64_t>(y) * extent.rows, col = run.col + static_cast<int64_t>(x) * extent.cols;
  if (extent.rows == 0 || batch < 0 || batch >= problem.batch || row < 0 || row >= problem.m || col < 0 || col >= problem.n) return;

  int outer = 0, inner = static_cast<int>(batch);
  if (problem.inner_batch > 0 && inner >= problem.inner_batch) {
    outer = inner / problem.inner_batch;
    inner -= outer * problem.inner_batch;
  }
  for (const Operand* operand : {&problem.a, &problem.b, &problem.c}) {
    if (operand->buffer < 0 || operand->buffer >= parameters.num_buffers) return;
  }
  if (!writes) return;
  const int depth = problem.k > 0 ? problem.k : 0;
  const int k_begin = clamp(run.k_begin, 0, depth), k_end = clamp(run.k_end, k_begin, depth);
  place.a = view_of<const T>(parameters, problem.a, outer, inner, row, k_begin);
  place.b = view_of<const T>(parameters, problem.b, outer, inner, k_begin, col);
  place.c = view_of<T>(parameters, problem.c, outer, inner, row, col);
  place.rows = clamp(problem.m - row, 0, extent.rows);
  place.cols = clamp(problem.n - col, 0, extent.cols);
  place.depth = k_end - k_begin;
  place.strategy = run.strategy;
}

}  // namespace vbgemm
