// The status that a GPU backend's handlers return.
#pragma once
#include <string>

#include "ffi_common.h"
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

inline ffi::Error status_of(Error launched) {
  if (launched == kSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jax_vbgemm: kernel launch failed: ") + error_name(launched));
}

}  // namespace vbgemm
