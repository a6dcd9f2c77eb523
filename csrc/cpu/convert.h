// bfloat16 and float16 to and from float32, rounding to nearest even. Integer arithmetic or F16C, neither of which heeds the
// flush-to-zero mode that XLA sets on its threads, so subnormals survive.
#pragma once
#include <type_traits>

#include "catalogue.h"
#include "cpu/simd.h"

namespace vbgemm::VBGEMM_ISA {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline float widen(Bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline void narrow(float x, Bf16& to) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet_nan = bits | 0x400000;
  to.bits = static_cast<uint16_t>((magnitude > 0x7f800000 ? quiet_nan : rounded) >> 16);
}

#if defined(__F16C__)
inline float widen(F16 x) { return _cvtsh_ss(x.bits); }
inline void narrow(float x, F16& to) { to.bits = static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
#else
inline float widen(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | (fraction ? 0x400000 | fraction << 13 : 0));
  if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  if (!fraction) return float_of(sign);
  const uint32_t shift = __builtin_clz(fraction) - 21;  // brings the leading 1 to bit 10
  return float_of(sign | (113 - shift) << 23 | (fraction << shift & 0x3ff) << 13);
}
inline void narrow(float x, F16& to) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // 65520 and beyond round to infinity
    half = 0x7c00;
  } else if (magnitude < 0x33000000) {  // below half the smallest subnormal
    half = 0;
  } else {
    // The kept bits, with those dropped behind them: a normal loses 13, a subnormal one more for each power of two.
    const uint32_t exponent = magnitude >> 23, drop = exponent >= 113 ? 13 : 126 - exponent;
    const uint32_t fraction = (magnitude & 0x7fffff) | 0x800000, kept = fraction >> drop;
    const uint32_t rest = fraction & ((1u << drop) - 1), middle = 1u << (drop - 1);
    half = kept + (rest > middle || (rest == middle && (kept & 1)));
    if (exponent >= 113) half += (exponent - 113) << 10;  // the leading 1 in kept adds the last step of the exponent
  }
  to.bits = static_cast<uint16_t>(sign | half);
}
#endif

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline void narrow(float x, float& to) { to = x; }
inline void narrow(double x, double& to) { to = x; }

// A vector's width of elements, as numbers.
inline Vec<float> load_wide(const float* p) { return load<Vec<float>>(p); }
inline Vec<double> load_wide(const double* p) { return load<Vec<double>>(p); }
inline Vec<float> load_wide(const Bf16* p) {
  using Halves = VectorOf<uint16_t, kVectorBytes / 2>::Type;
  return Vec<float>(__builtin_convertvector(load<Halves>(p), Vec<uint32_t>) << 16);
}
inline Vec<float> load_wide(const F16* p) {
#if defined(__AVX512F__)
  return Vec<float>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return Vec<float>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return Vec<float>{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
#endif
}

// The first n elements, and zeros behind them.
template <class In>
inline auto load_wide(const In* p, int n) {
  In padded[kLanes<decltype(widen(In{}))>] = {};
  copy_first<sizeof padded / sizeof(In) / 2>(padded, p, n);
  return load_wide(padded);
}

// function(In{}, T{}, whether they are complex), for elements of `dtype` and the numbers they are computed in.
template <class Function>
inline void for_dtype(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::f32: return function(float{}, float{}, std::false_type{});
    case DType::f64: return function(double{}, double{}, std::false_type{});
    case DType::c64: return function(float{}, float{}, std::true_type{});
    case DType::c128: return function(double{}, double{}, std::true_type{});
    case DType::bf16: return function(Bf16{}, float{}, std::false_type{});
    case DType::f16: return function(F16{}, float{}, std::false_type{});
  }
}

}  // namespace vbgemm::VBGEMM_ISA
