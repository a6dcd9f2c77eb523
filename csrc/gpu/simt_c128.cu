// complex128 on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_kernel.h"

#define DEFINE(kernel, dtype) VBGEMM_DEFINE_KERNEL(kernel, dtype, c128, vbgemm::Complex<double>)
VBGEMM_KERNELS(DEFINE, complex128)
