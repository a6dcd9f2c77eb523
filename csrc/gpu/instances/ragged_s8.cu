// Ragged products of int8, with scales: TMA copies and warpgroup products, which are summed exactly, in int32: all of K where scales allow
// it, else 128 steps.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, s8)
VBGEMM_EVERY_UNPROMOTED_KERNEL(VBGEMM_DEFINE_UNPROMOTED_KERNEL, s8)
