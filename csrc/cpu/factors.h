// Variants of a product: transposed, with other factors, or for a range of K.
#pragma once
#include "cpu/kernels.h"
#include "cpu/streaming_stores.h"

namespace vbgemm::VBGEMM_ISA {

// c = a b is equivalent to c' = b' a', with the same sums and therefore the same bits.
inline Matrix transposed(const Matrix& x) { return {x.data, x.col_stride, x.row_stride}; }
__attribute__((always_inline)) inline Product transposed(const Product& p) {
  const Kind kind = kind_of(arithmetic_of(p.kind).rhs, arithmetic_of(p.kind).lhs);
  return {kind,     p.out_dtype, p.n,       p.m,         p.k, transposed(p.b), transposed(p.a), transposed(p.c),
          p.finish, p.whole_n,   p.whole_m, p.may_stream};
}

// The transposed product. `finish` receives its epilogue, if it has one.
inline Product transposed(const Product& p, Finish& finish) {
  Product other = transposed(p);
  if (!p.finish) return other;
  finish = *p.finish;
  finish.source = transposed(finish.source), finish.bias = transposed(finish.bias), finish.scale = transposed(finish.scale);
  other.finish = &finish;
  return other;
}

// Replaces the factors of a product, which is transposed if `is_transposed`.
inline void with_factors(Product& p, const Factors& factors, bool is_transposed) {
  p.k = factors.k;
  p.a = is_transposed ? transposed(factors.b) : factors.a, p.b = is_transposed ? transposed(factors.a) : factors.b;
}

// The stride along a dimension of length 1 has no meaning and may be replaced by the one that is easiest to read. The dimension is the
// whole problem's: strides decide which code computes a product, and that must not depend on how the problem is tiled.
inline void strides_along_one(Product& p) {
  if (p.k == 1) p.a.col_stride = p.b.row_stride = 1;
  if (p.whole_n == 1) p.b.col_stride = p.c.col_stride = 1;
  if (p.whole_m == 1) p.a.row_stride = p.c.row_stride = 1;
}

// The product restricted to `count` K elements from `begin` on.
inline Product part_along_k(Product p, int64_t begin, int64_t count) {
  const Arithmetic& arithmetic = arithmetic_of(p.kind);
  p.a = transposed(from_row(transposed(p.a), begin, arithmetic.lhs)), p.b = from_row(p.b, begin, arithmetic.rhs);
  p.k = count;
  return p;
}

// Interleaved products that span at least this many bytes along K are read from memory, and compute this much of K at a time: 128 rows of 7
// components of 128 float32 are 459 KB. Measured on two EPYC cores with 1 MB of level-2 cache each (2026-11-27, docs/design/cpu.md, P12);
// not measured elsewhere.
inline constexpr int64_t kFromMemory = 4 << 20, kPartOfInterleaved = 128;

// Whether the factors of p and of `more` are interleaved in memory, as the components of irreps are: a cache line then has elements of
// several products. If they are read from memory, all products advance along K together, so that each line is read once instead of once per
// product. The answer must be the same for all tiles and for the transposed product, because the order of additions depends on it: it only
// uses K, strides, and distances that no tile changes.
inline bool are_interleaved(const Product& p, const Factors* more, int64_t count, bool is_transposed) {
  const auto interleave_in_memory = [](const Matrix& x, const Matrix& y, int64_t bytes) {
    const int64_t distance = magnitude(static_cast<const char*>(y.data) - static_cast<const char*>(x.data));
    const bool same_strides = x.row_stride == y.row_stride && x.col_stride == y.col_stride;
    return same_strides && distance < smaller(magnitude(x.row_stride), magnitude(x.col_stride)) * bytes;
  };
  const int64_t a_bytes = bytes_of(arithmetic_of(p.kind).lhs), b_bytes = bytes_of(arithmetic_of(p.kind).rhs);
  const int64_t a_span = p.k * magnitude(p.a.col_stride) * a_bytes, b_span = p.k * magnitude(p.b.row_stride) * b_bytes;
  bool found = count > 0 && p.k > kPartOfInterleaved && (a_span >= kFromMemory || b_span >= kFromMemory);
  for (int64_t i = 0; i < count && found; ++i) {
    Product piece = p;
    with_factors(piece, more[i], is_transposed);
    found = piece.k == p.k && interleave_in_memory(p.a, piece.a, a_bytes) && interleave_in_memory(p.b, piece.b, b_bytes);
  }
  return found;
}

}  // namespace vbgemm::VBGEMM_ISA
