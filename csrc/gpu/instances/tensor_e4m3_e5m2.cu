// float8_e4m3fn times float8_e5m2, accumulated in float32, on tensor cores.
#include "gpu/tensor/tensor_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, e4m3_e5m2)
VBGEMM_TENSOR_KERNELS_8(DEFINE, float8_e4m3fn_e5m2)
