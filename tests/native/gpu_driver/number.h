// Numbers on the host: how the driver generates, rounds and compares elements, independently of the kernels' own conversions.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catalogue.h"
#include "gpu/tile/arithmetic.h"
#include "short_format.h"

namespace vbgemm::driver {

// An element type: its spacing, and conversions to Wide and back (to the nearest element). Floats that C++ has no type for are short.
template <class T>
struct Number {
  static constexpr ShortFormat kFormat{kDTypeOf<T>};
  static constexpr double kEpsilon = 1.0 / (1 << kFormat.fraction_bits());
  // A lower bound of the spacing near 0.
  static constexpr double kSmallest = kFormat.bias() > 100 ? 1e-7 : 2.0 / (1 << (kFormat.bias() + kFormat.fraction_bits() - 1));
  static Wide wide(T x) {
    static const std::vector<double> values = kFormat.values();  // the checks decode each element many times
    return values[x.bits];
  }
  static T from(Wide x) { return {static_cast<decltype(T::bits)>(kFormat.encode(x.real()))}; }
};

template <>
struct Number<float> {
  static constexpr double kEpsilon = std::numeric_limits<float>::epsilon(), kSmallest = 0;
  static Wide wide(float x) { return x; }
  static float from(Wide x) { return static_cast<float>(x.real()); }
};

template <>
struct Number<double> {
  static constexpr double kEpsilon = std::numeric_limits<double>::epsilon(), kSmallest = 0;
  static Wide wide(double x) { return x; }
  static double from(Wide x) { return x.real(); }
};

template <class Real>
struct Number<Complex<Real>> {
  static constexpr double kEpsilon = std::numeric_limits<Real>::epsilon(), kSmallest = 0;
  static Wide wide(Complex<Real> x) { return {x.real, x.imag}; }
  static Complex<Real> from(Wide x) { return {static_cast<Real>(x.real()), static_cast<Real>(x.imag())}; }
};

// Integers wrap around. NaN and infinities, which the checks put where nothing may be read, may become any integer.
template <>
struct Number<uint32_t> {
  static constexpr double kEpsilon = 0, kSmallest = 0;
  static Wide wide(uint32_t x) { return static_cast<int32_t>(x); }
  static uint32_t from(Wide x) { return std::isfinite(x.real()) ? static_cast<uint32_t>(std::llrint(x.real())) : 0x5a5a5a5a; }
};
template <>
struct Number<int8_t> {
  static constexpr double kEpsilon = 0, kSmallest = 0;
  static Wide wide(int8_t x) { return x; }
  static int8_t from(Wide x) { return std::isfinite(x.real()) ? static_cast<int8_t>(std::llrint(x.real())) : 0x5a; }
};

// The relative error of one product.
inline double rounding_of(Kind kind) {
  if (kind == Kind::tf32) return 3.0 / (1 << 11) * 1.01;  // one factor is rounded to 11 bits, the other rounded or truncated
  if (kind == Kind::tf32x3) return 1.5 / (1 << 21);       // small x small and the last bits of small are left out
  return 0;                                               // exact in the accumulator's type, or rounded to it
}

// The error of sums on tensor cores, relative to the sum of the products' magnitudes and in spacings of the accumulator's type. An
// instruction aligns its products and the previous sum to the largest of them, truncates each there, and truncates the result again (Fasi
// et al. 2021, "Numerical behavior of NVIDIA tensor cores"). That is up to one spacing for each term, and at least 8 products share an
// instruction.
inline double tensor_sum_error(Kind kind, int depth) {
  constexpr int kTogether = 8;
  const double instructions = depth / kTogether + 1;
  // Three times in each chunk of K, or step of four, and then their sums.
  if (kind == Kind::tf32x3) return 4 * 3 * (kTogether + 2) + instructions + 4;
  return depth + 2 * instructions + 4;
}

// The schoolbook product: std::complex's own product takes much longer, because it repairs infinities.
inline Wide multiplied(Wide a, Wide b) { return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()}; }

// Whether two values are equal, or both are NaN.
inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
template <class T>
bool same(T a, T b) {
  const Wide x = Number<T>::wide(a), y = Number<T>::wide(b);
  return same(x.real(), y.real()) && same(x.imag(), y.imag());
}

// Returns a b + sum, with the roundings that the kernels promise.
inline float fused(float a, float b, float sum) { return std::fma(a, b, sum); }
inline double fused(double a, double b, double sum) { return std::fma(a, b, sum); }
inline uint32_t fused(uint32_t a, uint32_t b, uint32_t sum) { return a * b + sum; }
template <class Real>
Complex<Real> fused(Complex<Real> a, Complex<Real> b, Complex<Real> sum) {
  return {fused(-a.imag, b.imag, fused(a.real, b.real, sum.real)), fused(a.imag, b.real, fused(a.real, b.imag, sum.imag))};
}

}  // namespace vbgemm::driver
