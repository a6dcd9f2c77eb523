// Ragged products of float16 whose rows are gathered, accumulated in float32.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_GATHERING_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, f16)
