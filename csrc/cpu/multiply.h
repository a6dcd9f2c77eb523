// A product of any size from micro-kernels:
//
//   for each block of C that fits in scratch memory
//     for each part of K                          all but the last leave their sums in scratch
//       (copy A's block)                          stays in the level-2 cache
//       for each panel of B, a few vectors wide   (packed) stays in the level-1 cache
//         for each group of rows: micro-kernel
#pragma once
#include "cpu/epilogue.h"
#include "cpu/kernels.h"
#include "cpu/micro_kernel.h"
#include "cpu/pack.h"

namespace vbgemm::VBGEMM_ISA {

// One product of `In` elements, each kParts numbers, computed in numbers of type T.
template <class In, class T, bool kComplex>
class Multiplier {
 public:
  Multiplier(const Product& p, Scratch& scratch)
      : p_(p),
        a_(static_cast<const In*>(p.a.data)),
        b_(static_cast<const In*>(p.b.data)),
        copy_of_a_(reinterpret_cast<T*>(scratch.a)),
        packed_b_(reinterpret_cast<T*>(scratch.b)),
        sums_(reinterpret_cast<T*>(scratch.sums)) {}

  void run() {
    const int64_t rows = smaller(p_.m, kMaxRowsA);
    const int64_t columns = Scratch::kBytesSums / (rows * kParts * kSize) / kMaxWidth * kMaxWidth / kParts;
    for (int64_t i = 0; i < p_.m; i += rows) {
      for (int64_t j = 0; j < p_.n; j += columns) block({i, j, smaller(rows, p_.m - i), smaller(columns, p_.n - j)});
    }
  }

 private:
  static constexpr int kParts = kComplex ? 2 : 1, kSize = sizeof(T), kWidth = kLanes<T>, kMaxWidth = kMaxVectors * kWidth;
  static constexpr bool kConverts = sizeof(In) != sizeof(T);
  static constexpr int64_t kMaxK = 384, kMaxRowsA = Scratch::kBytesA / (kMaxK * kParts * kSize);
  static constexpr int64_t kFarApart = 256 << 10;
  static_assert(kMaxK * kMaxVectors * kVectorBytes <= Scratch::kBytesB);
  static_assert(kMaxRowsA * kParts * kMaxWidth * kSize <= Scratch::kBytesSums);
  using Micros = MicroKernels<T, kComplex>;

  struct Block {
    int64_t i, j, m, n;
  };
  struct PartOfK {
    int64_t begin, count;
    bool first, last;
  };

  void block(const Block& block) {
    const int64_t most = part_of_k(block), parts = p_.k > most ? ceil_div(p_.k, most) : 1, step = ceil_div(p_.k, parts);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = part * step;
      multiply_part(block, {begin, smaller(step, p_.k - begin), part == 0, part == parts - 1});
    }
  }

  // A wide B that few rows of A use comes from memory: read it almost in the order in which it lies there.
  int64_t part_of_k(const Block& block) const {
    const bool streams = block.m <= Micros::max_rows(4) && p_.b.col_stride == 1 && block.n >= 8 * kWidth;
    return streams ? 8 : kMaxK;
  }

  void multiply_part(const Block& block, const PartOfK& k) {
    const In* a = a_ + (block.i * p_.a.row_stride + k.begin * p_.a.col_stride) * kParts;
    Micro<T> micro{};
    micro.k = k.count;
    if (copies_a(block)) {
      const Strides strides = copy_block<kParts>(a, p_.a.row_stride, p_.a.col_stride, block.m, k.count, copy_of_a_);
      micro.a = copy_of_a_, micro.a_row = strides.row, micro.a_k = strides.k;
    } else {
      micro.a = reinterpret_cast<const T*>(a), micro.a_row = p_.a.row_stride * kParts, micro.a_k = p_.a.col_stride * kParts;
    }
    micro.sums_row = ceil_div(block.n * kParts, kWidth) * kWidth;
    int64_t vectors_left = micro.sums_row / kWidth;
    for (int64_t j = 0; j < block.n;) {
      const int vectors = panel_vectors(vectors_left, block.m);
      const int64_t columns = smaller(vectors * kWidth / kParts, block.n - j);
      multiply_panel(block, k, j, columns, vectors, micro);
      j += columns, vectors_left -= vectors;
    }
  }

  // Two vectors a panel use registers best; a last one of three beats two and one, and very few rows leave room for four.
  static int panel_vectors(int64_t left, int64_t m) {
    if (m <= Micros::max_rows(4)) return static_cast<int>(smaller(left, 4));
    return static_cast<int>(left == 3 ? 3 : smaller(left, 2));
  }

  void multiply_panel(const Block& block, const PartOfK& k, int64_t j, int64_t columns, int vectors, Micro<T> micro) {
    const In* b = b_ + (k.begin * p_.b.row_stride + (block.j + j) * p_.b.col_stride) * kParts;
    const int64_t width = vectors * kWidth;
    micro.tail = static_cast<int>(columns * kParts - (width - kWidth));
    if (packs_b(block, k, micro.tail)) {
      pack_panel<kParts>(b, p_.b.row_stride, p_.b.col_stride, k.count, columns, packed_b_, width);
      micro.b = packed_b_, micro.b_k = width, micro.masked = false;
    } else {
      micro.b = reinterpret_cast<const T*>(b), micro.b_k = p_.b.row_stride * kParts, micro.masked = true;
    }

    // Groups of rows as even as can be: 16 rows are 6, 5 and 5, which hide latencies better than 6, 6 and 4.
    const int64_t groups = ceil_div(block.m, Micros::max_rows(vectors)), base = block.m / groups, larger = block.m % groups;
    const bool in_place = !kConverts && !p_.finish && p_.c.col_stride == 1;
    alignas(64) T result[kMaxSums * kWidth];
    for (int64_t group = 0, i = 0; group < groups; ++group) {
      const int64_t rows = base + (group < larger), c = (block.i + i) * p_.c.row_stride + (block.j + j) * p_.c.col_stride;
      T* sums = sums_ + i * kParts * micro.sums_row + j * kParts;
      micro.sums_in = k.first ? nullptr : sums;
      micro.sums_out = k.last ? nullptr : sums;
      micro.c = in_place ? static_cast<T*>(p_.c.data) + c * kParts : result;
      micro.c_row = in_place ? p_.c.row_stride * kParts : width;
      kMicroKernels<T, kComplex>.kernel[vectors - 1][rows - 1](micro);
      if (k.last && !in_place) write_result(result, width, rows, columns, block.i + i, block.j + j);
      micro.a += rows * micro.a_row, i += rows;
    }
  }

  void write_result(T* result, int64_t width, int64_t rows, int64_t columns, int64_t i, int64_t j) {
    if (p_.out_dtype == p_.dtype) {
      write_result<In>(result, width, rows, columns, i, j);
    } else {
      write_result<T>(result, width, rows, columns, i, j);
    }
  }
  template <class Out>
  void write_result(T* result, int64_t width, int64_t rows, int64_t columns, int64_t i, int64_t j) {
    if (p_.finish) finish_block<kParts, Out>(*p_.finish, result, width, rows, columns, i, j);
    Out* c = static_cast<Out*>(p_.c.data) + (i * p_.c.row_stride + j * p_.c.col_stride) * kParts;
    scatter<kParts>(result, width, rows, columns, c, p_.c.row_stride, p_.c.col_stride);
  }

  // Rows a multiple of 1 KB apart fall into few sets of the caches and evict each other.
  static bool collides(int64_t stride) { return magnitude(stride * kParts * kSize) % 1024 == 0; }

  // A is read row by row in small pieces, which works well in place but for columns that collide.
  bool copies_a(const Block& block) const {
    return kConverts || (p_.a.col_stride != 1 && collides(p_.a.col_stride) && block.n >= 4 * kWidth);
  }
  // Packing B pays where enough rows use it and its rows either collide or are spread over more than a part of the level-2 cache.
  bool packs_b(const Block& block, const PartOfK& k, int tail) const {
    if (kConverts || p_.b.col_stride != 1 || (!kMaskedLoads && tail < kWidth)) return true;
    const int64_t span = k.count * magnitude(p_.b.row_stride) * kParts * kSize;
    return block.m > 32 && (span >= kFarApart || collides(p_.b.row_stride));
  }

  const Product& p_;
  const In* a_;
  const In* b_;
  T* copy_of_a_;
  T* packed_b_;
  T* sums_;
};

// c = a b is also c' = b' a', with the same sums and so the same bits.
inline Matrix transposed(const Matrix& x) { return {x.data, x.col_stride, x.row_stride}; }
inline Product transposed(const Product& p) {
  return {p.dtype, p.out_dtype, p.n, p.m, p.k, transposed(p.b), transposed(p.a), transposed(p.c), p.finish};
}

// What a product costs, in vector multiply-adds: vectors run along the columns of B and C.
inline int64_t cost(const Product& p, int lanes) {
  const int64_t sums = p.m * ceil_div(p.n, lanes) * p.k;
  const int64_t packing = p.b.col_stride == 1 ? 0 : p.n * p.k * (p.b.row_stride == 1 ? 1 : 4);
  const int64_t storing = p.c.col_stride == 1 ? 0 : p.m * p.n * 4;
  return sums + packing + storing;
}

template <class In, class T, bool kComplex>
inline void multiply(Product p, Scratch& scratch) {
  // The stride along a dimension of length 1 means nothing: take the one that is easiest to read.
  if (p.n == 1) p.b.col_stride = p.c.col_stride = 1;
  if (p.m == 1) p.a.row_stride = p.c.row_stride = 1;
  const int lanes = kLanes<T> / (kComplex ? 2 : 1);
  const Product other = transposed(p);
  if (cost(other, lanes) >= cost(p, lanes)) return Multiplier<In, T, kComplex>(p, scratch).run();
  if (!p.finish) return Multiplier<In, T, kComplex>(other, scratch).run();
  Finish finish = *p.finish;
  finish.source = transposed(finish.source), finish.bias = transposed(finish.bias);
  Product finished = other;
  finished.finish = &finish;
  Multiplier<In, T, kComplex>(finished, scratch).run();
}

inline void multiply(const Product& p, Scratch& scratch) {
  switch (p.dtype) {
    case DType::f32: return multiply<float, float, false>(p, scratch);
    case DType::f64: return multiply<double, double, false>(p, scratch);
    case DType::c64: return multiply<float, float, true>(p, scratch);
    case DType::c128: return multiply<double, double, true>(p, scratch);
    case DType::bf16: return multiply<Bf16, float, false>(p, scratch);
    case DType::f16: return multiply<F16, float, false>(p, scratch);
  }
}

}  // namespace vbgemm::VBGEMM_ISA
