// Numbers on the host: how the driver makes, rounds and compares elements, independently of the kernels' own conversions.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "catalogue.h"
#include "gpu/tile/arithmetic.h"

namespace vbgemm::driver {

using Wide = std::complex<double>;  // holds every element exactly

// An IEEE-like format of 16 bits, kFraction of them behind the leading 1.
template <int kFraction>
struct ShortFormat {
  static constexpr int kBias = (1 << (14 - kFraction)) - 1;
  static constexpr uint16_t kInfinity = static_cast<uint16_t>((2 * kBias + 1) << kFraction);

  static double decode(uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> kFraction, fraction = bits & ((1 << kFraction) - 1);
    double size = std::ldexp(exponent ? fraction + (1 << kFraction) : fraction, std::max(exponent, 1) - kBias - kFraction);
    if (exponent == 2 * kBias + 1) size = fraction ? NAN : INFINITY;
    return bits >> 15 ? -size : size;
  }

  // decode, from a table, as the checks decode each element many times.
  static double value(uint16_t bits) {
    static const std::vector<double> values = [] {
      std::vector<double> all(1 << 16);
      for (int i = 0; i < 1 << 16; ++i) all[i] = decode(static_cast<uint16_t>(i));
      return all;
    }();
    return values[bits];
  }

  static uint16_t encode(double x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return sign | kInfinity | 1 << (kFraction - 1);
    const double size = std::fabs(x);
    if (size > 1e300) return sign | kInfinity;
    const int exponent = std::max(std::ilogb(size), 1 - kBias);
    // A fraction that is rounded up to 2^(kFraction + 1) carries into the exponent, and so up to infinity.
    const double bits = (exponent + kBias - 1) * std::ldexp(1, kFraction) + std::nearbyint(std::ldexp(size, kFraction - exponent));
    return sign | static_cast<uint16_t>(std::min<double>(bits, kInfinity));
  }
};

// An element type: its name in the catalogue, its spacing, and the way to Wide and back (to the nearest element).
template <class T>
struct Number;

template <>
struct Number<float> {
  static constexpr DType kDType = DType::f32;
  static constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  static Wide wide(float x) { return x; }
  static float from(Wide x) { return static_cast<float>(x.real()); }
};

template <>
struct Number<double> {
  static constexpr DType kDType = DType::f64;
  static constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  static Wide wide(double x) { return x; }
  static double from(Wide x) { return x.real(); }
};

template <class Real>
struct Number<Complex<Real>> {
  static constexpr DType kDType = sizeof(Real) == 4 ? DType::c64 : DType::c128;
  static constexpr double kEpsilon = std::numeric_limits<Real>::epsilon();
  static Wide wide(Complex<Real> x) { return {x.real, x.imag}; }
  static Complex<Real> from(Wide x) { return {static_cast<Real>(x.real()), static_cast<Real>(x.imag())}; }
};

template <>
struct Number<BFloat16> {
  static constexpr DType kDType = DType::bf16;
  static constexpr double kEpsilon = 1.0 / (1 << 7);
  static Wide wide(BFloat16 x) { return ShortFormat<7>::value(x.bits); }
  static BFloat16 from(Wide x) { return {ShortFormat<7>::encode(x.real())}; }
};

template <>
struct Number<Float16> {
  static constexpr DType kDType = DType::f16;
  static constexpr double kEpsilon = 1.0 / (1 << 10);
  static Wide wide(Float16 x) { return ShortFormat<10>::value(x.bits); }
  static Float16 from(Wide x) { return {ShortFormat<10>::encode(x.real())}; }
};

// The relative error of one product.
inline double rounding_of(Kind kind) {
  if (kind == Kind::tf32) return 3.0 / (1 << 11) * 1.01;  // one factor is rounded to 11 bits, the other rounded or cut off
  if (kind == Kind::tf32x3) return 1.5 / (1 << 21);       // small x small and small's last bits are left out
  return 0;                                               // exact in the accumulator's type, or as good as it
}

// The error of sums on tensor cores, relative to the sum of the products' sizes and in spacings of the accumulator's type. An instruction
// aligns its products and the sum so far to the largest of them, cuts each off there and cuts the result off again (Fasi et al. 2021,
// "Numerical behavior of NVIDIA tensor cores"): up to one spacing a term, and at least 8 products share an instruction.
inline double tensor_sum_error(Kind kind, int depth) {
  constexpr int kTogether = 8;
  const double instructions = depth / kTogether + 1;
  // Three times in each chunk of K, or step of four, then their sums.
  if (kind == Kind::tf32x3) return 4 * 3 * (kTogether + 2) + instructions + 4;
  return depth + 2 * instructions + 4;
}

// As the textbook has it: std::complex's own product takes much longer, to repair infinities.
inline Wide multiplied(Wide a, Wide b) { return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()}; }

// The same value, or both not a number.
inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
template <class T>
bool same(T a, T b) {
  const Wide x = Number<T>::wide(a), y = Number<T>::wide(b);
  return same(x.real(), y.real()) && same(x.imag(), y.imag());
}

// a b + sum, with the roundings that the kernels promise.
inline float fused(float a, float b, float sum) { return std::fma(a, b, sum); }
inline double fused(double a, double b, double sum) { return std::fma(a, b, sum); }
template <class Real>
Complex<Real> fused(Complex<Real> a, Complex<Real> b, Complex<Real> sum) {
  return {fused(-a.imag, b.imag, fused(a.real, b.real, sum.real)), fused(a.imag, b.real, fused(a.real, b.imag, sum.imag))};
}

}  // namespace vbgemm::driver
