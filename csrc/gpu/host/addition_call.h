// The checks between the custom call that adds arrays and its kernel. The call's operands are the scales, the alpha of every member and
// then the beta of every member, then all x and all y; its results are the members' sums.
#pragma once
#include "ffi_common.h"
#include "gpu/host/launch.h"

namespace vbgemm {

// Returns the first operand whose dtype differs from `type`, or whose number of elements differs from that of its member's result.
inline std::optional<size_t> find_mismatch(const ffi::RemainingArgs& operands, const std::vector<Addition>& members, ffi::DataType type) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const ffi::AnyBuffer buffer = *operands.get<ffi::AnyBuffer>(i);
    if (buffer.element_type() != type || static_cast<int64_t>(buffer.element_count()) != members[i % members.size()].elements) return i;
  }
  return std::nullopt;
}

// Fills in `members`, and `call`, which points to them, or returns an error that names the buffer and the rule it breaks.
inline ffi::Error check_addition(ffi::AnyBuffer scales, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                                 std::vector<Addition>& members, AddScaledCall& call) {
  const size_t count = results.size();
  if (count < 1 || operands.size() != 2 * count) {
    return refuse("expected 2 operands for each result, got " + std::to_string(operands.size()) + " operands for " + std::to_string(count) +
                  " results");
  }
  members.resize(count);
  const ffi::DataType type = operands.get<ffi::AnyBuffer>(0)->element_type();
  const ffi::DataType result_type = (**results.get<ffi::AnyBuffer>(0)).element_type();
  for (size_t i = 0; i < count; ++i) {
    ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    if (result.element_type() != result_type) return refuse("result " + std::to_string(i) + " must have the dtype of result 0");
    members[i].result = result.untyped_data();
    members[i].elements = static_cast<int64_t>(result.element_count());
  }
  const std::optional<DType> dtype = dtype_of(type), result = dtype_of(result_type);
  if (!dtype || !has_array_kernels(*dtype)) return refuse("no kernel adds arrays of this dtype");
  if (const std::optional<size_t> wrong = find_mismatch(operands, members, type)) {
    const std::string name = (*wrong < count ? "x " : "y ") + std::to_string(*wrong % count);
    return refuse(name + " must have the dtype of x 0 and its result's number of elements");
  }
  if (!result || !can_add_into(*dtype, *result)) return refuse("no kernel adds arrays of this dtype to results of that dtype");
  const DType wide = accumulator_of(*dtype);
  if (dtype_of(scales.element_type()) != wide || scales.element_count() != 2 * count) {
    return refuse("the scales must have the accumulator's dtype and two elements for each of " + std::to_string(count) + " members");
  }
  for (size_t i = 0; i < count; ++i) {
    members[i].x = (*operands.get<ffi::AnyBuffer>(i)).untyped_data();
    members[i].y = (*operands.get<ffi::AnyBuffer>(count + i)).untyped_data();
  }
  const char* const alpha = static_cast<const char*>(scales.untyped_data());
  call = {*dtype, *result, alpha, alpha + count * bytes_of(wide), members.data(), static_cast<int>(count)};
  return ffi::Error::Success();
}

}  // namespace vbgemm
