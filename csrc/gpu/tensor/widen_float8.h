// Widens 8-bit floats to float16 in registers, exactly. A float16 has at least as many bits of exponent and fraction as either format, so
// that tensor cores of every architecture can multiply the result.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tile/arithmetic.h"

namespace vbgemm {

// Returns two float16 values from two 8-bit floats, which are the upper bytes of the word's halves.
template <class T>
__device__ inline uint32_t float16_of_upper_bytes(uint32_t word) {
  using Format = Float8Format<kDTypeOf<T>>;
  if constexpr (Format::kExponent == 5) {
    static_assert(Format::kInfinities && Format::kBias == 15);
    return word;
  } else {
    // With one exponent bit fewer, the bits are those of a float16 that is smaller by a factor of 2^8, also for subnormals.
    static_assert(Format::kExponent == 4 && !Format::kInfinities && Format::kBias == 7 && Format::kInfinity == 0x7f);
    constexpr uint32_t kTwoToThe8 = 0x5c005c00u, k36000 = 0x78657865u, kSigns = 0x80008000u;
    const uint32_t small = (word & kSigns) | (word & ~kSigns) >> 1;
    // NaN reads as 1.875 here and the largest value as 1.75: times 36000, only NaN overflows to infinity. Infinity times 0 is NaN; adding
    // any other value times 0 changes nothing.
    return multiply_add_float16s(multiply_float16s(small, k36000), 0, multiply_float16s(small, kTwoToThe8));
  }
}

// Widens a word's four values; `first` receives the two in its lower half.
template <class T>
__device__ inline void widen_float8(uint32_t word, uint32_t& first, uint32_t& second) {
  if constexpr (kWidensE4m3 && kDTypeOf<T> == DType::e4m3) {
    first = widen_e4m3(static_cast<uint16_t>(word));
    second = widen_e4m3(static_cast<uint16_t>(word >> 16));
  } else {
    first = float16_of_upper_bytes<T>(select_bytes(word, 0, 0x1404));
    second = float16_of_upper_bytes<T>(select_bytes(word, 0, 0x3424));
  }
}

}  // namespace vbgemm
