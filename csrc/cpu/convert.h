// Conversions between element types and compute types: short floats to and from float32, rounding to nearest even, and integers to and from
// their accumulators. They use integer arithmetic or F16C, which ignore the flush-to-zero mode that XLA sets on its threads, so that
// subnormals survive.
#pragma once
#include <type_traits>

#include "catalogue.h"
#include "cpu/simd.h"
#include "dtypes.h"

namespace vbgemm::VBGEMM_ISA {

// The real type of an element or accumulator: a complex number is a pair of real numbers.
template <class E>
struct ElementParts {
  using Number = E;
};
template <class Real>
struct ElementParts<Complex<Real>> {
  using Number = Real;
};
template <class E>
using NumberOf = typename ElementParts<E>::Number;
template <class E>
using SumNumberOf = NumberOf<Accumulator<E>>;

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

inline float widen(BFloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline void narrow(float x, BFloat16& to) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet_nan = bits | 0x400000;
  to.bits = static_cast<uint16_t>((magnitude > 0x7f800000 ? quiet_nan : rounded) >> 16);
}

#if defined(__F16C__)
inline float widen(Float16 x) { return _cvtsh_ss(x.bits); }
inline void narrow(float x, Float16& to) { to.bits = static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
#else
inline float widen(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | (fraction ? 0x400000 | fraction << 13 : 0));
  if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  if (!fraction) return float_of(sign);
  const uint32_t shift = __builtin_clz(fraction) - 21;  // moves the leading 1 to bit 10
  return float_of(sign | (113 - shift) << 23 | (fraction << shift & 0x3ff) << 13);
}
inline void narrow(float x, Float16& to) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // values of 65520 or more round to infinity
    half = 0x7c00;
  } else if (magnitude < 0x33000000) {  // less than half the smallest subnormal
    half = 0;
  } else {
    // `kept` are the remaining bits, `rest` the dropped bits: a normal value drops 13 bits, a subnormal one more for each power of two.
    const uint32_t exponent = magnitude >> 23, drop = exponent >= 113 ? 13 : 126 - exponent;
    const uint32_t fraction = (magnitude & 0x7fffff) | 0x800000, kept = fraction >> drop;
    const uint32_t rest = fraction & ((1u << drop) - 1), middle = 1u << (drop - 1);
    half = kept + (rest > middle || (rest == middle && (kept & 1)));
    if (exponent >= 113) half += (exponent - 113) << 10;  // the leading 1 in `kept` increments the exponent
  }
  to.bits = static_cast<uint16_t>(sign | half);
}
#endif

#define VBGEMM_FLOAT8 inline
#include "float8.h"
#undef VBGEMM_FLOAT8
template <DType kDType>
inline float widen(Float8<kDType> x) {
  return float_of(Float8Format<kDType>::widen(uint32_t{x.bits}, bits_of, float_of));
}
template <DType kDType>
inline void narrow(float x, Float8<kDType>& to) {
  to.bits = Float8Format<kDType>::narrow(bits_of(x), bits_of, float_of);
}

// Integer sums wrap around on overflow, as they do in XLA. They are unsigned here because signed overflow is undefined in C++.
inline uint32_t widen(int8_t x) { return static_cast<uint32_t>(int32_t{x}); }
inline void narrow(uint32_t x, int8_t& to) { to = static_cast<int8_t>(x); }

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline uint32_t widen(uint32_t x) { return x; }
inline void narrow(float x, float& to) { to = x; }
inline void narrow(double x, double& to) { to = x; }
inline void narrow(uint32_t x, uint32_t& to) { to = x; }

// Loads one vector of elements and converts them to the compute type.
inline Vec<float> load_wide(const float* p) { return load<Vec<float>>(p); }
inline Vec<double> load_wide(const double* p) { return load<Vec<double>>(p); }
inline Vec<float> load_wide(const BFloat16* p) {
  using Halves = VectorOf<uint16_t, kVectorBytes / 2>::Type;
  return Vec<float>(__builtin_convertvector(load<Halves>(p), Vec<uint32_t>) << 16);
}
inline Vec<float> load_wide(const Float16* p) {
#if defined(__AVX512F__)
  return Vec<float>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return Vec<float>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return Vec<float>{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
#endif
}
template <class To, class Byte>
inline To load_bytes(const Byte* p) {
  return __builtin_convertvector(load<typename VectorOf<Byte, kVectorBytes / 4>::Type>(p), To);
}
template <DType kDType>
inline Vec<float> load_wide(const Float8<kDType>* p) {
  using Words = Vec<uint32_t>;
  const auto bits_of_vector = [](Vec<float> x) { return Words(x); };
  const auto floats_of = [](Words bits) { return Vec<float>(bits); };
  return floats_of(Float8Format<kDType>::widen(load_bytes<Words>(reinterpret_cast<const uint8_t*>(p)), bits_of_vector, floats_of));
}
inline Vec<uint32_t> load_wide(const uint32_t* p) { return load<Vec<uint32_t>>(p); }
inline Vec<uint32_t> load_wide(const int8_t* p) { return Vec<uint32_t>(load_bytes<Vec<int32_t>>(p)); }

// Loads the first n elements, followed by zeros.
template <class In>
inline auto load_wide(const In* p, int n) {
  In padded[kLanes<decltype(widen(In{}))>] = {};
  copy_first<sizeof padded / sizeof(In) / 2>(padded, p, n);
  return load_wide(padded);
}

// Calls function(Lhs{}, Rhs{}) with an element of each operand type of an arithmetic.
template <class Function>
inline void for_kind(Kind kind, const Function& function) {
  switch (kind) {
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, set, name, lhs, rhs, ...) \
  case Kind::id: return function(Element<DType::lhs>{}, Element<DType::rhs>{});
#include "dtypes.def"
  }
}

}  // namespace vbgemm::VBGEMM_ISA
