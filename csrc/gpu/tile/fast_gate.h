// silu and gelu for gates, computed while nothing else runs: fast division and exponential, with a relative error of about 1e-6.
#pragma once
#include "descriptor.h"
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

// The value and the slope of silu, or of gelu in its tanh form: x sigmoid(t), where t is x or 2 sqrt(2 / pi) (x + 0.044715 x^3).
struct FastGate {
  float value, slope;
};
__device__ inline FastGate fast_gate(Activation activation, float x) {
  constexpr float kLinear = 1.5957691216f, kCubic = kLinear * 0.044715f;
  constexpr float kSaturation = 16;  // beyond this gelu's sigmoid is 0 or 1; clamping keeps x^2 finite
  const bool silu = activation == Activation::silu;
  const float clamped = x < -kSaturation ? -kSaturation : x > kSaturation ? kSaturation : x, square = clamped * clamped;
  const float t = silu ? x : clamped * (kLinear + kCubic * square), slope = silu ? 1 : kLinear + 3 * kCubic * square;
  const float sigmoid = fast_divide(1, 1 + fast_exp(-t));
  return {x * sigmoid, sigmoid + x * sigmoid * (1 - sigmoid) * slope};
}

}  // namespace vbgemm
