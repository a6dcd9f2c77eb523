// What a product does with its elements: the accumulator's type and one multiply-add, by the operands' type.
#pragma once
#include <cmath>

#include "gpu_vendor.h"

namespace vbgemm {

template <class T>
struct Arithmetic;

template <>
struct Arithmetic<float> {
  using Accumulator = float;
};

template <>
struct Arithmetic<double> {
  using Accumulator = double;
};

// One rounding, whatever the compiler's contraction flags: the bits of a result are part of the contract.
__device__ inline float multiply_add(float a, float b, float sum) { return ::fmaf(a, b, sum); }
__device__ inline double multiply_add(double a, double b, double sum) { return ::fma(a, b, sum); }

}  // namespace vbgemm
