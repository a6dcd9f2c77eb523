// float8_e5m2 times float8_e4m3fn, accumulated in float32, on tensor cores.
#include "gpu/tensor/tensor_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, e5m2_e4m3)
VBGEMM_TENSOR_KERNELS_8(DEFINE, float8_e5m2_e4m3fn)
