// One tile of C on the ordinary arithmetic units: a pipeline of copies along K, then multiply-adds from shared memory.
#pragma once
#include "operand_copy.h"
#include "tile_place.h"
#include "tile_store.h"

namespace vbgemm {

// sum += A B over one step of K, operands in shared memory, of which `depth` columns of A (rows of B) count and the rest are zeros. K runs
// upwards for every element, whatever the tile: the bits of a result do not depend on the plan (unless it splits K).
template <class Cut, class T, class Sum>
__device__ inline void multiply_step(const T* shared_a, const T* shared_b, int depth, Sum (&sum)[Cut::kThreadRows][Cut::kThreadCols]) {
  using DepthVector = Vector<T, Cut::kDepthVector>;
  using ColVector = Vector<T, Cut::kColVector>;
  const auto multiply_chunk = [&](int begin) {
#pragma unroll
    for (int k = begin; k < begin + Cut::kChunk; k += Cut::kDepthVector) {
      DepthVector a[Cut::kThreadRows];
#pragma unroll
      for (int i = 0; i < Cut::kThreadRows; ++i) {
        a[i] = *reinterpret_cast<const DepthVector*>(shared_a + i * Cut::kGridRows * Cut::A::kPitch + k);
      }
#pragma unroll
      for (int l = 0; l < Cut::kDepthVector; ++l) {
        Sum b[Cut::kThreadCols];
#pragma unroll
        for (int j = 0; j < Cut::kThreadCols; j += Cut::kColVector) {
          const ColVector cols = *reinterpret_cast<const ColVector*>(shared_b + (k + l) * Cut::B::kPitch + j * Cut::kGridCols);
#pragma unroll
          for (int v = 0; v < Cut::kColVector; ++v) b[j + v] = widen(cols.element[v]);
        }
#pragma unroll
        for (int i = 0; i < Cut::kThreadRows; ++i) {
          const Sum x = widen(a[i].element[l]);
#pragma unroll
          for (int j = 0; j < Cut::kThreadCols; ++j) sum[i][j] = multiply_add(x, b[j], sum[i][j]);
        }
      }
    }
  };
  // Chunk by chunk, as more unrolled code would need more registers than there are; those beyond the end of K are left out.
  multiply_chunk(0);
#pragma unroll 1
  for (int begin = Cut::kChunk; begin < Cut::kDepth && begin < depth; begin += Cut::kChunk) multiply_chunk(begin);
}

// Computes one tile. The copies lead the products by kStages - 1 steps, and use the slot that the last products have freed; with one stage
// a step waits for its own copies, and other blocks hide that. The copies' code stands here once, as it is the most of a tile's. A K range
// of length 0 leaves zeros.
template <class Cut, class T>
__device__ inline void multiply_tile(const TilePlace<T>& place, T* shared) {
  Accumulator<T> sum[Cut::kThreadRows][Cut::kThreadCols] = {};
  constexpr bool kAlone = Cut::kStages == 1;
  constexpr int kAhead = (Cut::kStages - 1) * Cut::kDepth;  // of K, by which the copies lead
  constexpr int kLastSlot = (Cut::kStages - 1) * Cut::kStageElements;
  int slot = 0;  // that copies go to; the next one is multiplied
#pragma unroll 1
  for (int begin = -kAhead; begin < place.depth; begin += Cut::kDepth) {
    if (!kAlone && begin >= 0) wait_copies<kAlone ? 0 : Cut::kStages - 2>();
    if (begin >= 0) block_barrier();  // this step's data are visible, and nobody reads the stage before it any more
    if (const int first = begin + kAhead, uncopied = place.depth - first; uncopied > 0) {
      start_copies<typename Cut::A, Cut::kThreads>(place.matrix[kA], 0, first, shared + slot, place.rows, uncopied);
      start_copies<typename Cut::B, Cut::kThreads>(place.matrix[kB], first, 0, shared + slot + Cut::A::kElements, uncopied, place.cols);
    }
    commit_copies();
    if (kAlone) {
      wait_copies<0>();
      block_barrier();
    }
    slot = slot == kLastSlot ? 0 : slot + Cut::kStageElements;
    if (begin < 0) continue;
    const GridPlace thread = grid_place<Cut>(thread_index());
    const T *const a = shared + slot, *const b = a + Cut::A::kElements;
    multiply_step<Cut>(a + thread.row() * Cut::A::kPitch, b + thread.col() * Cut::kColVector, place.depth - begin, sum);
  }
  store_tile<Cut>(place, sum, shared);
}

template <class T, Kind kKind_>
struct SimtFamily {
  using Element = T;
  static constexpr Kind kKind = kKind_;
  template <int kRow>
  using Cut = TileCut<T, kRow>;

  template <class Cut>
  __device__ static void multiply(const TilePlace<T>& place, T* shared) {
    multiply_tile<Cut>(place, shared);
  }
};

}  // namespace vbgemm
