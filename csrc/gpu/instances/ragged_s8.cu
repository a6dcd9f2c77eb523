// Ragged products of int8, with scales: TMA copies and warpgroup products, of which those of 128 steps of K are summed exactly, in int32.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, s8)
