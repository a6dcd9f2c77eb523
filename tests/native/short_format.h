// The numbers of both drivers, and floats of up to 16 bits as dtypes.def declares them, converted by arithmetic that is independent of the
// kernels' own.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "catalogue.h"

namespace vbgemm::driver {

using Wide = std::complex<double>;  // represents every element exactly

// A format without infinities has NaN in place of its largest number.
class ShortFormat {
 public:
  constexpr explicit ShortFormat(DType dtype) : info_(info_of(dtype)) {}

  constexpr int fraction_bits() const { return info_.fraction_bits; }
  constexpr int bias() const { return (1 << (info_.exponent_bits - 1)) - 1; }
  constexpr int sign() const { return 1 << (8 * info_.bytes - 1); }
  constexpr int too_large() const { return info_.has_infinities ? (2 * bias() + 1) << fraction_bits() : sign() - 1; }  // infinity, or NaN

  double decode(int bits) const {
    const int magnitude = bits & (sign() - 1), exponent = magnitude >> fraction_bits(), fraction = magnitude & ((1 << fraction_bits()) - 1);
    double size = std::ldexp(exponent ? fraction + (1 << fraction_bits()) : fraction, std::max(exponent, 1) - bias() - fraction_bits());
    if (magnitude >= too_large()) size = info_.has_infinities && !fraction ? INFINITY : NAN;
    return bits & sign() ? -size : size;
  }
  // As decode, for all bits.
  std::vector<double> values() const {
    std::vector<double> all(1 << 8 * info_.bytes);
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = decode(static_cast<int>(bits));
    return all;
  }
  int encode(double x) const {
    const int negative = std::signbit(x) ? sign() : 0;
    if (std::isnan(x)) return negative | (info_.has_infinities ? too_large() | 1 << (fraction_bits() - 1) : too_large());
    if (x == 0) return negative;
    if (std::isinf(x)) return negative | too_large();
    const int step = std::max(std::ilogb(x), 1 - bias()) - fraction_bits();
    const double steps = std::nearbyint(std::ldexp(std::fabs(x), -step));  // ties to even
    // A fraction that is rounded up to 2^(fraction_bits + 1) carries into the exponent, up to infinity.
    const double bits = steps + std::ldexp(step + bias() + fraction_bits() - 1, fraction_bits());
    return negative | static_cast<int>(std::min<double>(bits, too_large()));
  }

 private:
  const DTypeInfo& info_;
};

}  // namespace vbgemm::driver
