// Writes a tile's sums from shared memory to C: the shares of K are added in their order, then come epilogue and type.
#pragma once
#include "tensor_cut.h"
#include "tile_store.h"

namespace vbgemm {

// A block's sums, seen by one thread: neighbouring threads have neighbouring elements of a row, and each keeps to its own.
template <class Cut>
struct Planes {
  using Sum = typename Cut::Sum;
  static constexpr int kElements = Cut::kRows * Cut::kCols / Cut::kThreads;

  int thread;
  Sum* first;

  // The thread's n-th element.
  __device__ Sum& element(int n) const { return first[row(n) * Cut::kSumPitch + col(n)]; }

  // Calls action(row, col) with its place in the tile, if the tile reaches that far.
  template <class T, class Action>
  __device__ void locate(const TilePlace<T>& place, int, int n, const Action& action) const {
    if (row(n) < place.rows && col(n) < place.cols) action(row(n), col(n));
  }

  // Adds up the shares of K.
  __device__ void reduce() const {
    if constexpr (Cut::kSplit > 1) {
#pragma unroll 4
      for (int n = 0; n < kElements; ++n) {
        Sum* const x = &element(n);
        Sum sum = *x;
#pragma unroll
        for (int share = 1; share < Cut::kSplit; ++share) sum += x[share * Cut::kPlane];
        *x = sum;
      }
    }
  }

 private:
  __device__ int row(int n) const { return (n * Cut::kThreads + thread) / Cut::kCols; }
  __device__ int col(int n) const { return (n * Cut::kThreads + thread) % Cut::kCols; }
};

template <class Out, class Cut, class T, class Sum>
__device__ inline void store_planes_as(const TilePlace<T>& place, Sum* planes) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum)), kAcross = Cut::kCols / kVector;
  const MatrixView& c = place.matrix[kC];
  const int thread = thread_index();
  if (place.fused || !takes_vectors<Out, kVector>(c, place.cols)) {
    const Planes<Cut> mine{thread, planes};
    mine.reduce();
    if (place.fused) apply_epilogue<Out>(mine, place, 0);
    write_elements<Out>(mine, place, 0);
    return;
  }
#pragma unroll 4
  for (int i = thread; i < Cut::kRows * kAcross; i += Cut::kThreads) {
    const int row = i / kAcross, col = i % kAcross * kVector;
    if (row >= place.rows || col >= place.cols) continue;
    Vector<Sum, kVector> sum = *reinterpret_cast<const Vector<Sum, kVector>*>(planes + row * Cut::kSumPitch + col);
#pragma unroll
    for (int share = 1; share < Cut::kSplit; ++share) {
      const auto more = *reinterpret_cast<const Vector<Sum, kVector>*>(planes + share * Cut::kPlane + row * Cut::kSumPitch + col);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum.element[v] += more.element[v];
    }
    Vector<Out, kVector> result;
#pragma unroll
    for (int v = 0; v < kVector; ++v) narrow(sum.element[v], result.element[v]);
    *reinterpret_cast<Vector<Out, kVector>*>(c.at<Out>(row, col)) = result;
  }
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
