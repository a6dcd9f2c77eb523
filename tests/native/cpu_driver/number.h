// Random numbers, and conversions of any dtype by arithmetic that is independent of the kernel's.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "catalogue.h"
#include "short_format.h"

namespace vbgemm::driver {

inline std::mt19937_64 rng(12345);
inline int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
inline bool chance(double p) { return std::uniform_real_distribution<>()(rng) < p; }

inline int size_of(DType dtype) { return bytes_of(dtype); }

template <class T>
T read(const unsigned char* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline Wide get(DType dtype, const unsigned char* p) {
  switch (dtype) {
    case DType::f32: return read<float>(p);
    case DType::f64: return read<double>(p);
    case DType::c64: return {read<float>(p), read<float>(p + 4)};
    case DType::c128: return {read<double>(p), read<double>(p + 8)};
    default: break;
  }
  if (is_integer(dtype)) return size_of(dtype) == 1 ? read<int8_t>(p) : read<int32_t>(p);
  return ShortFormat(dtype).decode(size_of(dtype) == 1 ? *p : read<uint16_t>(p));
}
inline void put(DType dtype, unsigned char* p, Wide x) {
  const float f[2] = {static_cast<float>(x.real()), static_cast<float>(x.imag())};
  const double d[2] = {x.real(), x.imag()};
  if (dtype == DType::f32 || dtype == DType::c64) {
    std::memcpy(p, f, size_of(dtype));
  } else if (dtype == DType::f64 || dtype == DType::c128) {
    std::memcpy(p, d, size_of(dtype));
  } else if (is_integer(dtype)) {
    const int64_t integer = std::isfinite(x.real()) ? std::llrint(x.real()) : 90;  // the low bytes: integers wrap around
    std::memcpy(p, &integer, size_of(dtype));
  } else {
    const int bits = ShortFormat(dtype).encode(x.real());
    std::memcpy(p, &bits, size_of(dtype));
  }
}
inline Wide rounded(DType dtype, Wide x) {
  unsigned char bytes[16];
  put(dtype, bytes, x);
  return get(dtype, bytes);
}
// Half the spacing of numbers, relative to their size, and near 0.
inline double epsilon(DType dtype) { return is_integer(dtype) ? 0 : std::ldexp(1, -info_of(dtype).fraction_bits - 1); }
inline double smallest(DType dtype) {
  const DTypeInfo& info = info_of(dtype);
  return is_integer(dtype) ? 0 : std::ldexp(1, 1 - (1 << (info.exponent_bits - 1)) - info.fraction_bits);
}

inline bool agrees(double got, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= tolerance;
}

}  // namespace vbgemm::driver
