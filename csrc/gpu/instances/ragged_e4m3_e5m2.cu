// Ragged products of float8_e4m3fn by float8_e5m2, with scales, accumulated in float32: TMA copies and wgmma.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, e4m3_e5m2)
VBGEMM_EVERY_UNPROMOTED_KERNEL(VBGEMM_DEFINE_UNPROMOTED_KERNEL, e4m3_e5m2)
