// Chooses the kernels of the best instruction set at run time.
#include <cstdlib>
#include <string_view>

#include "cpu/kernels.h"
#include "cpu/walk.h"

namespace vbgemm {
namespace {

const Kernels& choose() {
  const char* requested = std::getenv("VBGEMM_CPU_ISA");
  const std::string_view name = requested ? requested : "";
  if (name == kPortableKernels.name) return kPortableKernels;
#if defined(__x86_64__) && !defined(VBGEMM_PORTABLE)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && name != kAvx2Kernels.name) return kAvx512Kernels;
  if (avx2) return kAvx2Kernels;
#endif
  return kPortableKernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

const char* isa() { return kernels().name; }

}  // namespace vbgemm
