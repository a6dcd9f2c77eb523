// The checks that stand between the custom call that sums squares and its kernels. Its operands are the arrays, its results their sums and
// a workspace for the sums of chunks.
#pragma once
#include "ffi_common.h"
#include "gpu/host/launch.h"

namespace vbgemm {

// Fills arrays and call, which points to them, or says which buffer breaks which rule.
inline ffi::Error check_square_sums(const ffi::RemainingArgs& operands, ffi::AnyBuffer sums, ffi::AnyBuffer partials,
                                    std::vector<Buffer>& arrays, SquareSumsCall& call) {
  const size_t count = operands.size();
  if (count < 1) return refuse("there must be an array at least");
  const ffi::DataType type = (*operands.get<ffi::AnyBuffer>(0)).element_type();
  for (size_t i = 0; i < count; ++i) {
    const ffi::AnyBuffer x = *operands.get<ffi::AnyBuffer>(i);
    if (x.element_type() != type) return refuse("array " + std::to_string(i) + " has another dtype than its fellows");
    arrays.push_back({x.untyped_data(), static_cast<int64_t>(x.element_count())});
  }
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype || !has_array_kernels(*dtype)) return refuse("no kernel sums the squares of this dtype");
  const DType wide = accumulator_of(*dtype);
  if (dtype_of(sums.element_type()) != wide || sums.element_count() != count) {
    return refuse("the sums must have the accumulator's dtype and an element for each of " + std::to_string(count) + " arrays");
  }
  call = {*dtype, arrays.data(), static_cast<int>(count), sums.untyped_data(), partials.untyped_data()};
  if (const int64_t needed = num_partials(call);
      dtype_of(partials.element_type()) != wide || static_cast<int64_t>(partials.element_count()) < needed) {
    return refuse("the workspace must have the accumulator's dtype and " + std::to_string(needed) + " elements");
  }
  return ffi::Error::Success();
}

}  // namespace vbgemm
