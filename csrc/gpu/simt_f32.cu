// float32 on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_kernel.h"

#define DEFINE(kernel, dtype) VBGEMM_DEFINE_KERNEL(kernel, dtype, f32, float)
VBGEMM_KERNELS(DEFINE, float32)
