// int8, summed in int32, on tensor cores.
#include "gpu/tensor/tensor_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, s8)
VBGEMM_TENSOR_KERNELS_8(DEFINE, int8)
