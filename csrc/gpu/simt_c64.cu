// complex64 on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_kernel.h"

#define DEFINE(kernel, dtype) VBGEMM_DEFINE_KERNEL(kernel, dtype, c64, vbgemm::Complex<float>)
VBGEMM_KERNELS(DEFINE, complex64)
