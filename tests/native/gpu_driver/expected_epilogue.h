// The expected result of an epilogue, computed on the host.
#pragma once
#include <cmath>

#include "expected_activation.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

// Returns scale x + rest. A complex scale without imaginary part multiplies the real and the imaginary part separately.
template <class Sum>
Sum scaled(Sum scale, Sum x, Sum rest) {
  if constexpr (kIsComplex<Sum>) {
    if (scale.imag == 0) return {fused(scale.real, x.real, rest.real), fused(scale.real, x.imag, rest.imag)};
  }
  return fused(scale, x, rest);
}

template <class Sum, class Out>
struct EpilogueTerms {
  const Epilogue& epilogue;
  Sum alpha, beta;
  Out source, bias;

  bool has_source() const { return epilogue.source.buffer >= 0 && Number<Sum>::wide(beta) != 0.0; }
};

// Whether `found` is right: equal in bits if the epilogue consists of products and sums, otherwise close. -0 stands for an absent term,
// because adding it changes nothing.
template <class Sum, class Out>
bool expected_epilogue(const EpilogueTerms<Sum, Out>& terms, Sum sum, Out found) {
  const Epilogue& e = terms.epilogue;
  const auto number = [](Out x) { return Number<Sum>::from(Number<Out>::wide(x)); };
  const Sum nothing = Number<Sum>::from({-0.0, -0.0});
  Sum rest = e.bias.buffer < 0 ? nothing : number(terms.bias);
  if (terms.has_source()) rest = scaled(terms.beta, number(terms.source), rest);
  if (Number<Sum>::wide(terms.alpha) == 0.0) sum = Number<Sum>::from({0, 0});  // alpha = 0: the sum is ignored, even if it is NaN
  const Wide x = Number<Sum>::wide(scaled(terms.alpha, sum, rest));
  if (e.activation == Activation::none || e.activation == Activation::relu) {
    const Out expected = Number<Out>::from(e.activation == Activation::none ? x : Wide(activated(Activation::relu, x.real())));
    const bool negative_zero = std::signbit(Number<Out>::wide(found).real()) && Number<Out>::wide(found).real() == 0;
    return same(found, expected) && !(e.activation == Activation::relu && negative_zero);
  }
  const double y = activated(e.activation, x.real()), got = Number<Out>::wide(found).real();
  if (!std::isfinite(y)) return same(got, y);
  return std::fabs(got - y) <=
         16 * Number<Sum>::kEpsilon * (std::fabs(y) + std::fabs(x.real())) + Number<Out>::kEpsilon * std::fabs(y) + Number<Out>::kSmallest;
}

// As expected_epilogue, for a sum that is known only to within `tolerance`. No activation is steeper than 1.2.
template <class Sum, class Out>
bool close_to_epilogue(const EpilogueTerms<Sum, Out>& terms, double sum, double tolerance, Out found) {
  const Epilogue& e = terms.epilogue;
  const double alpha = Number<Sum>::wide(terms.alpha).real(), bias = e.bias.buffer < 0 ? 0 : Number<Out>::wide(terms.bias).real();
  if (alpha == 0) sum = 0;
  const double rest = terms.has_source() ? Number<Sum>::wide(terms.beta).real() * Number<Out>::wide(terms.source).real() : 0;
  const double size = std::fabs(alpha * sum) + std::fabs(rest) + std::fabs(bias);
  const double y = activated(e.activation, alpha * sum + rest + bias);
  if (!std::isfinite(y)) return same(Number<Out>::wide(found).real(), y);
  const double rounding = 16 * Number<Sum>::kEpsilon * (std::fabs(y) + size) + Number<Out>::kEpsilon * std::fabs(y);
  return std::fabs(Number<Out>::wide(found).real() - y) <= 1.2 * std::fabs(alpha) * tolerance + rounding + Number<Out>::kSmallest;
}

}  // namespace vbgemm::driver
