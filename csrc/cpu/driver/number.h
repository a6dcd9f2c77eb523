// Random numbers, and elements of any dtype by arithmetic that shares nothing with the kernel's.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <random>

#include "catalogue.h"

namespace vbgemm::driver {

using Number = std::complex<double>;

inline std::mt19937_64 rng(12345);
inline int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
inline bool chance(double p) { return std::uniform_real_distribution<>()(rng) < p; }

inline int size_of(DType dtype) {
  constexpr int kSizes[kDTypes] = {4, 8, 8, 16, 2, 2};
  return kSizes[static_cast<int>(dtype)];
}
inline bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

inline double from_half(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = bits >> fraction_bits & top, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == top) return fraction ? NAN : sign * INFINITY;
  return sign * std::ldexp(exponent ? fraction + (1 << fraction_bits) : fraction, std::max(exponent, 1) - bias - fraction_bits);
}
inline uint16_t to_half(double x, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0, infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  if (std::isnan(x)) return sign | infinity | 1 << (fraction_bits - 1);
  if (x == 0) return sign;
  if (std::isinf(x)) return sign | infinity;
  const int step = std::max(std::ilogb(x), 1 - bias) - fraction_bits;
  const double steps = std::nearbyint(std::ldexp(std::fabs(x), -step));  // ties to even
  const double bits = steps + std::ldexp(step + bias + fraction_bits - 1, fraction_bits);
  return sign | static_cast<uint16_t>(std::min<double>(bits, infinity));
}
inline int exponent_bits(DType dtype) { return dtype == DType::bf16 ? 8 : 5; }

template <class T>
T read(const unsigned char* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline Number get(DType dtype, const unsigned char* p) {
  switch (dtype) {
    case DType::f32: return read<float>(p);
    case DType::f64: return read<double>(p);
    case DType::c64: return {read<float>(p), read<float>(p + 4)};
    case DType::c128: return {read<double>(p), read<double>(p + 8)};
    default: return from_half(read<uint16_t>(p), exponent_bits(dtype));
  }
}
inline void put(DType dtype, unsigned char* p, Number x) {
  const float f[2] = {static_cast<float>(x.real()), static_cast<float>(x.imag())};
  const double d[2] = {x.real(), x.imag()};
  if (dtype == DType::f32 || dtype == DType::c64) {
    std::memcpy(p, f, size_of(dtype));
  } else if (dtype == DType::f64 || dtype == DType::c128) {
    std::memcpy(p, d, size_of(dtype));
  } else {
    const uint16_t half = to_half(x.real(), exponent_bits(dtype));
    std::memcpy(p, &half, 2);
  }
}
inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128: return 0x1p-53;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-24;
  }
}

}  // namespace vbgemm::driver
