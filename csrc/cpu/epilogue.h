// The epilogue of a block of sums: scale activation(alpha sum + beta source + bias), in the accumulator's arithmetic.
//
// The activations are built on one exponential for non-positive arguments, which neither overflows nor loses small results. All of them
// propagate NaN. They use the compiler's vector extensions, because libm calls would take longer than the products.
#pragma once
#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/micro_kernel.h"
#include "cpu/pack.h"

namespace vbgemm::VBGEMM_ISA {

template <class T>
struct Integer;
template <>
struct Integer<float> {
  using Type = int32_t;
};
template <>
struct Integer<double> {
  using Type = int64_t;
};

template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};  // unlike adding zeros, this preserves -0
}
template <class T>
inline Vec<T> minus_magnitude(Vec<T> x) {
  using I = typename Integer<T>::Type;
  return Vec<T>(Vec<I>(x) | Vec<I>(splat<T>(T(-0.0))));
}
template <class T>
inline Vec<T> polynomial(Vec<T>, Vec<T> sum) {
  return sum;
}
template <class T, class... Rest>
inline Vec<T> polynomial(Vec<T> x, Vec<T> sum, T next, Rest... rest) {
  return polynomial<T>(x, sum * x + next, rest...);
}

// Returns 2^n for n from -1022 (-126 in float32) to 0, where n is given as the bits of a floating-point n that was rounded by adding
// `rounder`.
template <class T>
inline Vec<T> power_of_two(Vec<typename Integer<T>::Type> n) {
  constexpr int kFraction = sizeof(T) == 4 ? 23 : 52, kBias = sizeof(T) == 4 ? 127 : 1023;
  return Vec<T>((n + kBias) << kFraction);
}

// exp(x) for x <= 0: x = n ln 2 + r, exp(r) by a polynomial (float: Cephes expf; double: Taylor), times 2^n. The multiplication has two
// steps, because the smallest results are subnormal.
template <class T>
inline Vec<T> exp_not_positive(Vec<T> x) {
  using I = typename Integer<T>::Type;
  constexpr bool kFloat = sizeof(T) == 4;
  const Vec<T> lowest = splat<T>(kFloat ? T(-104) : T(-746)), rounder = splat<T>(kFloat ? T(0x1.8p23) : T(0x1.8p52));
  x = x < lowest ? lowest : x;
  const Vec<T> shifted = x * T(1.44269504088896340736) + rounder, n = shifted - rounder;
  const Vec<T> r =
      (x - n * (kFloat ? T(0.693359375) : T(6.93145751953125e-1))) - n * (kFloat ? T(-2.12194440e-4) : T(1.42860682030941723212e-6));
  Vec<T> y;
  if constexpr (kFloat) {
    y = polynomial<T>(r, splat<T>(1.9875691500e-4f), 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                      5.0000001201e-1f);
    y = y * r * r + r + T(1);
  } else {
    y = polynomial<T>(r, splat<T>(1 / 6227020800.0), 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0, 1 / 5040.0,
                      1 / 720.0, 1 / 120.0, 1 / 24.0, 1 / 6.0, 0.5, 1.0, 1.0);
  }
  const Vec<I> exponent = Vec<I>(shifted) - Vec<I>(rounder), half = exponent >> 1;
  return y * power_of_two<T>(half) * power_of_two<T>(exponent - half);
}

// The functions that activations.def uses, for vectors.
template <class T>
struct Activations {
  static Vec<T> relu(Vec<T> x) { return x <= T(0) ? Vec<T>{} : x; }

  static Vec<T> sigmoid(Vec<T> x) {
    const Vec<T> t = exp_not_positive<T>(minus_magnitude<T>(x));
    return (x < T(0) ? t : splat<T>(1)) / (t + T(1));
  }

  // Near 0, where 1 - exp(-2|x|) cancels, it uses Cephes' approximations of tanh x - x.
  static Vec<T> tanh(Vec<T> x) {
    const Vec<T> minus = minus_magnitude<T>(x), t = exp_not_positive<T>(minus * T(2)), z = x * x;
    const Vec<T> far = (T(1) - t) / (t + T(1));
    Vec<T> near;
    if constexpr (sizeof(T) == 4) {
      near = polynomial<T>(z, splat<T>(-5.70498872745e-3f), 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f);
    } else {
      near = polynomial<T>(z, splat<T>(-9.64399179425052238628e-1), -9.92877231001918586564e1, -1.61468768441708447952e3) /
             polynomial<T>(z, splat<T>(1), 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3);
    }
    return minus > T(-0.625) ? x + x * z * near : x < T(0) ? -far : far;
  }

  // 1/2 (1 + tanh(u)) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  static Vec<T> gelu(Vec<T> x) { return x * sigmoid((x + x * x * x * T(0.044715)) * T(1.5957691216057307117598)); }

  static Vec<T> activate(Vec<T> x, Activation activation) {
    switch (activation) {
      case Activation::none: break;
#define ACTIVATION(name, value) \
  case Activation::name: return value;
#include "activations.def"
    }
    return x;
  }
};

// Multiplies vectors by a scalar; complex vectors hold (re, im) pairs.
template <class T, int kParts>
class Scale {
 public:
  explicit Scale(const double (&x)[2]) : re_(number(x[0])), im_(number(x[1])) {}
  bool zero() const { return re_ == 0 && (kParts == 1 || im_ == 0); }
  Vec<T> operator()(Vec<T> v) const {
    if constexpr (kParts == 2) {
      if (im_ != 0) return v * re_ + times_i(v, AllLanes<T>{}) * im_;
    }
    return v * re_;
  }

 private:
  // A negative scalar of unsigned sums wraps around.
  static T number(double x) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<int64_t>(x));
    return static_cast<T>(x);
  }

  T re_, im_;
};

// Applies the epilogue to rows x columns sums in place; the first sum belongs to element (i, j) of the product. Rows are `width` reals
// apart, a multiple of the vector width. This function is never inlined: compilers would contract multiply-adds differently in different
// copies, and the bits of a result would depend on the plan.
template <int kParts, class Out, class T>
__attribute__((noinline)) void finish_block(const Finish& finish, T* sums, int64_t width, int64_t rows, int64_t columns, int64_t i,
                                            int64_t j) {
  constexpr int kWidth = kLanes<T>;
  const Scale<T, kParts> alpha(finish.alpha), beta(finish.beta);
  // As in BLAS, alpha = 0 ignores the sum, even if it is NaN.
  const bool reads_source = finish.source.data && !beta.zero(), counts = !alpha.zero();
  alignas(64) T source[kMaxVectors * kWidth] = {}, bias[kMaxVectors * kWidth] = {}, scale[kMaxVectors * kWidth] = {};
  const auto read = [&](const Matrix& x, auto element, int64_t row, T* to) {
    const auto* from = static_cast<const decltype(element)*>(x.data) + (row * x.row_stride + j * x.col_stride) * kParts;
    copy_run<kParts>(from, x.col_stride, columns, to);
  };
  for (int64_t row = 0; row < rows; ++row, sums += width) {
    if (reads_source) read(finish.source, Out{}, i + row, source);
    if (finish.bias.data && (row == 0 || finish.bias.row_stride != 0)) read(finish.bias, Out{}, i + row, bias);
    if (finish.scale.data && (row == 0 || finish.scale.row_stride != 0)) read(finish.scale, T{}, i + row, scale);
    for (int64_t at = columns * kParts; at < width; ++at) sums[at] = 0;
    for (int64_t at = 0; at < width; at += kWidth) {
      Vec<T> x = counts ? alpha(load<Vec<T>>(sums + at)) : Vec<T>{};
      if (reads_source) x += beta(load<Vec<T>>(source + at));
      if (finish.bias.data) x += load<Vec<T>>(bias + at);
      if constexpr (kParts == 1 && std::is_floating_point_v<T>) {
        x = Activations<T>::activate(x, finish.activation);
        if (finish.scale.data) x *= load<Vec<T>>(scale + at);
      }
      store(sums + at, x);
    }
  }
}

// Applies the epilogue to sums of `p`, which is a product with left elements Lhs or the split-K partial sums of one, and writes them to C
// in the result's dtype.
template <class Lhs, class P, class T>
inline void write_block(const P& p, T* sums, int64_t width, int64_t rows, int64_t columns, int64_t i, int64_t j) {
  constexpr int kParts = 1 + kIsComplex<Lhs>;
  const auto write_as = [&](auto* c) {
    using Out = std::remove_reference_t<decltype(*c)>;
    if (p.finish) finish_block<kParts, Out>(*p.finish, sums, width, rows, columns, i, j);
    scatter<kParts>(sums, width, rows, columns, c + (i * p.c.row_stride + j * p.c.col_stride) * kParts, p.c.row_stride, p.c.col_stride);
  };
#define DTYPE(id, ...)                                              \
  if constexpr (kResultsOf<Lhs> >> static_cast<int>(DType::id) & 1) \
    if (p.out_dtype == DType::id) return write_as(static_cast<NumberOf<Element<DType::id>>*>(p.c.data));
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
}

// Like write_block, for short rows whose sums are dense. If C is dense as well and there is no epilogue, the rows are written as one long
// row.
template <class Lhs>
inline void write_rows(const Product& p, SumNumberOf<Lhs>* sums, int64_t i, int64_t rows) {
  using T = SumNumberOf<Lhs>;
  constexpr int kWidth = kLanes<T>, kGroup = 16;
  const int64_t columns = p.n * (1 + kIsComplex<Lhs>);
  if (!p.finish && p.c.col_stride == 1 && p.c.row_stride == p.n) {
    Product row = p;
    row.c = {static_cast<char*>(p.c.data) + i * p.n * bytes_of(p.out_dtype), 0, 1};
    return write_block<Lhs>(row, sums, 0, 1, rows * p.n, 0, 0);
  }
  T in_vectors[kGroup * kWidth] = {};
  for (int64_t first = 0; first < rows; first += kGroup) {
    const int64_t count = smaller(kGroup, rows - first);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t j = 0; j < columns; ++j) in_vectors[r * kWidth + j] = sums[(first + r) * columns + j];
    }
    write_block<Lhs>(p, in_vectors, kWidth, count, p.n, i + first, 0);
  }
}

}  // namespace vbgemm::VBGEMM_ISA
