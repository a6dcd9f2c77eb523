// Ragged products of int8 with scales: TMA copies and wgmma, which accumulates exactly in int32: all of K if the scales allow it, otherwise
// 128 K elements.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, s8)
VBGEMM_EVERY_UNPROMOTED_KERNEL(VBGEMM_DEFINE_UNPROMOTED_KERNEL, s8)
