// float32 in three TF32 products, each number split into two tf32 numbers, on tensor cores.
#include "gpu/tensor/tensor_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, tf32x3)
VBGEMM_TENSOR_KERNELS(DEFINE, tf32x3)
