// Weighted sums of arrays, alpha x + beta y, for many arrays of different sizes in one launch: each thread block takes a chunk of one
// array. The results may have another dtype than the operands.
#pragma once
#include "gpu/tile/chunks.h"
#include "gpu/tile/epilogue.h"

namespace vbgemm {

template <class T, class Result = T>
struct AddScaled {
  using Sum = Accumulator<T>;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T)), kChunk = chunk_of(sizeof(T));

  __device__ __forceinline__ static void run(const AdditionParameters& parameters) {
    await_previous_kernel();
    const auto [member, count, first] = chunk_of_block<kChunk>(parameters.additions);
    const Addition& addition = parameters.additions.member[member];
    const Scales scales{static_cast<const Sum*>(parameters.alpha)[member], static_cast<const Sum*>(parameters.beta)[member]};
    const T* const x = static_cast<const T*>(addition.x) + first;
    const T* const y = is_zero(scales.beta) ? x : static_cast<const T*>(addition.y) + first;  // y is not read if beta is 0
    Result* const result = static_cast<Result*>(addition.result) + first;
    const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
    const int whole = (address(x) | address(y) | address(result)) % kVectorBytes == 0 ? count / kVector * kVector : 0;
    add<kVector>(x, y, result, whole, scales);
    add<1>(x + whole, y + whole, result + whole, count - whole, scales);
  }

 private:
  struct Scales {
    Sum alpha, beta;
  };

  // Adds `count` elements, a multiple of kWidth, kWidth adjacent elements at a time. An element is written by the thread that read it,
  // after reading, so that the result may be an operand.
  template <int kWidth>
  __device__ static void add(const T* x, const T* y, Result* result, int count, const Scales& scales) {
    using OperandVector = Vector<T, kWidth>;
    using ResultVector = Vector<Result, kWidth>;
    constexpr int kStep = kArrayThreads * kWidth;
    for (int from = thread_index() * kWidth; from < count; from += kStep * kVectorsInFlight) {
      OperandVector a[kVectorsInFlight], b[kVectorsInFlight];
#pragma unroll
      for (int i = 0; i < kVectorsInFlight; ++i) {
        const int at = from + i * kStep;
        if (at >= count) continue;
        a[i] = *reinterpret_cast<const OperandVector*>(x + at);
        b[i] = *reinterpret_cast<const OperandVector*>(y + at);
      }
#pragma unroll
      for (int i = 0; i < kVectorsInFlight; ++i) {
        const int at = from + i * kStep;
        if (at < count) *reinterpret_cast<ResultVector*>(result + at) = sum_of(a[i], b[i], scales);
      }
    }
  }

  template <int kWidth>
  __device__ static Vector<Result, kWidth> sum_of(const Vector<T, kWidth>& a, const Vector<T, kWidth>& b, const Scales& scales) {
    Vector<Result, kWidth> sum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const Sum addend = is_zero(scales.beta) ? nothing<Sum>() : scales.beta * widen(b.element[i]);
      narrow(multiply_add(scales.alpha, widen(a.element[i]), addend), sum.element[i]);
    }
    return sum;
  }
};

}  // namespace vbgemm
