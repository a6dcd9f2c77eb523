// The checks that stand between the custom call that adds arrays and its kernel. Its operands are the alphas and the betas, one of each a
// member, then every x and every y; its results are the members' sums.
#pragma once
#include "ffi_common.h"
#include "gpu/host/launch.h"

namespace vbgemm {

// The first operand that has another dtype or number of elements than its member's result.
inline std::optional<size_t> misfit(const ffi::RemainingArgs& operands, const std::vector<Addition>& members, ffi::DataType type) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const ffi::AnyBuffer buffer = *operands.get<ffi::AnyBuffer>(i);
    if (buffer.element_type() != type || static_cast<int64_t>(buffer.element_count()) != members[i % members.size()].elements) return i;
  }
  return std::nullopt;
}

// Fills members and call, which points to them, or says which buffer breaks which rule.
inline ffi::Error check_addition(ffi::AnyBuffer alpha, ffi::AnyBuffer beta, const ffi::RemainingArgs& operands,
                                 const ffi::RemainingRets& results, std::vector<Addition>& members, AddScaledCall& call) {
  const size_t count = results.size();
  if (count < 1 || operands.size() != 2 * count) {
    return refuse("there must be two operands a result, not " + std::to_string(operands.size()) + " for " + std::to_string(count));
  }
  members.resize(count);
  const ffi::DataType type = (**results.get<ffi::AnyBuffer>(0)).element_type();
  for (size_t i = 0; i < count; ++i) {
    ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    if (result.element_type() != type) return refuse("result " + std::to_string(i) + " has another dtype than its fellows");
    members[i].result = result.untyped_data();
    members[i].elements = static_cast<int64_t>(result.element_count());
  }
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype || !has_array_kernels(*dtype)) return refuse("no kernel adds arrays of this dtype");
  if (const std::optional<size_t> wrong = misfit(operands, members, type)) {
    const std::string name = (*wrong < count ? "x " : "y ") + std::to_string(*wrong % count);
    return refuse(name + " must have its result's dtype and number of elements");
  }
  const DType wide = accumulator_of(*dtype);
  for (const ffi::AnyBuffer& scales : {alpha, beta}) {
    if (dtype_of(scales.element_type()) != wide || scales.element_count() != count) {
      return refuse("alpha and beta must have the accumulator's dtype and an element for each of " + std::to_string(count) + " members");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    members[i].x = (*operands.get<ffi::AnyBuffer>(i)).untyped_data();
    members[i].y = (*operands.get<ffi::AnyBuffer>(count + i)).untyped_data();
  }
  call = {*dtype, alpha.untyped_data(), beta.untyped_data(), members.data(), static_cast<int>(count)};
  return ffi::Error::Success();
}

}  // namespace vbgemm
