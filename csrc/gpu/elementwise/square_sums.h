// Sums of the squares of many arrays of different sizes, in two launches. Each thread block of the first launch sums a chunk of one array;
// each thread block of the second adds up the chunks of one array. The order of the additions depends only on the sizes. A sum is infinite
// if finite elements overflow, and NaN if an element is infinite.
#pragma once
#include "gpu/tile/chunks.h"

namespace vbgemm {

// Returns, in thread 0, the sum of all threads' addends.
template <class Sum>
__device__ inline Sum sum_of_block(Sum addend, Sum (&shared)[kArrayThreads]) {
  const int thread = thread_index();
  shared[thread] = addend;
  for (int half = kArrayThreads / 2; half > 0; half /= 2) {
    block_barrier();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  return shared[thread];  // the thread's own element; only thread 0 may read it without another barrier
}

template <class T>
struct SquareSums {
  using Sum = Accumulator<T>;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T)), kChunk = chunk_of(sizeof(T)), kMinBlocks = 4;
  struct Shared {
    Sum sums[kArrayThreads];
  };
  using Elements = Vector<T, kVector>[kVectorsInFlight];  // a thread's vectors; zeros after the end of the chunk

  __device__ __forceinline__ static void run(const SquareSumParameters& parameters, Shared& shared) {
    await_previous_kernel();
    const auto [member, count, first] = chunk_of_block<kChunk>(parameters.arrays);
    const T* const x = static_cast<const T*>(parameters.arrays.member[member].data) + first;
    Elements elements;
    load(x, reinterpret_cast<uintptr_t>(x) % kVectorBytes == 0 ? count / kVector * kVector : 0, count, elements);
    const Sum sum = sum_of_block(sum_of(elements), shared.sums);
    if (thread_index() == 0) static_cast<Sum*>(parameters.partials)[block_index()] = sum;
  }

  // The offset of the thread's i-th vector in the chunk.
  __device__ static int place(int i) { return (i * kArrayThreads + thread_index()) * kVector; }

  // Loads a thread's elements of the chunk. The chunk's first `whole` elements are loaded as vectors; this does not change which elements a
  // thread gets.
  __device__ static void load(const T* x, int whole, int count, Elements& pieces) {
#pragma unroll
    for (int i = 0; i < kVectorsInFlight; ++i) {
      pieces[i] = {};
      if (place(i) < whole) load_bytes<kVectorBytes>(&pieces[i], x + place(i));
    }
    if (whole < count) {
#pragma unroll
      for (int i = 0; i < kVectorsInFlight; ++i) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          const int at = place(i) + e;
          if (at >= whole && at < count) pieces[i].element[e] = x[at];
        }
      }
    }
  }

  __device__ static Sum sum_of(const Elements& pieces) {
    Sum sums[kVector] = {};
#pragma unroll
    for (const auto& piece : pieces) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const Sum x = widen(piece.element[e]);
        sums[e] = multiply_add(x, x, multiply_add(x, Sum{0}, sums[e]));  // an infinite element makes the sum NaN
      }
    }
#pragma unroll
    for (int half = kVector / 2; half > 0; half /= 2) {
#pragma unroll
      for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
    }
    return sums[0];
  }
};

// Sums in float64, because an array with many chunks makes each thread add many of them.
template <class Sum>
struct AddSquareSums {
  static constexpr int kMinBlocks = 4;
  struct Shared {
    double sums[kArrayThreads];
  };

  __device__ __forceinline__ static void run(const SquareSumParameters& parameters, Shared& shared) {
    await_previous_kernel();
    const auto member = static_cast<int>(block_index());
    const int32_t* const blocks = &parameters.arrays.first_block[member];
    double mine = 0;
    for (int i = blocks[0] + thread_index(); i < blocks[1]; i += kArrayThreads) mine += static_cast<const Sum*>(parameters.partials)[i];
    const double sum = sum_of_block(mine, shared.sums);
    if (thread_index() == 0) static_cast<Sum*>(parameters.sums)[member] = static_cast<Sum>(sum);
  }
};

}  // namespace vbgemm
