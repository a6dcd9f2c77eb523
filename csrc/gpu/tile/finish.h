// The last step from sums in shared memory to C: apply the epilogue and convert to the result type. (Tensor tiles do this by vectors, in
// tensor_store.h.)
//
// "Staging" is one thread's view of the sums that are staged in shared memory, or of one pass over them where not all sums fit. Every
// layout of the sums has its own type: Staging (tile_store.h), RowStaging (row_store.h), TileStaging (lane_sums.h), Band (mfma_store.h) and
// AddPartialSums::Elements (add_partial_sums.h). Each has the members
//
//   static constexpr int kElements;                       the number of elements that the thread handles per pass
//   Sum& element(int n) const;                            the n-th of these elements
//   Location locate(Extent tile, int pass, int n) const;  its position in the tile
//
// and assigns adjacent elements to adjacent threads, so that accesses to C coalesce.
#pragma once
#include "gpu/tile/epilogue.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// The position of an element in its tile; `inside` is false outside of the tile.
struct Location {
  int row, col;
  bool inside;
};

// Applies element = activation(alpha element + beta source + bias), by two multiply-adds, to a thread's elements of one pass.
template <class Out, class Staging, class T>
__device__ inline void apply_epilogue(const Staging& staging, const ResolvedTile<T>& place, int pass) {
  using Sum = Accumulator<T>;
  constexpr int kElements = Staging::kElements, kRoom = 32 / static_cast<int>(sizeof(Sum));
  constexpr int kInFlight = kElements < kRoom ? kElements : kRoom;  // so that their loads overlap
  const MatrixView source = place.matrix[kSource], bias = place.matrix[kBias];
  const Sum alpha = place.alpha, beta = place.beta;
  const Extent tile{place.rows, place.cols};
#pragma unroll 1
  for (int begin = 0; begin < kElements; begin += kInFlight) {
    Sum rest[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      rest[n] = nothing<Sum>();
      const Location at = staging.locate(tile, pass, begin + n);
      if (bias.first && at.inside) rest[n] = widen(*bias.template at<Out>(at.row, at.col));
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      const Location at = staging.locate(tile, pass, begin + n);
      if (source.first && at.inside) rest[n] = scale_and_add(beta, widen(*source.template at<Out>(at.row, at.col)), rest[n]);
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) staging.element(begin + n) = scale_sum(alpha, staging.element(begin + n), rest[n]);
  }
  if (place.activation == Activation::none) return;
#pragma unroll 1
  for (int n = 0; n < kElements; ++n) staging.element(n) = activate(place.activation, staging.element(n));
}

template <class Out, class Staging, class T>
__device__ inline void write_elements(const Staging& staging, const ResolvedTile<T>& place, int pass) {
  // The view is copied to registers because the compiler cannot rule out that a store to C overwrites it.
  const MatrixView c = place.matrix[kC];
  const Extent tile{place.rows, place.cols};
  constexpr int kUnroll = Staging::kElements < 8 ? Staging::kElements : 8;  // their addresses usually are at constant distances
#pragma unroll 1
  for (int begin = 0; begin < Staging::kElements; begin += kUnroll) {
#pragma unroll
    for (int n = 0; n < kUnroll; ++n) {
      const Location at = staging.locate(tile, pass, begin + n);
      Out result;
      narrow(staging.element(begin + n), result);
      store_bytes_if<sizeof(Out)>(at.inside, c.template at<Out>(at.row, at.col), &result);
    }
  }
}

// Whether every row of C in this tile begins and ends at a multiple of the vector width.
template <class Out, int kVector>
__device__ inline bool takes_vectors(const MatrixView& c, int cols) {
  return c.col_stride == 1 && (c.row_stride | cols) % kVector == 0 && reinterpret_cast<uintptr_t>(c.first) % (kVector * sizeof(Out)) == 0;
}

}  // namespace vbgemm
