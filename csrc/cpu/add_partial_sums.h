// The second step of split-K: adds up the partial sums of all K slices, in order, and applies the epilogue as a product would.
#pragma once
#include "cpu/epilogue.h"
#include "cpu/kernels.h"

namespace vbgemm::VBGEMM_ISA {

template <class Lhs>
inline void add_partial_sums(const PartialSums& p) {
  using T = SumNumberOf<Lhs>;
  constexpr int kParts = 1 + kIsComplex<Lhs>, kWidth = kMaxVectors * kLanes<T>;
  alignas(64) T result[kWidth];
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t j = 0; j < p.cols; j += kWidth / kParts) {
      const int64_t columns = smaller(kWidth / kParts, p.cols - j), numbers = columns * kParts;
      const T* slice = static_cast<const T*>(p.first) + (i * p.pitch + j) * kParts;
      for (int64_t at = 0; at < numbers; ++at) result[at] = slice[at];
      for (int64_t left = p.slices - 1; left > 0; --left) {
        slice += p.slice_stride * kParts;
        for (int64_t at = 0; at < numbers; ++at) result[at] += slice[at];
      }
      const int64_t width = ceil_div(numbers, kLanes<T>) * kLanes<T>;
      write_block<Lhs>(p, result, width, 1, columns, i, j);
    }
  }
}

inline void add_partial_sums(const PartialSums& p) {
  for_kind(p.kind, [&](auto lhs, auto) { add_partial_sums<decltype(lhs)>(p); });
}

}  // namespace vbgemm::VBGEMM_ISA
