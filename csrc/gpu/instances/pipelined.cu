// Large products of bfloat16 and float16, accumulated in float32: TMA copies and warpgroup products.
#include "gpu/sm90/kernel_plan.h"
#include "gpu/tile/kernels.h"

VBGEMM_DEFINE_PLAN_KERNEL(bfloat16, bf16)
VBGEMM_DEFINE_PLAN_KERNEL(float16, f16)
