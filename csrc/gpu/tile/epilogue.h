// The epilogue of one element, activation(alpha sum + beta source + bias), computed in the accumulator's type. All stores to C share it.
#pragma once
#include "descriptor.h"
#include "gpu/tile/arithmetic.h"

namespace vbgemm {

template <class Sum>
__device__ inline Sum make_scalar(double real, double) {
  return static_cast<Sum>(real);
}
// A negative scalar of unsigned sums wraps around.
template <>
__device__ inline uint32_t make_scalar<uint32_t>(double real, double) {
  return static_cast<uint32_t>(static_cast<int64_t>(real));
}
template <>
__device__ inline Complex<float> make_scalar<Complex<float>>(double real, double imag) {
  return {static_cast<float>(real), static_cast<float>(imag)};
}
template <>
__device__ inline Complex<double> make_scalar<Complex<double>>(double real, double imag) {
  return {real, imag};
}

template <class Real>
__device__ inline bool is_zero(Real x) {
  return x == 0;
}
template <class Real>
__device__ inline bool is_zero(Complex<Real> x) {
  return x.real == 0 && x.imag == 0;
}

// The value of an absent term: adding -0 changes no value, not even the sign of a zero.
template <class Sum>
__device__ inline Sum nothing() {
  return make_scalar<Sum>(-0.0, -0.0);
}

// Returns scale x + rest.
template <class Real>
__device__ inline Real scale_and_add(Real scale, Real x, Real rest) {
  return multiply_add(scale, x, rest);
}
// A complex scale whose imaginary part is 0 multiplies the real and the imaginary part separately, as the CPU kernel does: a full complex
// product would turn 1 times (Inf, 0) into (Inf, NaN).
template <class Real>
__device__ inline Complex<Real> scale_and_add(Complex<Real> scale, Complex<Real> x, Complex<Real> rest) {
  if (scale.imag != 0) return multiply_add(scale, x, rest);
  return {multiply_add(scale.real, x.real, rest.real), multiply_add(scale.real, x.imag, rest.imag)};
}

// Returns alpha sum + rest. As in BLAS, alpha = 0 means that the sum is ignored, even if it is NaN.
template <class Sum>
__device__ inline Sum scale_sum(Sum alpha, Sum sum, Sum rest) {
  return scale_and_add(alpha, is_zero(alpha) ? make_scalar<Sum>(0, 0) : sum, rest);
}

// The functions that activations.def uses, in addition to the compiler's tanh.
template <class Real>
__device__ inline Real relu(Real x) {
  return x <= 0 ? 0 : x;  // relu(-0) is 0, as in JAX
}
template <class Real>
__device__ inline Real sigmoid(Real x) {
  return 1 / (1 + exp(-x));
}
template <class Real>
__device__ inline Real gelu(Real x) {
  constexpr Real kSqrt2OverPi = static_cast<Real>(0.79788456080286535588), kCubic = static_cast<Real>(0.044715);
  return x / 2 * (1 + tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}

template <class Real>
__device__ inline Real activate(Activation activation, Real x) {
  switch (activation) {
    case Activation::none: break;
#define ACTIVATION(name, value) \
  case Activation::name: return value;
#include "activations.def"
  }
  return x;
}
// Complex numbers and integers have no activations: an activation leaves them unchanged.
template <class Real>
__device__ inline Complex<Real> activate(Activation, Complex<Real> x) {
  return x;
}
__device__ inline uint32_t activate(Activation, uint32_t x) { return x; }

}  // namespace vbgemm
