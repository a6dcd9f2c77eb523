// float64 on CDNA's matrix units.
#include "kernels.h"
#include "mfma_tile.h"
#include "tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, f64)
VBGEMM_TENSOR_KERNELS_64(DEFINE, float64)
