// Streaming (non-temporal) stores for tall, narrow results that will not stay in a cache until they are read. If the sums of a result are
// whole vectors of C, they are stored straight from registers; otherwise a few rows at a time are computed in a cache and copied.
//
// An ordinary store first reads the cache line that it overwrites, which is up to half of the memory traffic of such a product.
#pragma once
#include "cpu/kernels.h"
#include "cpu/pack.h"

namespace vbgemm::VBGEMM_ISA {

// Writes a whole vector by a streaming store. If the compiler has no such stores, kStreams is false and this is never called.
#if defined(__x86_64__)
inline constexpr bool kStreams = true;
template <class T>
inline void stream(T* to, Vec<T> v) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), __m512i(v));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __m256i(v));
#else
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), __m128i(v));
#endif
}
#else
inline constexpr bool kStreams = false;
template <class T>
inline void stream(T*, Vec<T>) {}
#endif

inline bool is_vector_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0; }

inline void copy_streaming(char* to, const char* from, int64_t bytes) {
  int64_t at = smaller(bytes, -reinterpret_cast<intptr_t>(to) & (kVectorBytes - 1));
  __builtin_memcpy(to, from, at);
  for (; at + kVectorBytes <= bytes; at += kVectorBytes) stream(to + at, load<Vec<char>>(from + at));
  __builtin_memcpy(to + at, from + at, bytes - at);
}

// Whether a product uses streaming stores: they are permitted, the product is memory-bound, its rows are dense, and the whole result is
// large (small results share cache lines with their neighbours). A product with more multiply-adds per value that it moves hides its
// stores.
__attribute__((always_inline)) inline bool should_stream(const Product& p) {
  constexpr int64_t kWorkPerMove = 10, kManyResults = 1 << 14;
  if (!kStreams || !p.may_stream) return false;
  const bool waits = p.n * p.k <= kWorkPerMove * (p.k + 2 * p.n), many = p.whole_m * p.whole_n >= kManyResults;
  return waits && many && p.c.col_stride == 1 && p.c.row_stride == p.n && p.n * 64 <= Scratch::kBytesResults;
}

inline Matrix from_row(const Matrix& x, int64_t row, DType dtype) {
  const int64_t bytes = row * x.row_stride * bytes_of(dtype);
  return {x.data ? static_cast<char*>(x.data) + bytes : nullptr, x.row_stride, x.col_stride};
}

inline void prefetch(const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// The prefetch distance of A in bytes, and the amount prefetched at a time: prefetching a whole piece at once left the memory idle during
// the products.
inline constexpr int64_t kPrefetchDistance = 8192, kPrefetchBytes = kPrefetchDistance / 4;

// Returns the prefetch distance in bytes if `rows` rows of A are multiplied at a time; 0 unless rows are contiguous and so many of them
// span at most kPrefetchBytes. Beyond that, hardware prefetchers follow the rows.
inline int64_t prefetch_distance(const Product& p, int64_t rows) {
  const int64_t bytes = rows * p.a.row_stride * bytes_of(arithmetic_of(p.kind).lhs);
  return p.a.col_stride == 1 && bytes > 0 && bytes <= kPrefetchBytes ? kPrefetchDistance : 0;
}

// Calls run(piece) for groups of rows of a product; each group ends where a cache line ends.
template <class Run>
inline void run_streaming(const Product& p, Scratch& scratch, Run run) {
  const int64_t element = bytes_of(p.out_dtype), lines = kPrefetchBytes / 64 / (p.n > p.k ? p.n : p.k);
  const int64_t most = (lines > 1 ? lines : 1) * (64 / element);
  const int64_t prefetch_bytes = prefetch_distance(p, most), bytes_of_a = most * p.a.row_stride * bytes_of(arithmetic_of(p.kind).lhs);
  for (int64_t i = 0; i < p.m; i += most) {
    Product piece = p;
    Finish finish;
    piece.m = smaller(most, p.m - i);
    piece.a = from_row(p.a, i, arithmetic_of(p.kind).lhs);
    piece.c.data = scratch.results, piece.may_stream = false;
    if (p.finish) {
      finish = *p.finish;
      finish.source = from_row(finish.source, i, p.out_dtype), finish.bias = from_row(finish.bias, i, p.out_dtype);
      finish.scale = from_row(finish.scale, i, accumulator_of(p.kind));
      piece.finish = &finish;
    }
    if (prefetch_bytes) prefetch(static_cast<const char*>(from_row(p.a, i, arithmetic_of(p.kind).lhs).data) + prefetch_bytes, bytes_of_a);
    run(piece);
    copy_streaming(static_cast<char*>(from_row(p.c, i, p.out_dtype).data), scratch.results, piece.m * p.n * element);
  }
}

}  // namespace vbgemm::VBGEMM_ISA
