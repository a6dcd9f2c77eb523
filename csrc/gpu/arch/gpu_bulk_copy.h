// Includes what the pipelined kernels need of Hopper: the instructions, or the emulation of them.
#pragma once

#ifdef VBGEMM_GPU_VENDOR_HEADER
#include "emulation/bulk_copy.h"
#else
#include "gpu/arch/cuda_bulk_copy.h"
#endif
