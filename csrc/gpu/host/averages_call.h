// The checks between the custom call that averages arrays and its kernels. The call's operands are the four scales, all x and all y; its
// results are the averages, their lookahead values, the sums of the lookahead values' squares, and a workspace for partial sums.
#pragma once
#include "ffi_common.h"
#include "gpu/host/launch.h"

namespace vbgemm {

// Fills in `members`, and `call`, which points to them, or returns an error that names the buffer and the rule it breaks.
inline ffi::Error check_averages(ffi::AnyBuffer scales, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                                 std::vector<Average>& members, AveragesCall& call) {
  const size_t count = operands.size() / 2;
  if (count < 1 || operands.size() != 2 * count || results.size() != 2 * count + 2) {
    return refuse("expected x and y and two results for each member and two results for all, got " + std::to_string(operands.size()) +
                  " operands and " + std::to_string(results.size()) + " results");
  }
  const auto operand = [&](size_t i) { return *operands.get<ffi::AnyBuffer>(i); };
  const auto result = [&](size_t i) -> ffi::AnyBuffer { return **results.get<ffi::AnyBuffer>(i); };
  const ffi::DataType type = operand(0).element_type();
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype || !has_array_kernels(*dtype)) return refuse("no kernel averages arrays of this dtype");
  members.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const ffi::AnyBuffer arrays[] = {operand(i), operand(count + i), result(i), result(count + i)};
    for (const ffi::AnyBuffer& array : arrays) {
      if (array.element_type() != type || array.element_count() != arrays[0].element_count()) {
        return refuse("the arrays of member " + std::to_string(i) + " must have the dtype of x 0 and one number of elements");
      }
    }
    members[i] = {arrays[0].untyped_data(), arrays[1].untyped_data(), arrays[2].untyped_data(), arrays[3].untyped_data(),
                  static_cast<int64_t>(arrays[0].element_count())};
  }
  const DType wide = accumulator_of(*dtype);
  if (dtype_of(scales.element_type()) != wide || scales.element_count() != 4) {
    return refuse("the scales must have the accumulator's dtype and 4 elements");
  }
  ffi::AnyBuffer sums = result(2 * count), partials = result(2 * count + 1);
  if (dtype_of(sums.element_type()) != wide || sums.element_count() != count) {
    return refuse("the sums must have the accumulator's dtype and an element for each of " + std::to_string(count) + " members");
  }
  call = {*dtype, scales.untyped_data(), members.data(), static_cast<int>(count), sums.untyped_data(), partials.untyped_data()};
  if (const int64_t needed = num_partials(call);
      dtype_of(partials.element_type()) != wide || static_cast<int64_t>(partials.element_count()) < needed) {
    return refuse("the workspace must have the accumulator's dtype and " + std::to_string(needed) + " elements");
  }
  return ffi::Error::Success();
}

}  // namespace vbgemm
