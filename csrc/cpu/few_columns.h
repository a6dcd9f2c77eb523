// Products with few columns, many rows and a small K. The vector lanes that a row of C would leave idle take further K elements.
//
// A vector holds, for each column, S adjacent partial sums, each over every S-th K element. S elements of a row of A are loaded once for
// all columns. At the end the partial sums of a column are added pairwise, in an order that depends neither on the tile nor on its rows.
#pragma once
#include <type_traits>

#include "cpu/convert.h"
#include "cpu/epilogue.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/streaming_stores.h"

namespace vbgemm::VBGEMM_ISA {

// Adds each pair of adjacent lanes: first the pairs of u, then those of v.
template <class V, int... kLane>
inline V add_neighbours(V u, V v, Lanes<kLane...>) {
  constexpr int kCount = sizeof...(kLane);
  return V{(kLane < kCount / 2 ? u[2 * kLane % kCount] : v[2 * kLane % kCount])...} +
         V{(kLane < kCount / 2 ? u[2 * kLane % kCount + 1] : v[2 * kLane % kCount + 1])...};
}

// Interleaves the lanes of u and v into one vector.
template <class V, int... kLane>
inline V interleave(V u, V v, Lanes<kLane...>) {
  return V{(kLane % 2 == 0 ? u[kLane / 2] : v[kLane / 2])...};
}

// Interleaves S vectors that are `stride` values apart: lane j of each vector, then lane j + 1 of each.
template <int S, class T>
inline Vec<T> interleave(const T* from, int64_t stride) {
  if constexpr (S == 1) {
    return load<Vec<T>>(from);
  } else {
    return interleave(interleave<S / 2>(from, 2 * stride), interleave<S / 2>(from + stride, 2 * stride), AllLanes<T>{});
  }
}

// One product of real elements Lhs and Rhs, computed in type T.
template <class Lhs, class Rhs>
class FewColumns {
  using T = SumNumberOf<Lhs>;

 public:
  // Whether this algorithm computes the product. The answer is the same for all parts of a problem.
  static bool supports(const Product& p) {
    return p.a.col_stride == 1 && p.whole_m >= kManyRows && p.whole_n <= kWidth / 2 && p.k >= 2 && p.k <= kMaxK;
  }

  FewColumns(const Product& p, Scratch& scratch)
      : k_(p.k), copy_of_a_(reinterpret_cast<T*>(scratch.a)), packed_b_(reinterpret_cast<T*>(scratch.b)) {
    steps_ = kWidth;
    while (steps_ > k_ || steps_ * p.whole_n > kWidth) steps_ /= 2;
    pack_panel<1>(static_cast<const NumberOf<Rhs>*>(p.b.data), p.b.row_stride, p.b.col_stride, k_, p.n, packed_b_, kWidth);
    interleave_steps<kWidth>();
  }

  // Whether every group of rows of C consists of whole aligned vectors.
  bool writes_vectors(const Product& p) const { return finishes_in_place(p) && p.n * steps_ == kWidth && is_vector_aligned(p.c.data); }

  // Computes rows of the product.
  void run(const Product& p) const { run_by<kWidth>(p); }

 private:
  using V = Vec<T>;
  using Int = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  using Ints = Vec<Int>;
  static constexpr int kWidth = kLanes<T>, kGroup = kVectorBytes == 64 ? 16 : 8;  // rows whose accumulators fit the registers
  static constexpr bool kConverts = sizeof(Lhs) != sizeof(T);
  // With fewer rows the micro-kernel is faster, as measured on two Zen 5 cores with AVX-512 (2026-11-23, docs/design/cpu.md, P7).
  static constexpr int64_t kManyRows = 12;
  static constexpr int64_t kMaxK = 32 * kWidth;
  static constexpr int64_t kRows = 128;  // rows whose sums are buffered before the epilogue
  static_assert(kMaxK / 2 * kVectorBytes <= Scratch::kBytesB && kRows * kMaxK * static_cast<int64_t>(sizeof(T)) <= Scratch::kBytesA);
  static_assert(kGroup >= kWidth && kRows % kGroup == 0);

  // Whether C can receive the sums directly, without conversion or epilogue, and has no gaps.
  static bool finishes_in_place(const Product& p) { return !kConverts && !p.finish && p.c.col_stride == 1 && p.c.row_stride == p.n; }

  template <int... kLane>
  static Ints numbered(Lanes<kLane...>) {
    return Ints{kLane...};
  }

  // Interleaves the rows of B, one vector per K element. The last, partial group overlaps earlier elements, so that no load leaves A;
  // is_new_lane_ zeroes the overlap.
  template <int S>
  void interleave_steps() {
    if constexpr (S > 2) {
      if (S > steps_) return interleave_steps<S / 2>();
    }
    T* to = packed_b_;
    int64_t k = 0;
    for (; k + S <= k_; k += S, to += kWidth) store(to, interleave<S>(packed_b_ + k * kWidth, kWidth));
    is_new_lane_ = (numbered(AllLanes<T>{}) & (S - 1)) >= static_cast<Int>(S - (k_ - k));
    if (k < k_) store(to, V(Ints(interleave<S>(packed_b_ + (k_ - S) * kWidth, kWidth)) & is_new_lane_));
  }

  template <int S>
  void run_by(const Product& p) const {
    if constexpr (S > 2) {
      if (S > steps_) return run_by<S / 2>(p);
    }
    constexpr int kColumns = kWidth / S;
    const auto* a = static_cast<const NumberOf<Lhs>*>(p.a.data);
    const bool in_place = finishes_in_place(p), streams = should_stream(p) && writes_vectors(p);
    const int64_t prefetch_bytes = streams ? prefetch_distance(p, kGroup) : 0;
    alignas(64) T results[kRows * kColumns], dense[kRows * kColumns];
    for (int64_t i = 0; i < p.m; i += kRows, a += kRows * p.a.row_stride) {
      const int64_t rows = smaller(kRows, p.m - i);
      T* const c = in_place ? static_cast<T*>(p.c.data) + i * p.n : nullptr;
      T* const to = in_place && p.n == kColumns ? c : results;
      if constexpr (kConverts) {
        copy_block<1>(a, p.a.row_stride, 1, rows, k_, copy_of_a_);
        multiply<S>(copy_of_a_, k_, rows, to, streams, prefetch_bytes);
      } else {
        multiply<S>(a, p.a.row_stride, rows, to, streams, prefetch_bytes);
      }
      T* const sums = in_place ? c : dense;
      if (p.n < kColumns) copy_rows<kColumns>(results, rows, p.n, sums);
      if (!in_place) write_rows<Lhs>(p, p.n < kColumns ? sums : results, i, rows);
    }
  }

  template <int kColumns>
  static void copy_rows(const T* from, int64_t rows, int64_t columns, T* to) {
    for (; rows * columns >= kColumns; --rows, from += kColumns, to += columns) {
      __builtin_memcpy(to, from, kColumns * sizeof(T));  // copies past the end of the row; later rows overwrite that
    }
    for (; rows > 0; --rows, from += kColumns, to += columns) {
      for (int64_t j = 0; j < columns; ++j) to[j] = from[j];
    }
  }

  // Computes dense rows of kWidth / S sums. streams: use streaming stores. prefetch_bytes: prefetch distance of A in bytes.
  template <int S>
  void multiply(const T* a, int64_t a_row, int64_t rows, T* to, bool streams, int64_t prefetch_bytes) const {
    constexpr int kVectors = kGroup / S;
    for (; rows >= kGroup; rows -= kGroup, a += kGroup * a_row, to += kVectors * kWidth) {
      if (prefetch_bytes) prefetch(reinterpret_cast<const char*>(a) + prefetch_bytes, kGroup * a_row * static_cast<int64_t>(sizeof(T)));
      V sums[kGroup];
      multiply_group<S>([=](int r) { return a + r * a_row; }, sums);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) streams ? stream(to + v * kWidth, sums[v]) : store(to + v * kWidth, sums[v]);
    }
    if (rows == 0) return;
    V sums[kGroup];
    multiply_group<S>([=](int r) { return a + smaller(r, rows - 1) * a_row; }, sums);
    __builtin_memcpy(to, sums, rows * (kWidth / S) * sizeof(T));
  }

  // row_start(r) returns where row r of A begins. The result is in the first kGroup / S vectors of `sums`.
  template <int S, class RowStart>
  __attribute__((always_inline)) void multiply_group(RowStart row_start, V (&sums)[kGroup]) const {
#pragma GCC unroll 16
    for (int r = 0; r < kGroup; ++r) sums[r] = V{};
    const T* b = packed_b_;
    int64_t k = 0;
    for (; k + S <= k_; k += S, b += kWidth) {
      const V steps = load<V>(b);
#pragma GCC unroll 16
      for (int r = 0; r < kGroup; ++r) sums[r] += load_repeated<S>(row_start(r) + k) * steps;
    }
    if (k < k_) {
      const V steps = load<V>(b);
#pragma GCC unroll 16
      for (int r = 0; r < kGroup; ++r) sums[r] += V(Ints(load_repeated<S>(row_start(r) + k_ - S)) & is_new_lane_) * steps;
    }
#pragma GCC unroll 4
    for (int step = 1, count = kGroup / 2; step < S; step *= 2, count /= 2) {
#pragma GCC unroll 16
      for (int r = 0; r < count; ++r) sums[r] = add_neighbours(sums[2 * r], sums[2 * r + 1], AllLanes<T>{});
    }
  }

  int64_t k_;
  int64_t steps_;     // K elements in a vector
  Ints is_new_lane_;  // lanes of the last vector whose K elements have not been summed before
  T* copy_of_a_;
  T* packed_b_;
};

}  // namespace vbgemm::VBGEMM_ISA
