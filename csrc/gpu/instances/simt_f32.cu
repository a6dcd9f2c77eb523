// float32 on the ordinary (SIMT) arithmetic units.
#include "gpu/simt/simt_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, f32)
VBGEMM_REAL_AND_DOT_KERNELS(DEFINE, float32)

#define DEFINE_LARGE(kernel, kind) VBGEMM_DEFINE_LARGE_SIMT_KERNEL(kernel, kind, f32)
VBGEMM_LARGE_KERNELS(DEFINE_LARGE, float32)
