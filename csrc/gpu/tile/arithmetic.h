// The scalar arithmetic of the kernels: conversion from an element type to its accumulator type and back, and the multiply-add. It is
// separate from the tile kernels so that all of them round alike.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dtypes.h"
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

template <class T>
__device__ inline T widen(T x) {
  return x;
}
__device__ inline float widen(BFloat16 x) { return bfloat16_to_float(x.bits); }
__device__ inline float widen(Float16 x) { return float16_to_float(x.bits); }

#define VBGEMM_FLOAT8 __device__ inline
#include "float8.h"
#undef VBGEMM_FLOAT8
struct BitsOfFloat {
  __device__ uint32_t operator()(float x) const { return bits_of_float(x); }
};
struct FloatOfBits {
  __device__ float operator()(uint32_t bits) const { return float_of_bits(bits); }
};
template <DType kDType>
__device__ inline float widen(Float8<kDType> x) {
  return float_of_bits(Float8Format<kDType>::widen(uint32_t{x.bits}, BitsOfFloat(), FloatOfBits()));
}

// Packs two values into a word, the first one in the lower half.
template <class T>
__device__ inline uint32_t narrow_two(float low, float high) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
  if constexpr (std::is_same_v<T, BFloat16>) return floats_to_bfloat16s(low, high);
  return floats_to_float16s(low, high);
}

// Integer sums wrap around on overflow, as they do in XLA. They are unsigned here because signed overflow is undefined in C++.
__device__ inline uint32_t widen(int8_t x) { return static_cast<uint32_t>(int32_t{x}); }

// Rounds to nearest, ties to even.
template <class T>
__device__ inline void narrow(T x, T& to) {
  to = x;
}
__device__ inline void narrow(float x, BFloat16& to) { to.bits = float_to_bfloat16(x); }
__device__ inline void narrow(float x, Float16& to) { to.bits = float_to_float16(x); }
template <DType kDType>
__device__ inline void narrow(float x, Float8<kDType>& to) {
  to.bits = Float8Format<kDType>::narrow(bits_of_float(x), BitsOfFloat(), FloatOfBits());
}
__device__ inline void narrow(uint32_t x, int8_t& to) { to = static_cast<int8_t>(x); }

template <class Real>
__host__ __device__ inline Complex<Real> operator+(Complex<Real> a, Complex<Real> b) {
  return {a.real + b.real, a.imag + b.imag};
}

// A fused multiply-add with one rounding, written out so that the compiler's contraction flags cannot change it: the bits of a result are
// part of the kernels' contract.
__device__ inline float multiply_add(float a, float b, float sum) { return ::fmaf(a, b, sum); }
__device__ inline double multiply_add(double a, double b, double sum) { return ::fma(a, b, sum); }
__device__ inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t sum) { return a * b + sum; }
template <class Real>
__device__ inline Complex<Real> multiply_add(Complex<Real> a, Complex<Real> b, Complex<Real> sum) {
  return {multiply_add(-a.imag, b.imag, multiply_add(a.real, b.real, sum.real)),
          multiply_add(a.imag, b.real, multiply_add(a.real, b.imag, sum.imag))};
}

// Calls `store` with a default-constructed element of the result type `result`, which is one of the set kResults.
template <uint32_t kResults, int kFrom = 0, class Store>
__device__ __forceinline__ void with_one_of(DType result, const Store& store) {
  constexpr uint32_t kRemaining = kResults >> kFrom;
  if constexpr ((kRemaining & 1) == 0) {
    with_one_of<kResults, kFrom + 1>(result, store);
  } else if constexpr (kRemaining == 1) {
    store(Element<static_cast<DType>(kFrom)>());
  } else if (result == static_cast<DType>(kFrom)) {
    store(Element<static_cast<DType>(kFrom)>());
  } else {
    with_one_of<kResults, kFrom + 1>(result, store);
  }
}

// As with_one_of, for the types to which sums of products of T may be rounded.
template <class T, class Store>
__device__ __forceinline__ void with_result(DType result, const Store& store) {
  with_one_of<kResultsOf<T>>(result, store);
}

}  // namespace vbgemm
