// Scalar arithmetic with special instructions on NVIDIA GPUs: conversions of the element types, approximate division and powers, and bit
// and byte operations. A part of cuda_vendor.h.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#ifdef __CUDACC__

namespace vbgemm {

// Divisions and powers that flush subnormals, so that each is one instruction and a multiplication: for y up to 2^126, and with an error of
// about 2 + |x| units in the last place (CUDA C++ Programming Guide, "Intrinsic Functions").
__device__ inline float fast_divide(float x, float y) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  return x * inverse;
}
__device__ inline float fast_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950409f));
  return power;
}
// 1 / x rounded to nearest, for x from 2^-126 to 2^126; an ordinary division has a branch for other values.
__device__ inline float reciprocal(float x) {
  const float near = fast_divide(1, x);
  return __fmaf_rn(near, -__fmaf_rn(near, x, -1), near);
}

__device__ inline float bfloat16_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
__device__ inline float float16_to_float(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ inline uint16_t float_to_float16(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ inline uint16_t float_to_bfloat16(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// Packs two values into a word, the first one in the lower half.
__device__ inline uint32_t floats_to_float16s(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ inline uint32_t floats_to_bfloat16s(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// Rounds to the nearest TF32 value; may overflow to infinity. The last 13 bits of the result, which the tensor cores ignore, are arbitrary.
// This is one instruction from sm_90 on, and three before.
__device__ inline uint32_t round_to_tf32(float x) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
  return bits;
}
__device__ inline float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ inline uint32_t bits_of_float(float x) { return __float_as_uint(x); }

// Returns the 32 bits of high:low that begin at bit `bits` (0 to 31).
__device__ inline uint32_t shifted_word(uint32_t low, uint32_t high, int bits) { return __funnelshift_r(low, high, bits); }

// Returns the bytes of high:low that the hexadecimal digits of `selector` select (prmt), lowest digit first.
__device__ inline uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }

// Returns x y, and x y + z, for two float16 values per word. Neither flushes subnormals.
__device__ inline uint32_t multiply_float16s(uint32_t x, uint32_t y) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}
__device__ inline uint32_t multiply_add_float16s(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

// Whether an instruction exists that widens two float8_e4m3fn values to float16, and that instruction.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kWidensE4m3 = true;
#else
inline constexpr bool kWidensE4m3 = false;
#endif
__device__ inline uint32_t widen_e4m3(uint16_t two) {
  uint32_t wide = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(two));
#endif
  return wide;
}

// Whether instructions exist that narrow float32 to 8 bits, and the conversion of four values to float8_e4m3fn or float8_e5m2. The first
// value is in the lowest byte. Values saturate, and NaN stays NaN.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kNarrowsFloat8 = true;
#else
inline constexpr bool kNarrowsFloat8 = false;
#endif
template <bool kE4m3>
__device__ inline uint32_t narrow_float8(float x, float y, float z, float w) {
  uint32_t four = 0;
#if __CUDA_ARCH__ >= 890
#define VBGEMM_NARROW(type)                                                                     \
  asm("{.reg .b16 low, high; cvt.rn.satfinite." type ".f32 low, %2, %1; cvt.rn.satfinite." type \
      ".f32 high, %4, %3;\n"                                                                    \
      "mov.b32 %0, {low, high};}"                                                               \
      : "=r"(four)                                                                              \
      : "f"(x), "f"(y), "f"(z), "f"(w))
  if constexpr (kE4m3) {
    VBGEMM_NARROW("e4m3x2");
  } else {
    VBGEMM_NARROW("e5m2x2");
  }
#undef VBGEMM_NARROW
#endif
  return four;
}

// The maximum of each pair of unsigned 16-bit halves.
__device__ inline uint32_t larger_halves(uint32_t x, uint32_t y) { return __vmaxu2(x, y); }

}  // namespace vbgemm

#endif
