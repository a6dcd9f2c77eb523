// The value that the drivers expect of an activation, in float64.
#pragma once
#include <cmath>

#include "descriptor.h"

namespace vbgemm::driver {

inline double relu(double x) { return x <= 0 ? 0 : x; }  // of -0 it is 0
inline double tanh(double x) { return std::tanh(x); }
inline double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
inline double gelu(double x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

inline double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none: break;
#define ACTIVATION(name, value) \
  case Activation::name: return value;
#include "activations.def"
  }
  return x;
}

}  // namespace vbgemm::driver
