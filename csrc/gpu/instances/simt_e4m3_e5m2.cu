// float8_e4m3fn times float8_e5m2 on the ordinary (SIMT) arithmetic units.
#include "gpu/simt/simt_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, e4m3_e5m2)
VBGEMM_ORDINARY_BYTES(DEFINE, float8_e4m3fn_e5m2)
