// The element types, and what a product does with them: accumulate in which type, get there and back, multiply and add.
#pragma once
#include <cmath>
#include <cstdint>

#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real real, imag;
};

template <class T>
inline constexpr bool kIsComplex = false;
template <class Real>
inline constexpr bool kIsComplex<Complex<Real>> = true;

template <class T>
struct Arithmetic {
  using Accumulator = T;
};
template <>
struct Arithmetic<BFloat16> {
  using Accumulator = float;
};
template <>
struct Arithmetic<Float16> {
  using Accumulator = float;
};
template <class T>
using Accumulator = typename Arithmetic<T>::Accumulator;

template <class T>
__device__ inline T widen(T x) {
  return x;
}
__device__ inline float widen(BFloat16 x) { return bfloat16_to_float(x.bits); }
__device__ inline float widen(Float16 x) { return float16_to_float(x.bits); }

// Rounds to nearest, ties to even.
template <class T>
__device__ inline void narrow(T x, T& to) {
  to = x;
}
__device__ inline void narrow(float x, BFloat16& to) { to.bits = float_to_bfloat16(x); }
__device__ inline void narrow(float x, Float16& to) { to.bits = float_to_float16(x); }

template <class Real>
__host__ __device__ inline Complex<Real> operator+(Complex<Real> a, Complex<Real> b) {
  return {a.real + b.real, a.imag + b.imag};
}

// One rounding, whatever the compiler's contraction flags: the bits of a result are part of the contract.
__device__ inline float multiply_add(float a, float b, float sum) { return ::fmaf(a, b, sum); }
__device__ inline double multiply_add(double a, double b, double sum) { return ::fma(a, b, sum); }
template <class Real>
__device__ inline Complex<Real> multiply_add(Complex<Real> a, Complex<Real> b, Complex<Real> sum) {
  return {multiply_add(-a.imag, b.imag, multiply_add(a.real, b.real, sum.real)),
          multiply_add(a.imag, b.real, multiply_add(a.real, b.imag, sum.imag))};
}

}  // namespace vbgemm
