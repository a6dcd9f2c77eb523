// Whether the last kernel of a call lets the next kernel of the stream start before it ends (docs/design/latency.md, L2).
#pragma once
#include <cstdlib>
#include <string_view>

#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

#ifdef VBGEMM_HAS_PIPELINE

// Whether XLA's own early launches are switched off. Every kernel that may follow a call then waits for it.
inline bool all_await_kernels() {
  static const bool all = [] {
    const char* const flags = std::getenv("XLA_FLAGS");
    return flags && std::string_view(flags).find("--xla_gpu_enable_pdl=false") != std::string_view::npos;
  }();
  return all;
}

// With more thread blocks than multiprocessors, the next kernel's blocks would take slots from this kernel and unbalance it.
inline bool next_call_may_start(uint32_t blocks) { return all_await_kernels() && blocks <= static_cast<uint32_t>(multiprocessors()); }

#else

inline bool next_call_may_start(uint32_t) { return false; }

#endif

}  // namespace vbgemm
