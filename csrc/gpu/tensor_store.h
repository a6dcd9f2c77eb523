// Writes a tile's sums from shared memory to C: the shares of K are added in their order, then come epilogue and type.
#pragma once
#include "finish.h"
#include "tensor_cut.h"

namespace vbgemm {

// A block's sums, seen by one thread: kWidth neighbours of every kStep-th row, the same in all; neighbouring threads have neighbours.
template <class Cut, int kWidth>
struct Planes {
  using Sum = typename Cut::Sum;
  static constexpr int kAcross = Cut::kCols / kWidth, kStep = Cut::kThreads / kAcross;
  static_assert(Cut::kThreads % kAcross == 0 && Cut::kRows % kStep == 0);

  int row, col;
  Sum* first;

  __device__ Planes(int thread, Sum* planes)
      : row(thread / kAcross), col(thread % kAcross * kWidth), first(planes + row * Cut::kSumPitch + col) {}

  // The thread's n-th elements in the first plane.
  __device__ Vector<Sum, kWidth>& elements(int n) const {
    return *reinterpret_cast<Vector<Sum, kWidth>*>(first + n * kStep * Cut::kSumPitch);
  }

  // How many of the thread's rows the tile has.
  template <class T>
  __device__ int count(const TilePlace<T>& place) const {
    return col < place.cols ? (place.rows - row + kStep - 1) / kStep : 0;
  }
};

// Elements of the first plane, to which those of the other shares of K are added.
template <class Cut, int kWidth, class Sum>
__device__ inline Vector<Sum, kWidth> total(const Vector<Sum, kWidth>& first, int shares) {
  Vector<Sum, kWidth> sum = first;
  if (Cut::kSplit == 1) return sum;
#pragma unroll
  for (int share = 1; share < Cut::kSplit; ++share) {
    if (share >= shares) break;
    const auto& more = *reinterpret_cast<const Vector<Sum, kWidth>*>(first.element + share * Cut::kPlane);
#pragma unroll
    for (int v = 0; v < kWidth; ++v) sum.element[v] += more.element[v];
  }
  return sum;
}

// What the epilogue makes of the sums, into the first plane.
template <class Out, int kWidth, class Cut, class T, class Sum>
__device__ inline void finish_sums(const TilePlace<T>& place, Sum* planes) {
  using Sums = Vector<Sum, kWidth>;
  using OutVector = Vector<Out, kWidth>;
  constexpr int kTogether = kWidth == 1 ? 32 / static_cast<int>(sizeof(Sum)) : 4;  // loads that are under way together
  const Planes<Cut, kWidth> mine(thread_index(), planes);
  const int count = mine.count(place);
  const MatrixView source = place.matrix[kSource], bias = place.matrix[kBias];
  const Sum alpha = place.alpha, beta = place.beta;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kTogether) {
    const int row = mine.row + begin * mine.kStep;
    Sums rest[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
#pragma unroll
      for (Sum& x : rest[n].element) x = nothing<Sum>();
      if (!bias.first || begin + n >= count) continue;
      const OutVector read = *reinterpret_cast<const OutVector*>(bias.template at<Out>(row + n * mine.kStep, mine.col));
#pragma unroll
      for (int v = 0; v < kWidth; ++v) rest[n].element[v] = widen(read.element[v]);
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      if (!source.first || begin + n >= count) continue;
      const OutVector read = *reinterpret_cast<const OutVector*>(source.template at<Out>(row + n * mine.kStep, mine.col));
#pragma unroll
      for (int v = 0; v < kWidth; ++v) rest[n].element[v] = multiply_add(beta, widen(read.element[v]), rest[n].element[v]);
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      if (begin + n >= count) break;
      Sums sum = total<Cut>(mine.elements(begin + n), Cut::kSplit);
#pragma unroll
      for (int v = 0; v < kWidth; ++v) sum.element[v] = multiply_add(alpha, sum.element[v], rest[n].element[v]);
      mine.elements(begin + n) = sum;
    }
  }
  if (place.activation == Activation::none) return;
#pragma unroll 1
  for (int n = 0; n < count * kWidth; ++n) {
    Sum& x = mine.elements(n / kWidth).element[n % kWidth];
    x = activate(place.activation, x);
  }
}

template <class Out, int kWidth, class Cut, class T, class Sum>
__device__ inline void store_rows(const TilePlace<T>& place, Sum* planes, int shares) {
  using OutVector = Vector<Out, kWidth>;
  const Planes<Cut, kWidth> mine(thread_index(), planes);
  const MatrixView& c = place.matrix[kC];
  const int count = mine.count(place);
  const int64_t step = int64_t{mine.kStep} * c.row_stride;
  Out* to = c.at<Out>(mine.row, mine.col);
#pragma unroll 4
  for (int n = 0; n < count; ++n, to += step) {
    const auto sum = total<Cut>(mine.elements(n), shares);
    OutVector result;
#pragma unroll
    for (int v = 0; v < kWidth; ++v) narrow(sum.element[v], result.element[v]);
    *reinterpret_cast<OutVector*>(to) = result;
  }
}

// The tile's transpose. Neighbouring threads have neighbouring rows: the elements of a row of the image.
template <class Out, class Cut, class T, class Sum>
__device__ inline void store_mirror(const TilePlace<T>& place, const Sum* planes, int shares) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  const int row = thread_index() % Cut::kRows;
  const int64_t row_stride = place.matrix[kC].row_stride;
  Out* const to = static_cast<Out*>(place.mirror) + row * place.matrix[kC].col_stride;
  const int cols = row < place.rows ? place.cols : 0;
  for (int col = thread_index() / Cut::kRows * kVector; col < cols; col += Cut::kThreads / Cut::kRows * kVector) {
    const auto sum = total<Cut>(*reinterpret_cast<const Vector<Sum, kVector>*>(planes + row * Cut::kSumPitch + col), shares);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (col + v < cols) narrow(sum.element[v], to[(col + v) * row_stride]);
    }
  }
}

template <class Out, int kWidth, class Cut, class T, class Sum>
__device__ inline void store_by(const TilePlace<T>& place, Sum* planes) {
  const int shares = place.fused ? 1 : Cut::kSplit;  // an epilogue leaves its results in the first plane
  if (place.fused) finish_sums<Out, kWidth, Cut>(place, planes);
  store_rows<Out, kWidth, Cut>(place, planes, shares);
}

template <class Out, class Cut, class T, class Sum>
__device__ inline void store_planes_as(const TilePlace<T>& place, Sum* planes) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  const auto takes = [&](const MatrixView& x) { return !x.first || takes_vectors<Out, kVector>(x, place.cols); };
  if (takes(place.matrix[kC]) && (!place.fused || (takes(place.matrix[kSource]) && takes(place.matrix[kBias])))) {
    store_by<Out, kVector, Cut>(place, planes);
  } else {
    store_by<Out, 1, Cut>(place, planes);
  }
  if (!place.mirror) return;
  if (place.fused) block_barrier();  // threads will read each other's results
  store_mirror<Out, Cut>(place, planes, place.fused ? 1 : Cut::kSplit);
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
