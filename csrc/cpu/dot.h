// Products with very few columns and a large K, as dot products of A's rows with B's columns. A is read once and in order.
//
// The micro-kernel would fill few lanes, and would read many rows at a time that evict each other. Here each lane sums every kLanes-th term
// of an element, and the lanes are added at the end in an order that depends neither on the tile nor on its rows.
#pragma once
#include "cpu/convert.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"

namespace vbgemm::VBGEMM_ISA {

// The maximum number of columns for dot products: widths at which the micro-kernel would leave half of its lanes idle, and at least four.
// The exception is float64 in 512-bit vectors, with a limit of two: from three columns on, only the micro-kernel reads at memory speed.
template <class T>
inline constexpr int kMaxDotColumns = kLanes<T> > 8        ? kLanes<T> / 2
                                      : kVectorBytes == 64 ? 2
                                                           : 4;

// sums[r][j] += the products of the rows a + r a_row and the columns b + j b_column, over k_count steps.
template <int R, int N, class In, class T>
inline void dot_rows(const In* a, int64_t a_row, const T* b, int64_t b_column, int64_t k_count, Vec<T>* sums) {
  constexpr int kWidth = kLanes<T>;
  Vec<T> sum[R][N];
#pragma GCC unroll 16
  for (int i = 0; i < R * N; ++i) sum[i / N][i % N] = sums[i];
  int64_t k = 0;
  for (; k + kWidth <= k_count; k += kWidth) {
    Vec<T> row[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      __builtin_prefetch(a + (R + r) * a_row + k, 0, 2);  // hardware prefetchers follow a row, but not to the next one
      row[r] = load_wide(a + r * a_row + k);
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      const Vec<T> column = load<Vec<T>>(b + j * b_column + k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][j] += row[r] * column;
    }
  }
  if (k < k_count) {  // B is padded with zeros after its last element
    for (int r = 0; r < R; ++r) {
      const Vec<T> row = load_wide(a + r * a_row + k, static_cast<int>(k_count - k));
      for (int j = 0; j < N; ++j) sum[r][j] += row * load<Vec<T>>(b + j * b_column + k);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * N; ++i) sums[i] = sum[i / N][i % N];
}

template <class T>
inline T sum_of_lanes(Vec<T> v) {
  T lanes[kLanes<T>];
  store(lanes, v);
  for (int step = kLanes<T> / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

// The number of rows computed together, limited by the registers for their accumulators. More rows mean fewer reads of B, which exceeds the
// level-1 cache.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int dot_group(int n) { return n <= 6 ? 4 : 3; }
#else
constexpr int dot_group(int n) { return n <= 2 ? 4 : 2; }
#endif

template <int N, class In, class T>
inline void dot_part(const In* a, int64_t a_row, int64_t rows, const T* b, int64_t b_column, int64_t k_count, Vec<T>* sums) {
  constexpr int kGroup = dot_group(N);
  int64_t i = 0;
  for (; i + kGroup <= rows; i += kGroup) dot_rows<kGroup, N>(a + i * a_row, a_row, b, b_column, k_count, sums + i * N);
  for (; i < rows; ++i) dot_rows<1, N>(a + i * a_row, a_row, b, b_column, k_count, sums + i * N);
}
template <class In, class T, int N = kMaxDotColumns<T>>
inline void dot_part(int64_t n, const In* a, int64_t a_row, int64_t rows, const T* b, int64_t b_column, int64_t k_count, Vec<T>* sums) {
  if (n == N) return dot_part<N>(a, a_row, rows, b, b_column, k_count, sums);
  if constexpr (N > 1) dot_part<In, T, N - 1>(n, a, a_row, rows, b, b_column, k_count, sums);
}

}  // namespace vbgemm::VBGEMM_ISA
