// Writes a tile's sums from shared memory to C: the shares of K are added in their order, then come epilogue and type.
#pragma once
#include "tensor_cut.h"
#include "tile_store.h"

namespace vbgemm {

// A block's sums, seen by one thread: kWidth neighbours of every kStep-th row, the same in all; neighbouring threads have neighbours.
template <class Cut, int kWidth>
struct Planes {
  using Sum = typename Cut::Sum;
  static constexpr int kAcross = Cut::kCols / kWidth, kStep = Cut::kThreads / kAcross, kElements = Cut::kRows / kStep;
  static_assert(Cut::kThreads % kAcross == 0 && Cut::kRows % kStep == 0);

  int row, col;
  Sum* first;

  __device__ Planes(int thread, Sum* planes)
      : row(thread / kAcross), col(thread % kAcross * kWidth), first(planes + row * Cut::kSumPitch + col) {}

  // The thread's n-th element.
  __device__ Sum& element(int n) const { return first[n * kStep * Cut::kSumPitch]; }

  // The thread's n-th elements, the shares of K added up.
  __device__ Vector<Sum, kWidth> total(int n) const {
    const Sum* const from = first + n * kStep * Cut::kSumPitch;
    auto sum = *reinterpret_cast<const Vector<Sum, kWidth>*>(from);
#pragma unroll
    for (int share = 1; share < Cut::kSplit; ++share) {
      const auto more = *reinterpret_cast<const Vector<Sum, kWidth>*>(from + share * Cut::kPlane);
#pragma unroll
      for (int v = 0; v < kWidth; ++v) sum.element[v] += more.element[v];
    }
    return sum;
  }

  // Calls action(row, col) with its place in the tile, if the tile reaches that far.
  template <class Action>
  __device__ void locate(Extent tile, int, int n, const Action& action) const {
    if (row + n * kStep < tile.rows && col < tile.cols) action(row + n * kStep, col);
  }

  // How many of the thread's rows the tile has.
  template <class T>
  __device__ int count(const TilePlace<T>& place) const {
    return col < place.cols ? (place.rows - row + kStep - 1) / kStep : 0;
  }
};

template <class Out, int kWidth, class Cut, class T, class Sum>
__device__ inline void store_rows(const TilePlace<T>& place, Sum* planes) {
  using OutVector = Vector<Out, kWidth>;
  const Planes<Cut, kWidth> mine(thread_index(), planes);
  const MatrixView& c = place.matrix[kC];
  const int count = mine.count(place);
  const int64_t step = int64_t{mine.kStep} * c.row_stride;
  Out* to = c.at<Out>(mine.row, mine.col);
#pragma unroll 4
  for (int n = 0; n < count; ++n, to += step) {
    const Vector<Sum, kWidth> sum = mine.total(n);
    OutVector result;
#pragma unroll
    for (int v = 0; v < kWidth; ++v) narrow(sum.element[v], result.element[v]);
    *reinterpret_cast<OutVector*>(to) = result;
  }
}

// The tile's transpose. Neighbouring threads have neighbouring rows: the elements of a row of the image.
template <class Out, class Cut, class T, class Sum>
__device__ inline void store_mirror(const TilePlace<T>& place, const Sum* planes) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  const int row = thread_index() % Cut::kRows, shares = place.fused ? 1 : Cut::kSplit;  // an epilogue leaves its result in the first
  const int64_t row_stride = place.matrix[kC].row_stride;
  Out* const to = static_cast<Out*>(place.mirror) + row * place.matrix[kC].col_stride;
  const int cols = row < place.rows ? place.cols : 0;
  for (int col = thread_index() / Cut::kRows * kVector; col < cols; col += Cut::kThreads / Cut::kRows * kVector) {
    const Sum* const from = planes + row * Cut::kSumPitch + col;
    auto sum = *reinterpret_cast<const Vector<Sum, kVector>*>(from);
    for (int share = 1; share < shares; ++share) {
      const auto more = *reinterpret_cast<const Vector<Sum, kVector>*>(from + share * Cut::kPlane);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum.element[v] += more.element[v];
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (col + v < cols) narrow(sum.element[v], to[(col + v) * row_stride]);
    }
  }
}

template <class Out, class Cut, class T, class Sum>
__device__ inline void store_planes_as(const TilePlace<T>& place, Sum* planes) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  if (place.fused) {
    const Planes<Cut, 1> mine(thread_index(), planes);
    if (Cut::kSplit > 1) {
      const int count = mine.count(place);
#pragma unroll 4
      for (int n = 0; n < count; ++n) mine.element(n) = mine.total(n).element[0];
    }
    apply_epilogue<Out>(mine, place, 0);
    write_elements<Out>(mine, place, 0);
    if (place.mirror) block_barrier();  // threads will read each other's results
  } else if (takes_vectors<Out, kVector>(place.matrix[kC], place.cols)) {
    store_rows<Out, kVector, Cut>(place, planes);
  } else {
    store_rows<Out, 1, Cut>(place, planes);
  }
  if (place.mirror) store_mirror<Out, Cut>(place, planes);
}

template <class Cut, class T, class Sum>
__device__ inline void store_planes(const TilePlace<T>& place, Sum* planes) {
  if (sizeof(T) < sizeof(Sum) && place.wide_results) {
    store_planes_as<Sum, Cut>(place, planes);
  } else {
    store_planes_as<T, Cut>(place, planes);
  }
}

}  // namespace vbgemm
