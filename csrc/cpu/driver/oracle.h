// What a result is compared with, in float64.
#pragma once
#include <cmath>

#include "descriptor.h"

namespace vbgemm::driver {

inline bool agrees(double got, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= tolerance;
}

inline double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
inline double activate(double x, Activation activation) {
  switch (activation) {
    case Activation::relu: return x <= 0 ? 0 : x;
    case Activation::gelu: return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    case Activation::silu: return x * sigmoid(x);
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return sigmoid(x);
    default: return x;
  }
}

}  // namespace vbgemm::driver
