// float64 on tensor cores.
#include "kernels.h"
#include "tensor_tile.h"
#include "tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, f64)
VBGEMM_TENSOR_KERNELS_64(DEFINE, float64)
