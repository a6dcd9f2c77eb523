// Products whose rows, of A and of C, are shorter than a vector, and which have many of them: an outer product with a short row, or a map
// of three coordinates to three others.
//
// Where rows lie one behind the other, a vector of C is several of them, and each of its lanes needs one number of A a step of K, near
// those of its neighbours: a permutation of a few vectors brings them there. So A and C are read and written in whole vectors. A complex
// row is a real one twice as long, times [re im; -im re] in place of each element of B.
#pragma once
#include "cpu/convert.h"
#include "cpu/epilogue.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/past_caches.h"

namespace vbgemm::VBGEMM_ISA {

inline constexpr int kMaxShortK = 4, kMaxShortN = 7;  // of more FewColumns was as fast or faster, but of 8 columns and K = 1

// Lane l of a product's vector j of C belongs to a row and a column; rows are counted from the one to which the vector's first lane
// belongs, which is row first of the rows that fill whole vectors. In numbers.
template <class T>
struct VectorOfRows {
  VectorOfRows(int j, int n) {
    constexpr int kWidth = kLanes<T>;
    const int reciprocal = (1 << 16) / n + 1, at = j * kWidth;  // exact, as less than 2^8 is divided by less than 2^4
    const Vec<int32_t> lane = numbered(AllLanes<int32_t>{}) / kInts + at;
    first = at * reciprocal >> 16;
    const Vec<int32_t> whole = lane * reciprocal >> 16;
    row = whole - first, column = lane - whole * n;
  }

  static constexpr int kInts = sizeof(T) / sizeof(int32_t);
  int first;
  Vec<int32_t> row, column;  // of each 32 bits

  // The permutation that brings numbers there, of which a lane wants that with this index.
  static Vec<int32_t> permutation(Vec<int32_t> index) { return index * kInts + numbered(AllLanes<int32_t>{}) % kInts; }

 private:
  template <int... kLane>
  static Vec<int32_t> numbered(Lanes<kLane...>) {
    return Vec<int32_t>{kLane...};
  }
};

// Numbers from among the kVectors vectors at `from`.
template <int kVectors, class T>
inline Vec<T> permuted(const T* from, Vec<int32_t> at) {
  using Ints = Vec<int32_t>;
  const auto vector = [from](int i) { return Ints(load<Vec<T>>(from + i * kLanes<T>)); };
  if constexpr (kVectors == 1) {
    return Vec<T>(permute(vector(0), at));
  } else if constexpr (kVectors == 2) {
    return Vec<T>(permute(vector(0), vector(1), at));
  } else {
    return Vec<T>(at < 2 * kLanes<int32_t> ? permute(vector(0), vector(1), at) : permute(vector(2), vector(3), at));
  }
}

// Real products of rows x K by K x n numbers, without gaps; rows are a multiple of a vector's lanes. A vector of C needs numbers of A from
// among kVectors. streams: C is written past the caches.
template <int K, int kVectors, class T>
inline void multiply_short_rows(const T* a, int64_t rows, const T (&b)[kMaxShortK][kLanes<T>], int n, T* c, bool streams) {
  using V = Vec<T>;
  constexpr int kWidth = kLanes<T>;
  for (int j = 0; j < n; ++j) {
    const VectorOfRows<T> of_c(j, n);
    Vec<int32_t> at[K];
    V factor[K];
    for (int k = 0; k < K; ++k) {
      at[k] = of_c.permutation(of_c.row * K + k);
      factor[k] = permuted<1>(b[k], of_c.permutation(of_c.column));
    }
    const T* from = a + of_c.first * K;
    T* to = c + j * kWidth;
    for (int64_t row = 0; row < rows; row += kWidth, from += kWidth * K, to += kWidth * n) {
      V sum{};
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) sum += permuted<kVectors>(from, at[k]) * factor[k];
      streams ? stream(to, sum) : store(to, sum);
    }
  }
}

// One product of Lhs and Rhs elements, computed in numbers of type T.
template <class Lhs, class Rhs>
class ShortRows {
  using A = NumberOf<Lhs>;
  using T = SumNumberOf<Lhs>;

 public:
  // The same for all pieces of a problem.
  static bool takes(const Product& p) {
    const int64_t k = p.k * kParts, n = p.whole_n * kParts;
    const bool short_rows = k >= 1 && k <= kMaxShortK && 2 * k <= kWidth && 2 * n <= kWidth && (n <= kMaxShortN || k == 1);
    return kPermutes && short_rows && p.whole_m >= kManyVectors * kWidth && p.a.col_stride == 1 && p.a.row_stride == p.k;
  }

  ShortRows(const Product& p, Scratch& scratch)
      : k_(static_cast<int>(p.k) * kParts),
        n_(static_cast<int>(p.n) * kParts),
        copy_of_a_(reinterpret_cast<T*>(scratch.a)),
        results_(reinterpret_cast<T*>(scratch.sums)) {
    const auto* b = static_cast<const NumberOf<Rhs>*>(p.b.data);
    for (int k = 0; k < p.k; ++k) {
      for (int j = 0; j < p.n; ++j) {
        const auto* element = b + (k * p.b.row_stride + j * p.b.col_stride) * kParts;
        b_[k * kParts][j * kParts] = widen(element[0]);
        if constexpr (kParts == 2) {
          b_[2 * k][2 * j + 1] = element[1], b_[2 * k + 1][2 * j] = -element[1], b_[2 * k + 1][2 * j + 1] = element[0];
        }
      }
    }
    const int rows_of_a = kWidth % n_ == 0 ? kWidth / n_ : (kWidth - 1 + n_ - 1) / n_ + 1;  // that a vector of C can touch
    const int vectors = (rows_of_a * k_ + kWidth - 1) / kWidth;
    vectors_ = vectors <= 2 ? vectors : 4;
    reach_ = (n_ - 1) * kWidth / n_ * k_ + vectors_ * kWidth;
  }

  // Are groups of rows whole lines where C is? (Of half a line the other half would be written much later.)
  static bool writes_lines(const Product& p) { return kVectorBytes == 64 && is_in_place(p) && is_vector_aligned(p.c.data); }

  // Computes rows of the product.
  void run(const Product& p) const {
    const auto* a = static_cast<const A*>(p.a.data);
    const bool in_place = is_in_place(p), streams = goes_past_caches(p) && writes_lines(p);
    const int64_t most = streams ? kBytesOfAPiece / 64 / k_ * (64 / sizeof(T)) : kRows;
    for (int64_t i = 0; i < p.m; i += most, a += most * k_) {
      if (streams) prefetch(reinterpret_cast<const char*>(a) + kBytesAhead, most * k_ * static_cast<int64_t>(sizeof(T)));
      const int64_t rows = smaller(most, p.m - i), direct = readable(p.m - i, rows), rest = rows - direct;
      T* const to = in_place ? static_cast<T*>(p.c.data) + i * n_ : results_;
      if constexpr (!kConverts) multiply(a, direct, to, streams);
      if (rest > 0) {
        T* const of_rest = results_ + direct * n_;
        copy_run<1>(a + direct * k_, 1, rest * k_, copy_of_a_);
        multiply(copy_of_a_, ceil_div(rest, kWidth) * kWidth, of_rest, false);
        if (in_place) __builtin_memcpy(to + direct * n_, of_rest, rest * n_ * sizeof(T));
      }
      if (!in_place) write_rows<Lhs>(p, results_, i, rows);
    }
  }

 private:
  static constexpr int kParts = 1 + kIsComplex<Lhs>, kWidth = kLanes<T>;
  static constexpr bool kConverts = sizeof(A) != sizeof(T);
  static constexpr int64_t kManyVectors = 4;  // of rows: of fewer the others were as fast
  static constexpr int64_t kRows = 256;       // of A and C in the level-1 cache, which each vector of C passes

  static bool is_in_place(const Product& p) { return !kConverts && !p.finish && p.c.col_stride == 1 && p.c.row_stride == p.n; }

  // How many of the next rows, whole groups of them, read nothing behind the last of those that are left.
  int64_t readable(int64_t left, int64_t rows) const {
    if (kConverts || left * k_ < reach_) return 0;
    return smaller(rows / kWidth, (left * k_ - reach_) / (kWidth * k_) + 1) * kWidth;
  }

  void multiply(const T* a, int64_t rows, T* to, bool streams) const {
    switch (k_) {
      case 1: return multiply_short_rows<1, 1>(a, rows, b_, n_, to, streams);
      case 2: return multiply_by<2>(a, rows, to, streams);
      case 3: return multiply_by<3>(a, rows, to, streams);
      case 4: return multiply_by<4>(a, rows, to, streams);
    }
  }
  template <int K>
  void multiply_by(const T* a, int64_t rows, T* to, bool streams) const {
    if (vectors_ == 1) return multiply_short_rows<K, 1>(a, rows, b_, n_, to, streams);
    if (vectors_ == 2) return multiply_short_rows<K, 2>(a, rows, b_, n_, to, streams);
    if constexpr (K > 2) multiply_short_rows<K, 4>(a, rows, b_, n_, to, streams);
  }

  int k_, n_;      // in numbers
  int vectors_;    // of A that a vector of C needs: 1, 2 or 4
  int64_t reach_;  // how far behind a group's first number it reads
  T b_[kMaxShortK][kWidth] = {};
  T* copy_of_a_;
  T* results_;
};

}  // namespace vbgemm::VBGEMM_ISA
