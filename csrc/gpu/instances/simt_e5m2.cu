// float8_e5m2 on the ordinary (SIMT) arithmetic units.
#include "gpu/simt/simt_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, e5m2)
VBGEMM_ORDINARY_BYTES(DEFINE, float8_e5m2)
