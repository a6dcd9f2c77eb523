// What becomes of sums in shared memory on their way to C: the epilogue, and the results' type. (Tensor cores' are finished by vectors, in
// tensor_store.h.)
//
// A "stage" is what one thread sees of such sums, or of a pass over them where not all fit. There is one for each way to lay them out:
// Stage (tile_store.h), RowStage (row_store.h), TileStage (lane_sums.h), Band (mfma_store.h), AddShares::Elements (add_shares.h). Each has
//
//   static constexpr int kElements;                       how many elements the thread sees to, in each pass
//   Sum& element(int n) const;                            the n-th of them
//   Location locate(Extent tile, int pass, int n) const;  and where in the tile it lies
//
// and gives neighbouring threads neighbouring elements.
#pragma once
#include "gpu/tile/epilogue.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Of an element in its tile, if the tile reaches that far.
struct Location {
  int row, col;
  bool inside;
};

// element = activation(alpha element + beta source + bias), by two multiply-adds, for a lane's elements of a pass.
template <class Out, class Stage, class T>
__device__ inline void apply_epilogue(const Stage& stage, const TilePlace<T>& place, int pass) {
  using Sum = Accumulator<T>;
  constexpr int kElements = Stage::kElements, kRoom = 32 / static_cast<int>(sizeof(Sum));
  constexpr int kTogether = kElements < kRoom ? kElements : kRoom;  // so that their loads are under way together
  const MatrixView source = place.matrix[kSource], bias = place.matrix[kBias];
  const Sum alpha = place.alpha, beta = place.beta;
  const Extent tile{place.rows, place.cols};
#pragma unroll 1
  for (int begin = 0; begin < kElements; begin += kTogether) {
    Sum rest[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      rest[n] = nothing<Sum>();
      const Location at = stage.locate(tile, pass, begin + n);
      if (bias.first && at.inside) rest[n] = widen(*bias.template at<Out>(at.row, at.col));
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const Location at = stage.locate(tile, pass, begin + n);
      if (source.first && at.inside) rest[n] = scale_and_add(beta, widen(*source.template at<Out>(at.row, at.col)), rest[n]);
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) stage.element(begin + n) = scale_sum(alpha, stage.element(begin + n), rest[n]);
  }
  if (place.activation == Activation::none) return;
#pragma unroll 1
  for (int n = 0; n < kElements; ++n) stage.element(n) = activate(place.activation, stage.element(n));
}

template <class Out, class Stage, class T>
__device__ inline void write_elements(const Stage& stage, const TilePlace<T>& place, int pass) {
  // Copies: what is written might be they, for all that the compiler knows.
  const MatrixView c = place.matrix[kC];
  const Extent tile{place.rows, place.cols};
  constexpr int kTogether = Stage::kElements < 8 ? Stage::kElements : 8;  // their places are at constant distances, as a rule
#pragma unroll 1
  for (int begin = 0; begin < Stage::kElements; begin += kTogether) {
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const Location at = stage.locate(tile, pass, begin + n);
      Out result;
      narrow(stage.element(begin + n), result);
      store_bytes_if<sizeof(Out)>(at.inside, c.template at<Out>(at.row, at.col), &result);
    }
  }
}

// Whether all of C's rows in a tile begin at a multiple of the vector, and end at one.
template <class Out, int kVector>
__device__ inline bool takes_vectors(const MatrixView& c, int cols) {
  return c.col_stride == 1 && (c.row_stride | cols) % kVector == 0 && reinterpret_cast<uintptr_t>(c.first) % (kVector * sizeof(Out)) == 0;
}

}  // namespace vbgemm
