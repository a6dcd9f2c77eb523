// Tall, narrow results that no cache will hold until they are read: computed in a cache, some rows at a time, and written past it.
//
// An ordinary store reads the line that it will overwrite, up to half of what such a product moves.
#pragma once
#include "cpu/kernels.h"
#include "cpu/pack.h"

namespace vbgemm::VBGEMM_ISA {

// Where the compiler knows no such stores, nothing is written that way.
#if defined(__x86_64__)
inline constexpr bool kStreams = true;
#if defined(__AVX512F__)
inline void stream(char* to, const char* from) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from)); }
#elif defined(__AVX2__)
inline void stream(char* to, const char* from) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#else
inline void stream(char* to, const char* from) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#endif
#else
inline constexpr bool kStreams = false;
inline void stream(char*, const char*) {}
#endif

inline void copy_past_caches(char* to, const char* from, int64_t bytes) {
  int64_t at = smaller(bytes, -reinterpret_cast<intptr_t>(to) & (kVectorBytes - 1));
  __builtin_memcpy(to, from, at);
  for (; at + kVectorBytes <= bytes; at += kVectorBytes) stream(to + at, from + at);
  __builtin_memcpy(to + at, from + at, bytes - at);
}

// Does the product wait for memory? One with more multiply-adds for each number that it moves hides its stores behind them. All of the
// result's rows must lie one behind the other.
inline bool goes_past_caches(const Product& p) {
  constexpr int64_t kWorkOfAMove = 10;
  const bool waits = p.n * p.k <= kWorkOfAMove * (p.k + 2 * p.n);
  return kStreams && p.past_caches && waits && p.c.col_stride == 1 && p.c.row_stride == p.n && p.n * 64 <= Scratch::kBytesResults;
}

inline Matrix from_row(const Matrix& x, int64_t row, DType dtype) {
  const int64_t bytes = row * x.row_stride * kDTypeBytes[static_cast<int>(dtype)];
  return {x.data ? static_cast<char*>(x.data) + bytes : nullptr, x.row_stride, x.col_stride};
}

inline void prefetch(const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// As much is asked for ahead and written at once as the processor keeps under way beside its products; with twice as much they wait.
inline constexpr int64_t kBytesOfAPiece = 3072;

// Calls run(piece) for rows of a product, as many as end where a cache line ends.
template <class Run>
inline void run_past_caches(const Product& p, Scratch& scratch, Run run) {
  const int64_t element = kDTypeBytes[static_cast<int>(p.out_dtype)], lines = kBytesOfAPiece / 64 / (p.n > p.k ? p.n : p.k);
  const int64_t most = (lines > 1 ? lines : 1) * (64 / element);
  const int64_t bytes_of_a = most * p.a.row_stride * kDTypeBytes[static_cast<int>(p.dtype)];
  for (int64_t i = 0; i < p.m; i += most) {
    Product piece = p;
    Finish finish;
    piece.m = smaller(most, p.m - i);
    piece.a = from_row(p.a, i, p.dtype);
    piece.c.data = scratch.results;
    if (p.finish) {
      finish = *p.finish;
      finish.source = from_row(finish.source, i, p.out_dtype), finish.bias = from_row(finish.bias, i, p.out_dtype);
      piece.finish = &finish;
    }
    if (p.a.col_stride == 1 && bytes_of_a <= kBytesOfAPiece) {
      prefetch(static_cast<const char*>(from_row(p.a, i + most, p.dtype).data), bytes_of_a);
    }
    run(piece);
    copy_past_caches(static_cast<char*>(from_row(p.c, i, p.out_dtype).data), scratch.results, piece.m * p.n * element);
  }
}

}  // namespace vbgemm::VBGEMM_ISA
