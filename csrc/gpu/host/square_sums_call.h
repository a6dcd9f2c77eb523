// The checks between the custom call that sums squares and its kernels. The call's operands are the arrays; its results are their sums, and
// a workspace for the partial sums of chunks.
#pragma once
#include "ffi_common.h"
#include "gpu/host/launch.h"

namespace vbgemm {

// Fills in `arrays`, and `call`, which points to them, or returns an error that names the buffer and the rule it breaks.
inline ffi::Error check_square_sums(const ffi::RemainingArgs& operands, ffi::AnyBuffer sums, ffi::AnyBuffer partials,
                                    std::vector<Buffer>& arrays, SquareSumsCall& call) {
  const size_t count = operands.size();
  if (count < 1) return refuse("expected at least 1 array");
  const ffi::DataType type = (*operands.get<ffi::AnyBuffer>(0)).element_type();
  for (size_t i = 0; i < count; ++i) {
    const ffi::AnyBuffer x = *operands.get<ffi::AnyBuffer>(i);
    if (x.element_type() != type) return refuse("array " + std::to_string(i) + " must have the dtype of array 0");
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
