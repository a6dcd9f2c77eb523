// Products with many rows that are shorter than a vector, in A and in C: for example an outer product with a short row, or a linear map of
// three coordinates.
//
// If rows are dense, a vector of C contains several rows, and for each K element every lane needs one value of A that is close to the
// values its neighbours need: a permutation of a few vectors of A gathers them. So A and C are accessed in whole vectors. A complex row is
// computed as a real row of twice the length, with [re im; -im re] in place of each element of B.
#pragma once
#include "cpu/convert.h"
#include "cpu/epilogue.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/streaming_stores.h"

namespace vbgemm::VBGEMM_ISA {

inline constexpr int kMaxShortK = 4, kMaxShortN = 7;  // for larger sizes FewColumns was at least as fast, except for 8 columns with K = 1

// The row and column of each lane of vector j of C. Rows are relative to the row of the vector's first lane, which is row `first` of the
// rows that fill whole vectors. All count reals, not elements.
template <class T>
struct VectorOfRows {
  VectorOfRows(int j, int n) {
    constexpr int kWidth = kLanes<T>;
    const int reciprocal = (1 << 16) / n + 1, at = j * kWidth;  // exact, because a value below 2^8 is divided by one below 2^4
    const Vec<int32_t> lane = numbered(AllLanes<int32_t>{}) / kInts + at;
    first = at * reciprocal >> 16;
    const Vec<int32_t> whole = lane * reciprocal >> 16;
    row = whole - first, column = lane - whole * n;
  }

  static constexpr int kInts = sizeof(T) / sizeof(int32_t);
  int first;
  Vec<int32_t> row, column;  // in 32-bit integers

  // Returns the permutation of 32-bit words that moves the value with the given index to each lane.
  static Vec<int32_t> permutation(Vec<int32_t> index) { return index * kInts + numbered(AllLanes<int32_t>{}) % kInts; }

 private:
  template <int... kLane>
  static Vec<int32_t> numbered(Lanes<kLane...>) {
    return Vec<int32_t>{kLane...};
  }
};

// Permutes the values of the kVectors vectors at `from`.
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

// Real products of dense matrices, rows x K by K x n. `rows` is a multiple of a vector's lanes. The values of A that a vector of C needs
// lie in kVectors vectors. streams: C is written by streaming stores.
template <int K, int kVectors, class T>
inline void multiply_short_rows(const T* a, int64_t rows, const T (&b)[kMaxShortK][kLanes<T>], int n, T* c, bool streams) {
  using V = Vec<T>;
  constexpr int kWidth = kLanes<T>;
  for (int j = 0; j < n; ++j) {
    const VectorOfRows<T> c_vector(j, n);
    Vec<int32_t> at[K];
    V factor[K];
    for (int k = 0; k < K; ++k) {
      at[k] = c_vector.permutation(c_vector.row * K + k);
      factor[k] = permuted<1>(b[k], c_vector.permutation(c_vector.column));
    }
    const T* from = a + c_vector.first * K;
    T* to = c + j * kWidth;
    for (int64_t row = 0; row < rows; row += kWidth, from += kWidth * K, to += kWidth * n) {
      V sum{};
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) sum += permuted<kVectors>(from, at[k]) * factor[k];
      streams ? stream(to, sum) : store(to, sum);
    }
  }
}

// One product of elements Lhs and Rhs, computed in type T.
template <class Lhs, class Rhs>
class ShortRows {
  using A = NumberOf<Lhs>;
  using T = SumNumberOf<Lhs>;

 public:
  // Whether this algorithm computes the product. The answer is the same for all parts of a problem.
  static bool supports(const Product& p) {
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
    const int rows_a = kWidth % n_ == 0 ? kWidth / n_ : (kWidth - 1 + n_ - 1) / n_ + 1;  // rows in a vector of C
    const int vectors = (rows_a * k_ + kWidth - 1) / kWidth;
    vectors_ = vectors <= 2 ? vectors : 4;
    group_reach_ = (n_ - 1) * kWidth / n_ * k_ + vectors_ * kWidth;
  }

  // Whether groups of rows of C are whole cache lines. (If they ended in half a line, its other half would be written much later.)
  static bool writes_lines(const Product& p) { return kVectorBytes == 64 && is_in_place(p) && is_vector_aligned(p.c.data); }

  // Computes rows of the product.
  void run(const Product& p) const {
    const auto* a = static_cast<const A*>(p.a.data);
    const bool in_place = is_in_place(p), streams = should_stream(p) && writes_lines(p);
    const int64_t most = streams ? kPrefetchBytes / 64 / k_ * (64 / sizeof(T)) : kRows;
    for (int64_t i = 0; i < p.m; i += most, a += most * k_) {
      if (streams) prefetch(reinterpret_cast<const char*>(a) + kPrefetchDistance, most * k_ * static_cast<int64_t>(sizeof(T)));
      const int64_t rows = smaller(most, p.m - i), direct = readable(p.m - i, rows), rest = rows - direct;
      T* const to = in_place ? static_cast<T*>(p.c.data) + i * n_ : results_;
      if constexpr (!kConverts) multiply(a, direct, to, streams);
      if (rest > 0) {
        T* const rest_results = results_ + direct * n_;
        copy_run<1>(a + direct * k_, 1, rest * k_, copy_of_a_);
        multiply(copy_of_a_, ceil_div(rest, kWidth) * kWidth, rest_results, false);
        if (in_place) __builtin_memcpy(to + direct * n_, rest_results, rest * n_ * sizeof(T));
      }
      if (!in_place) write_rows<Lhs>(p, results_, i, rows);
    }
  }

 private:
  static constexpr int kParts = 1 + kIsComplex<Lhs>, kWidth = kLanes<T>;
  static constexpr bool kConverts = sizeof(A) != sizeof(T);
  static constexpr int64_t kManyVectors = 4;  // minimum number of rows, in vectors: with fewer rows, other algorithms were as fast
  static constexpr int64_t kRows = 256;       // rows of A and C that stay in the level-1 cache while all vectors of C pass over them

  static bool is_in_place(const Product& p) { return !kConverts && !p.finish && p.c.col_stride == 1 && p.c.row_stride == p.n; }

  // The number of next rows, in whole groups, that can be computed without reading past the `left` remaining rows.
  int64_t readable(int64_t left, int64_t rows) const {
    if (kConverts || left * k_ < group_reach_) return 0;
    return smaller(rows / kWidth, (left * k_ - group_reach_) / (kWidth * k_) + 1) * kWidth;
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

  int k_, n_;            // in numbers
  int vectors_;          // vectors of A that a vector of C needs: 1, 2 or 4
  int64_t group_reach_;  // the number of values that a group reads, from its first one on
  T b_[kMaxShortK][kWidth] = {};
  T* copy_of_a_;
  T* results_;
};

}  // namespace vbgemm::VBGEMM_ISA
