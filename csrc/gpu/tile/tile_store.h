// Writes the sums of a SIMT tile (simt_tile.h) to C: directly as vectors if C's alignment permits it, otherwise through shared memory.
#pragma once
#include "gpu/tile/finish.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Each thread writes its own vectors, straight from the accumulators.
template <class Out, class Traits, class Sum>
__device__ inline void store_vectors(const MatrixView& c, int rows, int cols, const Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols]) {
  using OutVector = Vector<Out, Traits::kColVector>;
  const ThreadPosition thread = grid_place<Traits>(thread_index());  // recomputed here, so that it takes no registers during the mainloop
#pragma unroll
  for (int i = 0; i < Traits::kThreadRows; ++i) {
    const int row = thread.row() + i * Traits::kGridRows;
    if (row >= rows) break;
#pragma unroll
    for (int j = 0; j < Traits::kThreadCols; j += Traits::kColVector) {
      const int col = thread.col() * Traits::kColVector + j * Traits::kGridCols;
      OutVector result;
#pragma unroll
      for (int v = 0; v < Traits::kColVector; ++v) narrow(sum[i][j + v], result.element[v]);
      if (col < cols) *reinterpret_cast<OutVector*>(c.at<Out>(row, col)) = result;
    }
  }
}

// A warp's own region of shared memory, in which its lanes exchange their sums so that adjacent lanes get adjacent elements of C. Each pass
// exchanges kPassRows rows of every thread. After the exchange a lane touches its own elements only, so that one barrier is enough.
template <class Traits, class Sum>
struct Staging {
  static constexpr int kVector = Traits::kColVector, kVectorsAcross = Traits::kThreadCols / kVector;
  static constexpr int kPatchCols = Traits::kWaveCols * kVector,
                       kPatch = Traits::kWaveRows * kPatchCols;              // one vector from each thread of a warp
  static constexpr int kElements = Traits::kPassRows * Traits::kThreadCols;  // per lane and pass

  ThreadPosition thread;
  int lane;
  Sum* region;

  __device__ Staging(int index, Sum* shared)
      : thread(grid_place<Traits>(index)), lane(index % kWaveSize), region(shared + index / kWaveSize * kWaveSize * kElements) {}

  __device__ void put(const Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols], int pass) const {
#pragma unroll
    for (int i = 0; i < Traits::kPassRows; ++i) {
#pragma unroll
      for (int j = 0; j < Traits::kThreadCols; j += kVector) {
        Vector<Sum, kVector> vector;
#pragma unroll
        for (int v = 0; v < kVector; ++v) vector.element[v] = sum[pass + i][j + v];
        Sum* const patch = region + (i * kVectorsAcross + j / kVector) * kPatch;
        *reinterpret_cast<Vector<Sum, kVector>*>(patch + thread.lane_row * kPatchCols + thread.lane_col * kVector) = vector;
      }
    }
  }

  // The lane's n-th element of a pass.
  __device__ Sum& element(int n) const { return region[n * kWaveSize + lane]; }

  // The position in the tile of the lane's n-th element.
  __device__ Location locate(Extent tile, int pass, int n) const {
    const int patch = n / kVector, within = n % kVector * kWaveSize + lane;
    const int row = thread.wave_row + (pass + patch / kVectorsAcross) * Traits::kGridRows + within / kPatchCols;
    const int col = (thread.wave_col + patch % kVectorsAcross * Traits::kGridCols) * kVector + within % kPatchCols;
    return {row, col, row < tile.rows && col < tile.cols};
  }
};

// For a C with unaligned rows and for tiles with an epilogue. The store's code exists once instead of once per accumulator.
template <class Out, class Traits, class T, class Sum>
__device__ inline void store_staged(const ResolvedTile<T>& place, const Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols], Sum* shared) {
  const Staging<Traits, Sum> staging(thread_index(), shared);
  block_barrier();  // all threads have read the last step's operands
#pragma unroll
  for (int pass = 0; pass < Traits::kThreadRows; pass += Traits::kPassRows) {
    staging.put(sum, pass);
    wave_barrier();
    if (place.fused) apply_epilogue<Out>(staging, place, pass);
    write_elements<Out>(staging, place, pass);
    wave_barrier();
  }
}

template <class Out, class Traits, class T, class Sum>
__device__ inline void store_as(const ResolvedTile<T>& place, const Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols], T* shared) {
  const MatrixView& c = place.matrix[kC];
  if (takes_vectors<Out, Traits::kColVector>(c, place.cols) && !place.fused) {
    store_vectors<Out, Traits>(c, place.rows, place.cols, sum);
  } else {
    store_staged<Out, Traits>(place, sum, reinterpret_cast<Sum*>(shared));
  }
}

template <class Traits, class T, class Sum>
__device__ inline void store_tile(const ResolvedTile<T>& place, const Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols], T* shared) {
  with_result<T>(place.result_type(),
                 [&](auto out) __attribute__((always_inline)) { store_as<decltype(out), Traits>(place, sum, shared); });
}

}  // namespace vbgemm
