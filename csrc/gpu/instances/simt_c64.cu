// complex64 on the ordinary (SIMT) arithmetic units.
#include "gpu/simt/simt_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, c64)
VBGEMM_SIMT_KERNELS(DEFINE, complex64)

#define DEFINE_LARGE(kernel, kind) VBGEMM_DEFINE_LARGE_SIMT_KERNEL(kernel, kind, c64)
VBGEMM_HEAVY_KERNEL(DEFINE_LARGE, complex64)
