// Two averages of many arrays of different sizes, and the sums of the second average's squares, in one pass: average = alpha x + beta y,
// and lookahead = gamma x + delta average. If gamma is 0, x is not read for `lookahead`: Inf or NaN in x reach it only through the average.
// Each thread block takes a chunk of one array, and AddSquareSums adds up the chunks' sums.
#pragma once
#include "gpu/elementwise/square_sums.h"

namespace vbgemm {

template <class T>
struct Averages {
  using Squares = SquareSums<T>;
  using Sum = Accumulator<T>;
  using Shared = typename Squares::Shared;
  static constexpr int kVector = Squares::kVector, kMinBlocks = sizeof(T) == 2 ? 2 : 4;  // with 3, 16-bit elements spill

  // An element is written by the thread that read it, after reading, so that an average may be an operand.
  __device__ __forceinline__ static void run(const AverageParameters& parameters, Shared& shared) {
    await_previous_kernel();
    const auto [member, count, first] = chunk_of_block<Squares::kChunk>(parameters.averages);
    const Average& arrays = parameters.averages.member[member];
    const T* const x = static_cast<const T*>(arrays.x) + first;
    const T* const y = static_cast<const T*>(arrays.y) + first;
    T* const average = static_cast<T*>(arrays.average) + first;
    T* const lookahead = static_cast<T*>(arrays.lookahead) + first;
    const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
    const bool aligned = (address(x) | address(y) | address(average) | address(lookahead)) % kVectorBytes == 0;
    const int whole = aligned ? count / kVector * kVector : 0;
    typename Squares::Elements a, b;
    Squares::load(x, whole, count, a);
    Squares::load(y, whole, count, b);
    const Sum* const scales = static_cast<const Sum*>(parameters.scales);
    const Sum alpha = scales[0], beta = scales[1], gamma = scales[2], delta = scales[3];
    const bool adds_x = gamma != 0;
#pragma unroll
    for (int i = 0; i < kVectorsInFlight; ++i) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        narrow(multiply_add(alpha, widen(a[i].element[e]), beta * widen(b[i].element[e])), b[i].element[e]);
        const Sum added = adds_x ? widen(a[i].element[e]) : Sum{0};
        narrow(multiply_add(gamma, added, delta * widen(b[i].element[e])), a[i].element[e]);
      }
    }
    store(average, whole, count, b);
    store(lookahead, whole, count, a);
    const Sum sum = sum_of_block(Squares::sum_of(a), shared.sums);
    if (thread_index() == 0) static_cast<Sum*>(parameters.partials)[block_index()] = sum;
  }

 private:
  __device__ static void store(T* to, int whole, int count, const typename Squares::Elements& elements) {
#pragma unroll
    for (int i = 0; i < kVectorsInFlight; ++i) {
      const int from = Squares::place(i);
      if (from < whole) {
        store_bytes<kVectorBytes>(to + from, &elements[i]);
        continue;
      }
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (from + e < count) to[from + e] = elements[i].element[e];
      }
    }
  }
};

}  // namespace vbgemm
