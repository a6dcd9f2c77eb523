// Small tiles of float64, on tensor cores.
#include "gpu/tensor/tensor_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, f64)
VBGEMM_TENSOR_LIGHT_KERNELS(DEFINE, float64)
