// What a result is compared with, in float64.
#pragma once
#include <cmath>

#include "expected_activation.h"

namespace vbgemm::driver {

inline bool agrees(double got, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= tolerance;
}

}  // namespace vbgemm::driver
