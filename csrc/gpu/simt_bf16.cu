// bfloat16, accumulated in float32, on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_kernel.h"

#define DEFINE(kernel, dtype) VBGEMM_DEFINE_KERNEL(kernel, dtype, bf16, vbgemm::BFloat16)
VBGEMM_KERNELS(DEFINE, bfloat16)
