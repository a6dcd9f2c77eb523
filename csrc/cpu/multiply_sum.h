// A sum of products: block by block of C each adds to the sums of those before it, or, where there are few columns, each is computed its
// own way and added.
#pragma once
#include "cpu/multiply.h"

namespace vbgemm::VBGEMM_ISA {

// Products of few columns go each its own way, some rows at a time, and are added up where they stay in a cache.
template <class In, class T>
inline void add_products(const Product& p, const Factors* more, int64_t count, bool is_turned, Scratch& scratch) {
  const int64_t width = ceil_div(p.n, kLanes<T>) * kLanes<T>, rows = Scratch::kBytesTotals / (width * static_cast<int64_t>(sizeof(T)));
  T* const total = reinterpret_cast<T*>(scratch.totals[0]);
  T* const next = reinterpret_cast<T*>(scratch.totals[1]);
  Product piece = p;
  piece.out_dtype = accumulator_of(p.dtype), piece.finish = nullptr;
  for (int64_t i = 0; i < p.m; i += rows) {
    piece.m = smaller(rows, p.m - i);
    for (int64_t index = -1; index < count; ++index) {
      if (index >= 0) with_factors(piece, more[index], is_turned);
      piece.a = from_row(index < 0 ? p.a : piece.a, i, p.dtype);
      if (index < 0) piece.k = p.k, piece.b = p.b;
      piece.c = {index < 0 ? total : next, width, 1};
      multiply<In, T, false>(piece, scratch);
      for (int64_t at = 0; index >= 0 && at < piece.m * width; ++at) total[at] += next[at];
    }
    write_block<1, In>(p, total, width, piece.m, p.n, i, 0);
  }
}

// Stores past the caches are for single products.
template <class In, class T, bool kComplex>
inline void multiply_sum(Product p, const Factors* more, int64_t count, Scratch& scratch) {
  using Mine = Multiplier<In, T, kComplex>;
  const int lanes = kLanes<T> / (kComplex ? 2 : 1);
  p.past_caches = false;
  strides_along_one(p);
  int64_t costs[2] = {};  // as it is, and turned
  bool in_lanes[2] = {};  // is there a product that has a way for few columns?
  for (int64_t index = -1; index < count; ++index) {
    Product piece = p;
    if (index >= 0) with_factors(piece, more[index], false);
    strides_along_one(piece);
    const Product ways[2] = {piece, transposed(piece)};
    for (int way = 0; way < 2; ++way) costs[way] += cost(ways[way], lanes), in_lanes[way] |= sums_in_lanes<In, T, kComplex>(ways[way]);
  }
  const bool is_turned = in_lanes[0] || in_lanes[1] ? !in_lanes[0] : costs[1] < costs[0];
  Finish finish;
  const Product product = is_turned ? turned(p, finish) : p;
  if constexpr (!kComplex) {
    if (in_lanes[is_turned]) return add_products<In, T>(product, more, count, is_turned, scratch);
  }
  Mine::run_sum(product, more, count, is_turned, scratch);
}

inline void multiply_sum(const Product& p, const Factors* more, int64_t count, Scratch& scratch) {
  for_dtype(p.dtype,
            [&](auto in, auto number, auto complex) { multiply_sum<decltype(in), decltype(number), complex()>(p, more, count, scratch); });
}

}  // namespace vbgemm::VBGEMM_ISA
