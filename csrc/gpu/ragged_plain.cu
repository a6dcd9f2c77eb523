// The plain kernels of ragged products, one an element type.
#include "ragged_kernels.h"
#include "ragged_plain.h"

VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(VBGEMM_DEFINE_RAGGED_PLAIN_KERNEL)
