// The checks between the custom call that copies rows by index and its kernel. Its operands are x (source rows, columns) and int32 indices
// (rows,); its result is (rows, columns), with zeros for an index out of range. A row has a multiple of 16 bytes.
#pragma once
#include <algorithm>
#include <string>

#include "ffi_common.h"
#include "gpu/host/rows_by_index_launch.h"
#include "gpu/limits.h"

namespace vbgemm {

// Fills in `call`, or returns an error.
inline Fault check_rows_by_index(ffi::AnyBuffer x, ffi::AnyBuffer index, ffi::AnyBuffer y, RowsByIndexParameters& call) {
  const std::optional<DType> dtype = dtype_of(x.element_type());
  if (!dtype) return "no kernel copies rows of this dtype";
  const auto from = x.dimensions(), named = index.dimensions(), to = y.dimensions();
  if (from.size() != 2 || named.size() != 1) return "x must have two dimensions and index one";
  if (index.element_type() != ffi::DataType::S32) return "index must be int32";
  if (y.element_type() != x.element_type() || to.size() != 2 || to[0] != named[0] || to[1] != from[1]) {
    return "the result must have x's dtype and be (" + std::to_string(named[0]) + ", " + std::to_string(from[1]) + ")";
  }
  const auto bytes = from[1] * static_cast<int64_t>(bytes_of(*dtype));
  if (bytes % kVectorLoadBytes) return "a row must have a multiple of 16 bytes";
  if (std::max({from[0], named[0], bytes}) > INT32_MAX) return "a dimension does not fit in 32 bits";
  for (const ffi::AnyBuffer& buffer : {x, y}) {
    if (reinterpret_cast<uintptr_t>(buffer.untyped_data()) % kVectorLoadBytes) return "x and the result must be aligned to 16 bytes";
  }
  call = {x.untyped_data(),
          static_cast<const int32_t*>(index.untyped_data()),
          y.untyped_data(),
          static_cast<int32_t>(from[0]),
          static_cast<int32_t>(named[0]),
          static_cast<int32_t>(bytes / kVectorLoadBytes),
          0};
  return {};
}

}  // namespace vbgemm
