// The micro-kernel: a block of C (R rows by a few vectors) stays in registers while k runs.
//
// Each element of C is one chain of multiply-adds in ascending k, for every R and every position of the block. So the bits of a result do
// not depend on how C is tiled. A complex product is computed as a real one: each row of A becomes two rows, its real and its imaginary
// parts, and B is used as it is in memory, as (re, im) pairs. join() adds the two rows.
#pragma once
#include "cpu/simd.h"
#include "cpu/streaming_stores.h"

namespace vbgemm::VBGEMM_ISA {

// The arguments of one call: `groups` consecutive groups of R rows, all with the same columns of B. Strides count real numbers.
template <class T>
struct Micro {
  int64_t groups, k;
  const T* a;
  int64_t a_row, a_k;
  const T* b;  // rows of contiguous numbers
  int64_t b_k;
  int64_t last;      // column of the last of several vectors, which overlaps the previous one if the columns do not fill it
  int tail;          // lanes of a single vector that belong to C; memory after them is not read
  bool scales;       // results are multiplied by alpha
  bool streams;      // C is written by streaming stores of whole vectors
  const T* sums_in;  // initial sums, or null for zero; laid out like sums_out
  T* sums_out;       // destination of the sums if K is not finished, otherwise null
  int64_t sums_row;
  T* c;  // where the finished result goes
  int64_t c_row;
  int64_t prefetch_bytes;  // prefetch distance in bytes; 0: no prefetch
  T alpha;
};

// (re, im) pairs times i: (-im, re).
template <class V, int... kLane>
inline V times_i(V v, Lanes<kLane...>) {
  return V{v[kLane ^ 1]...} * V{(kLane & 1 ? 1 : -1)...};
}

// Combines sums into a vector of results; a complex product has sums of a real and of an imaginary row.
template <bool kComplex, class T, class V>
inline V join(V sums, [[maybe_unused]] V sums_im) {
  if constexpr (kComplex) sums += times_i(sums_im, AllLanes<T, sizeof(V)>{});
  return sums;
}

template <bool kValue>
struct Constant {
  constexpr bool operator()() const { return kValue; }
};

// Hides from the compiler how a pointer was computed. Otherwise it computes the addresses of all rows before the loops, more than there are
// registers, which takes as long as a small product.
template <class P>
inline P* opaque(P* p) {
  asm("" : "+r"(p));
  return p;
}

// Rows of A that advance together: a pointer to every third row, because x86-64 addressing adds one or two strides for free.
template <class T, int R>
class RowsOfA {
 public:
  RowsOfA(const T* first, int64_t stride) : stride_(stride) {
#pragma GCC unroll 8
    for (int i = 0; i < kPointers; ++i, first += 3 * stride) at_[i] = first = opaque(first);
  }
  T operator()(int row, int part) const { return at_[row / 3][row % 3 * stride_ + part]; }
  void advance(int64_t step) {
#pragma GCC unroll 8
    for (int i = 0; i < kPointers; ++i) at_[i] = opaque(at_[i] + step);
  }

 private:
  static constexpr int kPointers = (R + 2) / 3;
  const T* at_[kPointers];
  int64_t stride_;
};

// Rows of R elements by NV vectors, the last of which has half the width if kHalf. Several vectors need no mask: two overlapping vectors
// compute the same values.
template <class T, bool kComplex, int R, int NV, bool kHalf>
void micro_kernel(const Micro<T>& x) {
  constexpr int kParts = kComplex ? 2 : 1, kRows = R * kParts, kWidth = kLanes<T>, kWhole = NV - 1;
  using V = Vec<T>;
  using Last = typename VectorOf<T, kHalf ? kVectorBytes / 2 : kVectorBytes>::Type;
  [[maybe_unused]] const Mask mask = first_lanes<T>(NV > 1 ? kWidth : x.tail);
  const int64_t at_last = NV > 1 ? x.last : 0;
  const T *a_rows = x.a, *sums_in = x.sums_in;
  T *c = x.c, *sums_out = x.sums_out;
  for (int64_t group = x.groups; group > 0; --group) {
    if (x.prefetch_bytes) prefetch(reinterpret_cast<const char*>(a_rows) + x.prefetch_bytes, R * x.a_row * static_cast<int64_t>(sizeof(T)));
    V sums[kRows][NV];
    Last last[kRows];
    RowsOfA<T, R> a(a_rows, x.a_row);
    a_rows += R * x.a_row;
    const int64_t a_k = x.a_k, b_k = x.b_k;
    const T* b = x.b;
    // One K element. The first one only multiplies: zeroing the sums beforehand would cost small products a few percent.
    const auto step = [&](auto is_first) __attribute__((always_inline)) {
      const auto add = [&](auto& sum, auto product) { sum = is_first() ? product : sum + product; };
      V row[NV];
      Last last_of_row;
#pragma GCC unroll 4
      for (int v = 0; v < kWhole; ++v) row[v] = load<V>(b + v * kWidth);
      if constexpr (NV > 1) {
        last_of_row = load<Last>(b + at_last);
      } else {
        last_of_row = load(b, mask);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const T scalar = a(r / kParts, r % kParts);
#pragma GCC unroll 4
        for (int v = 0; v < kWhole; ++v) add(sums[r][v], scalar * row[v]);
        add(last[r], scalar * last_of_row);
      }
      a.advance(a_k);
      b += b_k;
    };

    int64_t k = x.k;
    if (!sums_in && k > 0) {
      step(Constant<true>{});
      --k;
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kWhole; ++v) sums[r][v] = sums_in ? load<V>(sums_in + v * kWidth) : V{};
        last[r] = sums_in ? load<Last>(sums_in + at_last) : Last{};
        if (sums_in) sums_in = opaque(sums_in + x.sums_row);
      }
    }
    for (; k > 0; --k) step(Constant<false>{});

    if (sums_out) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r, sums_out = opaque(sums_out + x.sums_row)) {
#pragma GCC unroll 4
        for (int v = 0; v < kWhole; ++v) store(sums_out + v * kWidth, sums[r][v]);
        store(sums_out + at_last, last[r]);
      }
      continue;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kWhole; ++v) sums[r][v] = join<kComplex, T>(sums[r * kParts][v], sums[r * kParts + kParts - 1][v]);
      last[r] = join<kComplex, T>(last[r * kParts], last[r * kParts + kParts - 1]);
    }
    if (x.scales) {
      const T alpha = x.alpha;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kWhole; ++v) sums[r][v] *= alpha;
        last[r] *= alpha;
      }
    }
    const int64_t c_row = x.c_row;
    if (!kHalf && x.streams) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r, c = opaque(c + c_row)) {
#pragma GCC unroll 4
        for (int v = 0; v < kWhole; ++v) stream(c + v * kWidth, sums[r][v]);
        if constexpr (!kHalf) stream(c + at_last, last[r]);
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r, c = opaque(c + c_row)) {
#pragma GCC unroll 4
        for (int v = 0; v < kWhole; ++v) store(c + v * kWidth, sums[r][v]);
        if constexpr (NV > 1) {
          store(c + at_last, last[r]);
        } else {
          store_first(c, last[r], x.tail);
        }
      }
    }
  }
}

// Rows of the micro-kernels that are 1, 2, 3 and 4 vectors wide: as many accumulators as fit the registers next to a row of B and an
// element of A.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kMaxRows[] = {14, 14, 9, 6};
#else
inline constexpr int kMaxRows[] = {8, 6, 4, 2};
#endif
inline constexpr int kMaxVectors = 4, kMaxSums = 28;

// The micro-kernels, and the division of a block of C among them.
template <class T, bool kComplex>
struct MicroKernels {
  using Function = void (*)(const Micro<T>&);

  constexpr MicroKernels() { fill<1, 1>(); }
  static Function kernel(bool half, int vectors, int rows);

  static constexpr int max_rows(int vectors) { return kMaxRows[vectors - 1] / (kComplex ? 2 : 1); }

  // Two vectors in a panel use the registers best. At the end a panel of three is faster than two and one, and very few rows leave
  // registers for four.
  static int panel_vectors(int64_t left, int64_t m) {
    if (m <= max_rows(4)) return static_cast<int>(smaller(left, 4));
    return static_cast<int>(left == 3 ? 3 : smaller(left, 2));
  }

  // Describes a panel of `numbers` real columns in `vectors` vectors, and returns whether to use the micro-kernels whose last vector has
  // half the width, which takes processors with two-pass 512-bit units one pass.
  static bool set_columns(Micro<T>& micro, int vectors, int64_t numbers) {
    micro.tail = static_cast<int>(numbers - (vectors - 1) * kLanes<T>);
    const bool half = has_half(vectors) && micro.tail <= kLanes<T> / 2;
    micro.last = numbers - (half ? kLanes<T> / 2 : kLanes<T>);
    return half;
  }

 private:
  static constexpr bool has_half(int vectors) { return kVectorBytes == 64 && (vectors == 2 || vectors == 3); }

  template <int NV, int R>
  constexpr void fill() {
    kernels[0][NV - 1][R - 1] = &micro_kernel<T, kComplex, R, NV, false>;
    if constexpr (has_half(NV)) kernels[1][NV - 1][R - 1] = &micro_kernel<T, kComplex, R, NV, true>;
    if constexpr (R < max_rows(NV)) {
      fill<NV, R + 1>();
    } else if constexpr (NV < kMaxVectors) {
      fill<NV + 1, 1>();
    }
  }

  Function kernels[2][kMaxVectors][kMaxRows[0]] = {};
};
template <class T, bool kComplex>
inline constexpr MicroKernels<T, kComplex> kMicroKernels;
template <class T, bool kComplex>
inline typename MicroKernels<T, kComplex>::Function MicroKernels<T, kComplex>::kernel(bool half, int vectors, int rows) {
  return kMicroKernels<T, kComplex>.kernels[half][vectors - 1][rows - 1];
}

// of[y] = 2^kShift / y, rounded up.
struct Reciprocals {
  static constexpr int kMaxDivisor = 1 << 10, kShift = 21;
  constexpr Reciprocals() {
    for (int y = 1; y <= kMaxDivisor; ++y) of[y] = ((1 << kShift) + y - 1) / y;
  }
  uint32_t of[kMaxDivisor + 1] = {};
};
inline constexpr Reciprocals kReciprocals;

// Divides rows into groups as evenly as possible: 16 rows become 6, 5 and 5, which hide latencies better than 6, 6 and 4.
struct RowGroups {
  static constexpr int kMaxGroupRows = Reciprocals::kMaxDivisor;
  RowGroups(int m, int most) : count(quotient(m + most - 1, most)), base(quotient(m, count)), larger(m - base * count) {}
  int rows(int group) const { return base + (group < larger); }
  // The number of consecutive groups from this one on with the same number of rows.
  int same_size_groups(int group) const { return (group < larger ? larger : count) - group; }
  int count, base, larger;

 private:
  // x / y, exact for these sizes: a division instruction would delay the choice of a micro-kernel.
  static int quotient(int x, int y) { return static_cast<int>(static_cast<uint32_t>(x) * kReciprocals.of[y] >> Reciprocals::kShift); }
};

}  // namespace vbgemm::VBGEMM_ISA
