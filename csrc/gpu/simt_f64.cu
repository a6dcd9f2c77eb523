// float64 on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_kernel.h"

#define DEFINE(kernel, dtype) VBGEMM_DEFINE_KERNEL(kernel, dtype, f64, double)
VBGEMM_KERNELS(DEFINE, float64)
