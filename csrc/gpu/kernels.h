// The launched kernels, by name: one a (kernel of the catalogue, dtype), each defined in the file of its dtype.
#pragma once
#include "kernel_parameters.h"

// The names are plain C so that tools find them in the compiler's report: vbgemm_<kernel>_<dtype>.
#define VBGEMM_KERNELS(FOR_EACH, dtype) \
  FOR_EACH(t128_light, dtype) FOR_EACH(t128_heavy, dtype) FOR_EACH(t256_light, dtype) FOR_EACH(t256_heavy, dtype)

#define VBGEMM_DECLARE_KERNEL(kernel, dtype) \
  extern "C" __global__ void vbgemm_##kernel##_##dtype(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters));

VBGEMM_KERNELS(VBGEMM_DECLARE_KERNEL, float32)
VBGEMM_KERNELS(VBGEMM_DECLARE_KERNEL, float64)
VBGEMM_KERNELS(VBGEMM_DECLARE_KERNEL, complex64)
VBGEMM_KERNELS(VBGEMM_DECLARE_KERNEL, complex128)
VBGEMM_KERNELS(VBGEMM_DECLARE_KERNEL, bfloat16)
VBGEMM_KERNELS(VBGEMM_DECLARE_KERNEL, float16)

// Defines a dtype's kernels; `element` is its C++ type, `dtype_` its enumerator.
#define VBGEMM_DEFINE_KERNEL(kernel, dtype, dtype_, element)                                        \
  extern "C" __global__ void __launch_bounds__(vbgemm::threads_of(vbgemm::Kernel::kernel),          \
                                               vbgemm::min_blocks<element>(vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##dtype(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {          \
    using Body = vbgemm::SimtKernel<element, vbgemm::DType::dtype_, vbgemm::Kernel::kernel>;        \
    VBGEMM_SHARED(Body::Shared, shared);                                                            \
    Body::run(parameters, shared);                                                                  \
  }
