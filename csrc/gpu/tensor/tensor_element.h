// The element type of each kind that tensor cores (NVIDIA) or matrix units (AMD) know.
#pragma once
#include "catalogue.h"
#include "gpu/tile/arithmetic.h"

namespace vbgemm {

template <Kind kKind>
struct TensorElement {
  using type = float;
};
template <>
struct TensorElement<Kind::f64> {
  using type = double;
};
template <>
struct TensorElement<Kind::bf16> {
  using type = BFloat16;
};
template <>
struct TensorElement<Kind::f16> {
  using type = Float16;
};

}  // namespace vbgemm
