// complex128 on the ordinary arithmetic units.
#include "kernels.h"
#include "simt_tile.h"
#include "tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, c128, vbgemm::Complex<double>)
VBGEMM_SIMT_KERNELS(DEFINE, complex128)
