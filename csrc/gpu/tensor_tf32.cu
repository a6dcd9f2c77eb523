// float32 rounded to tf32, on tensor cores.
#include "kernels.h"
#include "tensor_tile.h"
#include "tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, tf32)
VBGEMM_TENSOR_KERNELS_TF32(DEFINE)
