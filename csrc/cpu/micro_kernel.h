// The micro-kernel: a block of C, R rows by a few vectors, is held in registers while k runs.
//
// Each element of C is one chain of multiply-adds in ascending k, whatever R and the block's place. So the bits of a result do not depend
// on how C is cut into tiles. A complex product is computed as a real one: each row of A becomes two rows, its real and its imaginary
// parts, and B is used as it is in memory, as (re, im) pairs. join() adds the two rows.
#pragma once
#include "cpu/past_caches.h"
#include "cpu/simd.h"

namespace vbgemm::VBGEMM_ISA {

// The arguments of one call: `groups` consecutive groups of R rows, all with the same columns of B. Strides are in real numbers.
template <class T>
struct Micro {
  int64_t groups, k;
  const T* a;
  int64_t a_row, a_k;
  const T* b;  // rows of contiguous numbers
  int64_t b_k;
  const T* sums_in;  // sums to start from, or null for zero; laid out as sums_out
  T* sums_out;       // where the sums go if K is not finished, else null
  int64_t sums_row;
  T* c;  // where the finished result goes
  int64_t c_row;
  bool scales;  // results are multiplied by alpha
  T alpha;
  bool streams;   // C is written in whole vectors, past the caches
  int64_t ahead;  // how many bytes ahead of its rows a group prefetches; 0: none
  int tail;       // lanes of the last vector that belong to C
  bool masked;    // memory behind these lanes of B must not be read
};

// (re, im) pairs times i: (-im, re).
template <class V, int... kLane>
inline V times_i(V v, Lanes<kLane...>) {
  return V{v[kLane ^ 1]...} * V{(kLane & 1 ? 1 : -1)...};
}

// Makes a vector of results from its sums, which for a complex product are those of the real and of the imaginary row.
template <class T, bool kComplex>
inline Vec<T> join(Vec<T> sums, [[maybe_unused]] Vec<T> sums_im) {
  if constexpr (kComplex) sums += times_i(sums_im, AllLanes<T>{});
  return sums;
}

template <class T, bool kComplex, int R, int NV>
void micro_kernel(const Micro<T>& call) {
  constexpr int kParts = kComplex ? 2 : 1, kRows = R * kParts, kWidth = kLanes<T>;
  using V = Vec<T>;
  const Micro<T> x = call;  // a copy, so that the compiler need not assume that stores to C change it
  const Mask mask = first_lanes<T>(x.masked ? x.tail : kWidth);
  const T *a_rows = x.a, *sums_in = x.sums_in;
  T *c_rows = x.c, *sums_out = x.sums_out;
  for (int64_t group = x.groups; group > 0; --group, a_rows += R * x.a_row) {
    if (x.ahead) prefetch(reinterpret_cast<const char*>(a_rows) + x.ahead, R * x.a_row * static_cast<int64_t>(sizeof(T)));
    V sums[kRows][NV] = {};
    if (sums_in) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) sums[r][v] = load<V>(sums_in + r * x.sums_row + v * kWidth);
      }
      sums_in += kRows * x.sums_row;
    }

    const T *a = a_rows, *b = x.b;
    for (int64_t k = x.k; k > 0; --k) {
      V row[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV - 1; ++v) row[v] = load<V>(b + v * kWidth);
      row[NV - 1] = load(b + (NV - 1) * kWidth, mask);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const T scalar = a[r / kParts * x.a_row + r % kParts];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) sums[r][v] += scalar * row[v];
      }
      a += x.a_k;
      b += x.b_k;
    }

    if (sums_out) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) store(sums_out + r * x.sums_row + v * kWidth, sums[r][v]);
      }
      sums_out += kRows * x.sums_row;
      continue;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) {
        V result = join<T, kComplex>(sums[r * kParts][v], sums[r * kParts + kParts - 1][v]);
        if (x.scales) result *= x.alpha;
        T* c = c_rows + r * x.c_row + v * kWidth;
        if (x.streams) {
          stream(c, result);
        } else if (v < NV - 1) {
          store(c, result);
        } else {
          store_first(c, result, x.tail);
        }
      }
    }
    c_rows += R * x.c_row;
  }
}

// Rows of the micro-kernels that are 1, 2, 3 and 4 vectors wide: as many sums as the registers hold beside a row of B and an element of A.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kMaxRows[] = {12, 12, 8, 6};
#else
inline constexpr int kMaxRows[] = {8, 6, 4, 2};
#endif
inline constexpr int kMaxVectors = 4, kMaxSums = 24;

// All micro-kernels: kernel[vectors - 1][rows - 1].
template <class T, bool kComplex>
struct MicroKernels {
  using Function = void (*)(const Micro<T>&);
  Function kernel[kMaxVectors][12] = {};

  static constexpr int max_rows(int vectors) { return kMaxRows[vectors - 1] / (kComplex ? 2 : 1); }
  constexpr MicroKernels() { fill<1, 1>(); }

 private:
  template <int NV, int R>
  constexpr void fill() {
    kernel[NV - 1][R - 1] = &micro_kernel<T, kComplex, R, NV>;
    if constexpr (R < max_rows(NV)) {
      fill<NV, R + 1>();
    } else if constexpr (NV < kMaxVectors) {
      fill<NV + 1, 1>();
    }
  }
};
template <class T, bool kComplex>
inline constexpr MicroKernels<T, kComplex> kMicroKernels;

}  // namespace vbgemm::VBGEMM_ISA
