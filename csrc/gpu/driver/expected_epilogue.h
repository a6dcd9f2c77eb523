// What an epilogue must make of a sum, on the host.
#pragma once
#include <cmath>

#include "../../descriptor.h"
#include "number.h"

namespace vbgemm::driver {

inline double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x > 0 || std::isnan(x) ? x : 0;
    case Activation::gelu: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
  }
  return NAN;
}

// Whether `found` is right: the same bits where only products and sums are involved, else close. -0 stands for a missing term, as adding it
// changes nothing.
template <class Sum, class Out>
bool expected_epilogue(const Epilogue& e, Sum sum, Sum alpha, Sum beta, Out source, Out bias, Out found) {
  const auto number = [](Out x) { return Number<Sum>::from(Number<Out>::wide(x)); };
  const Sum nothing = Number<Sum>::from({-0.0, -0.0});
  Sum rest = e.bias.buffer < 0 ? nothing : number(bias);
  if (e.source.buffer >= 0 && Number<Sum>::wide(beta) != 0.0) rest = fused(beta, number(source), rest);
  const Wide x = Number<Sum>::wide(fused(alpha, sum, rest));
  if (e.activation == Activation::none || e.activation == Activation::relu) {
    return same(found, Number<Out>::from(e.activation == Activation::none ? x : Wide(activated(Activation::relu, x.real()))));
  }
  const double y = activated(e.activation, x.real()), got = Number<Out>::wide(found).real();
  if (!std::isfinite(y)) return same(got, y);
  constexpr double kSmallest = 1e-7;  // float16 is no finer than that around 0
  return std::fabs(got - y) <= 16 * Number<Sum>::kEpsilon * (std::fabs(y) + std::fabs(x.real())) + Number<Out>::kEpsilon * std::fabs(y) +
                                   (sizeof(Out) == 2 ? kSmallest : 0);
}

}  // namespace vbgemm::driver
