// Computes a sum of products. Each block of C accumulates all products in turn, or interleaved ones K part by K part; or, if there are few
// columns, each product is computed by its own algorithm and then added.
#pragma once
#include "cpu/multiply.h"

namespace vbgemm::VBGEMM_ISA {

// For few columns: each product is computed by its own algorithm, a few rows at a time, and added to a total that stays in a cache.
template <class Lhs, class Rhs>
inline void add_products(const Product& p, const Factors* more, int64_t count, bool is_transposed, Scratch& scratch) {
  using T = SumNumberOf<Lhs>;
  const int64_t rows = Scratch::kBytesTotals / (p.n * static_cast<int64_t>(sizeof(T)));
  T* const total = reinterpret_cast<T*>(scratch.totals[0]);
  T* const next = reinterpret_cast<T*>(scratch.totals[1]);
  Product piece = p;
  piece.out_dtype = accumulator_of(p.kind), piece.finish = nullptr;
  for (int64_t i = 0; i < p.m; i += rows) {
    piece.m = smaller(rows, p.m - i);
    for (int64_t index = -1; index < count; ++index) {
      if (index >= 0) with_factors(piece, more[index], is_transposed);
      piece.a = from_row(index < 0 ? p.a : piece.a, i, arithmetic_of(p.kind).lhs);
      if (index < 0) piece.k = p.k, piece.b = p.b;
      piece.c = {index < 0 ? total : next, p.n, 1};
      multiply<Lhs, Rhs>(piece, scratch);
      for (int64_t at = 0; index >= 0 && at < piece.m * p.n; ++at) total[at] += next[at];
    }
    write_rows<Lhs>(p, total, i, piece.m);
  }
}

template <class Lhs, class Rhs>
inline bool has_own_algorithm(const Product& p) {
  return !kIsComplex<Lhs> && algorithm_of<Lhs, Rhs>(p) != Algorithm::blocks;
}

// Computes a sum in the orientation and by the algorithm chosen for its products. p is already transposed if `is_transposed`.
template <class Lhs, class Rhs>
inline void multiply_oriented_sum(const Product& p, const Factors* more, int64_t count, bool is_transposed, bool in_lanes,
                                  Scratch& scratch) {
  if constexpr (!kIsComplex<Lhs>) {
    if (in_lanes) return add_products<Lhs, Rhs>(p, more, count, is_transposed, scratch);
  }
  Multiplier<Lhs, Rhs>::run_sum(p, more, count, is_transposed, scratch);
}

// Sums of products do not use streaming stores; only single products do.
template <class Lhs, class Rhs>
inline void multiply_sum(Product p, const Factors* more, int64_t count, Scratch& scratch) {
  const int lanes = kLanes<SumNumberOf<Lhs>> / (1 + kIsComplex<Lhs>);
  p.may_stream = false;
  strides_along_one(p);
  int64_t cost_untransposed = 0, cost_transposed = 0;
  bool lanes_untransposed = false, lanes_transposed = false;  // whether a product uses an algorithm for few columns
  for (int64_t index = -1; index < count; ++index) {
    Product piece = p;
    if (index >= 0) with_factors(piece, more[index], false);
    strides_along_one(piece);
    const Product other = transposed(piece);
    cost_untransposed += cost(piece, lanes), cost_transposed += cost(other, lanes);
    lanes_untransposed |= has_own_algorithm<Lhs, Rhs>(piece), lanes_transposed |= has_own_algorithm<Rhs, Lhs>(other);
  }
  const bool keeps_orientation = lanes_untransposed || (!lanes_transposed && cost_transposed >= cost_untransposed);
  if (keeps_orientation) return multiply_oriented_sum<Lhs, Rhs>(p, more, count, false, lanes_untransposed, scratch);
  Finish finish;
  multiply_oriented_sum<Rhs, Lhs>(transposed(p, finish), more, count, true, lanes_transposed, scratch);
}

inline void multiply_sum(const Product& p, const Factors* more, int64_t count, Scratch& scratch) {
  for_kind(p.kind, [&](auto lhs, auto rhs) { multiply_sum<decltype(lhs), decltype(rhs)>(p, more, count, scratch); });
}

}  // namespace vbgemm::VBGEMM_ISA
