// The names of the kernels of ragged products: the pipelined ones, one for each kind, placement of the operands, width of tile and size of
// cluster; the plain ones, one for each element type.
#pragma once
#include "ragged_cut.h"
#include "ragged_plain.h"

// name, kind, whether A and B lie across K, columns of a tile, blocks of a cluster
#define VBGEMM_EVERY_RAGGED_KERNEL(define, kind)                                                                                      \
  define(vbgemm_ragged_rows_256x2_##kind, kind, false, true, 256, 2) define(vbgemm_ragged_rows_256_##kind, kind, false, true, 256, 1) \
      define(vbgemm_ragged_rows_128_##kind, kind, false, true, 128, 1)                                                                \
          define(vbgemm_ragged_transposed_256x2_##kind, kind, false, false, 256, 2)                                                   \
              define(vbgemm_ragged_transposed_256_##kind, kind, false, false, 256, 1)                                                 \
                  define(vbgemm_ragged_transposed_128_##kind, kind, false, false, 128, 1)                                             \
                      define(vbgemm_ragged_contraction_256x2_##kind, kind, true, true, 256, 2)                                        \
                          define(vbgemm_ragged_contraction_256_##kind, kind, true, true, 256, 1)                                      \
                              define(vbgemm_ragged_contraction_128_##kind, kind, true, true, 128, 1)

// name, element type, sums of a thread in each direction
#define VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(define)                                                                                          \
  define(vbgemm_ragged_plain_float32, float, 8) define(vbgemm_ragged_plain_float64, double, 4)                                            \
      define(vbgemm_ragged_plain_complex64, vbgemm::Complex<float>, 4) define(vbgemm_ragged_plain_complex128, vbgemm::Complex<double>, 2) \
          define(vbgemm_ragged_plain_bfloat16, vbgemm::BFloat16, 8) define(vbgemm_ragged_plain_float16, vbgemm::Float16, 8)

#define VBGEMM_DECLARE(name, kind, across_a, across_b, cols, cluster) \
  extern "C" __global__ void name(VBGEMM_PARAMETERS(vbgemm::RaggedParameters, parameters));
VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DECLARE, bf16)
VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DECLARE, f16)
#undef VBGEMM_DECLARE
#define VBGEMM_DECLARE(name, T, each) extern "C" __global__ void name(VBGEMM_PARAMETERS(vbgemm::RaggedPlainParameters, parameters));
VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(VBGEMM_DECLARE)
#undef VBGEMM_DECLARE
