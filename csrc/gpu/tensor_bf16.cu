// bfloat16, accumulated in float32, on tensor cores.
#include "kernels.h"
#include "tensor_tile.h"
#include "tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, bf16)
VBGEMM_TENSOR_KERNELS_16(DEFINE, bfloat16)
