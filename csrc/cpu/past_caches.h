// Tall, narrow results that no cache will hold until they are read are written past it: straight from registers where their sums are
// whole vectors as they lie there, else computed in a cache, some rows at a time, and copied.
//
// An ordinary store reads the line that it will overwrite, up to half of what such a product moves.
#pragma once
#include "cpu/kernels.h"
#include "cpu/pack.h"

namespace vbgemm::VBGEMM_ISA {

// Writes a whole vector past the caches. Where the compiler knows no such stores, nothing is written that way.
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

inline void copy_past_caches(char* to, const char* from, int64_t bytes) {
  int64_t at = smaller(bytes, -reinterpret_cast<intptr_t>(to) & (kVectorBytes - 1));
  __builtin_memcpy(to, from, at);
  for (; at + kVectorBytes <= bytes; at += kVectorBytes) stream(to + at, load<Vec<char>>(from + at));
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
  const int64_t bytes = row * x.row_stride * bytes_of(dtype);
  return {x.data ? static_cast<char*>(x.data) + bytes : nullptr, x.row_stride, x.col_stride};
}

inline void prefetch(const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// A is asked for this far ahead, a little at a time: all that a piece needs at once kept the memory waiting for the products.
inline constexpr int64_t kBytesAhead = 8192, kBytesOfAPiece = kBytesAhead / 4;

// How far ahead, in bytes, where so many rows of A are multiplied at a time; 0 where processors follow the rows by themselves.
inline int64_t bytes_ahead(const Product& p, int64_t rows) {
  const int64_t bytes = rows * p.a.row_stride * bytes_of(arithmetic_of(p.kind).lhs);
  return p.a.col_stride == 1 && bytes > 0 && bytes <= kBytesOfAPiece ? kBytesAhead : 0;
}

// Calls run(piece) for rows of a product, as many as end where a cache line ends.
template <class Run>
inline void run_past_caches(const Product& p, Scratch& scratch, Run run) {
  const int64_t element = bytes_of(p.out_dtype), lines = kBytesOfAPiece / 64 / (p.n > p.k ? p.n : p.k);
  const int64_t most = (lines > 1 ? lines : 1) * (64 / element);
  const int64_t ahead = bytes_ahead(p, most), bytes_of_a = most * p.a.row_stride * bytes_of(arithmetic_of(p.kind).lhs);
  for (int64_t i = 0; i < p.m; i += most) {
    Product piece = p;
    Finish finish;
    piece.m = smaller(most, p.m - i);
    piece.a = from_row(p.a, i, arithmetic_of(p.kind).lhs);
    piece.c.data = scratch.results, piece.past_caches = false;
    if (p.finish) {
      finish = *p.finish;
      finish.source = from_row(finish.source, i, p.out_dtype), finish.bias = from_row(finish.bias, i, p.out_dtype);
      finish.scale = from_row(finish.scale, i, accumulator_of(p.kind));
      piece.finish = &finish;
    }
    if (ahead) prefetch(static_cast<const char*>(from_row(p.a, i, arithmetic_of(p.kind).lhs).data) + ahead, bytes_of_a);
    run(piece);
    copy_past_caches(static_cast<char*>(from_row(p.c, i, p.out_dtype).data), scratch.results, piece.m * p.n * element);
  }
}

}  // namespace vbgemm::VBGEMM_ISA
