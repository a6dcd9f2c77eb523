// float16, accumulated in float32, on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_kernel.h"

#define DEFINE(kernel, dtype) VBGEMM_DEFINE_KERNEL(kernel, dtype, f16, vbgemm::Float16)
VBGEMM_KERNELS(DEFINE, float16)
