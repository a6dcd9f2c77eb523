// Vectors as wide as the translation unit's flags allow: arithmetic by the compiler's vector extensions, and masks by a few intrinsics.
//
// This header and those that include it are compiled once for each instruction set, into a namespace of its name. They use no inline
// function of the standard library: the linker would keep one copy for all instruction sets, perhaps one that this machine cannot run.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vbgemm::VBGEMM_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T, int kBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <class T>
using Vec = typename VectorOf<T, kVectorBytes>::Type;
template <class T>
inline constexpr int kLanes = kVectorBytes / sizeof(T);

// The lanes 0, 1, 2, ... as a parameter pack for shuffles: V{v[f(lane)]...} compiles to one instruction.
template <int... kLane>
struct Lanes {};
template <int kCount, int... kLane>
struct CountTo : CountTo<kCount - 1, kCount - 1, kLane...> {};
template <int... kLane>
struct CountTo<0, kLane...> {
  using Type = Lanes<kLane...>;
};
template <class T, int kBytes = kVectorBytes>
using AllLanes = typename CountTo<kBytes / static_cast<int>(sizeof(T))>::Type;

template <class V, class T>
inline V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
inline void store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// Fills a vector with copies of the S values at p.
template <int S, class T>
inline Vec<T> load_repeated(const T* p) {
  constexpr int kBytes = S * sizeof(T);
  if constexpr (kBytes == kVectorBytes) {
    return load<Vec<T>>(p);
  } else if constexpr (kBytes == 8) {
    int64_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return Vec<T>(Vec<int64_t>{} + pair);
#if defined(__AVX512F__)
  } else if constexpr (kBytes == 16) {
    return Vec<T>(_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  } else {
    return Vec<T>(_mm512_maskz_broadcast_i64x4(0xff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__)
  } else {
    return Vec<T>(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#endif
  }
}

// Whether lanes can be permuted by an index vector. Lane i becomes lane at[i] of v, or of v followed by w.
#if defined(__AVX512F__)
inline constexpr bool kPermutes = true;
inline Vec<int32_t> permute(Vec<int32_t> v, Vec<int32_t> at) {
  return Vec<int32_t>(_mm512_maskz_permutexvar_epi32(0xffff, __m512i(at), __m512i(v)));
}
inline Vec<int32_t> permute(Vec<int32_t> v, Vec<int32_t> w, Vec<int32_t> at) {
  return Vec<int32_t>(_mm512_permutex2var_epi32(__m512i(v), __m512i(at), __m512i(w)));
}
#elif defined(__AVX2__)
inline constexpr bool kPermutes = true;
inline Vec<int32_t> permute(Vec<int32_t> v, Vec<int32_t> at) { return Vec<int32_t>(_mm256_permutevar8x32_epi32(__m256i(v), __m256i(at))); }
inline Vec<int32_t> permute(Vec<int32_t> v, Vec<int32_t> w, Vec<int32_t> at) { return (at & 8) != 0 ? permute(w, at) : permute(v, at); }
#else
inline constexpr bool kPermutes = false;
inline Vec<int32_t> permute(Vec<int32_t> v, Vec<int32_t>) { return v; }
inline Vec<int32_t> permute(Vec<int32_t> v, Vec<int32_t>, Vec<int32_t>) { return v; }
#endif

// Whether the first few lanes can be loaded without touching the memory after them, at the price of a whole load.
#if defined(__AVX512F__)
inline constexpr bool kMaskedLoads = true;
struct Mask {
  __mmask16 lanes;
};
template <class T>
inline Mask first_lanes(int n) {
  return {static_cast<__mmask16>((1u << n) - 1)};
}
inline Vec<float> load(const float* p, Mask mask) { return Vec<float>(_mm512_maskz_loadu_ps(mask.lanes, p)); }
inline Vec<double> load(const double* p, Mask mask) { return Vec<double>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask.lanes), p)); }
inline Vec<uint32_t> load(const uint32_t* p, Mask mask) { return Vec<uint32_t>(_mm512_maskz_loadu_epi32(mask.lanes, p)); }
#elif defined(__AVX2__)
inline constexpr bool kMaskedLoads = true;
struct Mask {
  __m256i lanes;
};
template <class T>
inline Mask first_lanes(int n) {
  const Vec<int32_t> lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return {__m256i(lane < n * static_cast<int>(sizeof(T) / 4))};
}
inline Vec<float> load(const float* p, Mask mask) { return Vec<float>(_mm256_maskload_ps(p, mask.lanes)); }
inline Vec<double> load(const double* p, Mask mask) { return Vec<double>(_mm256_maskload_pd(p, mask.lanes)); }
inline Vec<uint32_t> load(const uint32_t* p, Mask mask) {
  return Vec<uint32_t>(_mm256_maskload_epi32(reinterpret_cast<const int*>(p), mask.lanes));
}
#else
inline constexpr bool kMaskedLoads = false;
struct Mask {};
template <class T>
inline Mask first_lanes(int) {
  return {};
}
template <class T>
inline Vec<T> load(const T* p, Mask) {
  return load<Vec<T>>(p);
}
#endif

// Copies the first n of 2 kPiece values (n < 2 kPiece) by halves: copies of constant size are single moves.
template <int kPiece, class T>
inline void copy_first(T* to, const T* from, int n) {
  const int piece = n & kPiece;
  if (piece) __builtin_memcpy(to, from, kPiece * sizeof(T));
  if constexpr (kPiece > 1) copy_first<kPiece / 2>(to + piece, from + piece, n);
}

// Stores the first n lanes, 0 < n <= kLanes.
template <class T>
inline void store_first(T* p, Vec<T> v, int n) {
#if defined(__AVX512F__)
  const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1);
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, mask, __m512(v));
  } else {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), __m512d(v));
  }
#else
  // AVX2's masked store is microcoded on AMD processors; a few partial copies cost less.
  if (n == kLanes<T>) return store(p, v);
  T lanes[kLanes<T>];
  store(lanes, v);
  copy_first<kLanes<T> / 2>(p, lanes, n);
#endif
}

}  // namespace vbgemm::VBGEMM_ISA
