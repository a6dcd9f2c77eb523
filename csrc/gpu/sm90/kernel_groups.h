// The pipelined kernels of ragged products: one for each arithmetic, layout of the operands, tile width and cluster size, and
// those that gather rows.
#pragma once
#include "gpu/sm90/block.h"
#include "gpu/sm90/copy_gather.h"
#include "gpu/sm90/store_contraction.h"
#include "gpu/sm90/store_groups.h"
#include "gpu/sm90/store_mixed.h"

namespace vbgemm {

template <class Source>
using StoringBlock =
    PipelinedBlock<Source, std::conditional_t<Source::Traits::kGathers, RowGatherer<Source>, NoCopier>, GroupEpilogue<Source>>;
template <class Source>
using HandingOverBlock = PipelinedBlock<Source, ResultStorer<Source>, ContractionEpilogue<Source>>;
template <class Source>
using GroupBlock = std::conditional_t<Source::Traits::kHandsOver, HandingOverBlock<Source>, StoringBlock<Source>>;

// The kernel's name says which operands are MN-major: none in `transposed`, B in `rows`, both in `contraction`, none in `along_k` (also a
// contraction).
#define VBGEMM_DEFINE_GROUP_KERNEL(name, kind, contracts, mn_major_a, mn_major_b, cols, cluster, gathers) \
  VBGEMM_DEFINE_PIPELINED(                                                                                \
      name, GroupParameters,                                                                              \
      GroupBlock<vbgemm::GroupSource<vbgemm::GroupTraits<vbgemm::Kind::kind, contracts, mn_major_a, mn_major_b, cols, cluster, gathers>>>)

#define VBGEMM_DEFINE_UNPROMOTED_KERNEL(name, kind, cols) \
  VBGEMM_DEFINE_PIPELINED(name, GroupParameters, GroupBlock<vbgemm::GroupSource<vbgemm::UnpromotedTraits<vbgemm::Kind::kind, cols>>>)

template <class Source>
using MixedBlock = PipelinedBlock<Source, NoCopier, MixedEpilogue<Source>>;
#define VBGEMM_DEFINE_MIXED_KERNEL(name, kind, weights) \
  VBGEMM_DEFINE_PIPELINED(name, GroupParameters,        \
                          MixedBlock<vbgemm::GroupSource<vbgemm::MixedTraits<vbgemm::Kind::kind, vbgemm::DType::weights>>>)

}  // namespace vbgemm

// The arguments of `define`: name, arithmetic, whether it is a contraction, whether A and whether B is MN-major, columns of a
// tile, CTAs in a cluster, whether rows are gathered.
// clang-format off
#define VBGEMM_EVERY_TRANSPOSED_KERNEL(define, kind)                                    \
  define(vbgemm_ragged_transposed_256_##kind, kind, false, false, false, 256, 1, false) \
  define(vbgemm_ragged_transposed_128_##kind, kind, false, false, false, 128, 1, false)

// Of 8-bit floats.
#define VBGEMM_EVERY_SCALED_KERNEL(define, kind)                                    \
  VBGEMM_EVERY_TRANSPOSED_KERNEL(define, kind)                                      \
  define(vbgemm_ragged_along_k_256_##kind, kind, true, false, false, 256, 1, false) \
  define(vbgemm_ragged_along_k_128_##kind, kind, true, false, false, 128, 1, false)

// For 8-bit operands with one scale along K: name, arithmetic, tile columns.
#define VBGEMM_EVERY_UNPROMOTED_KERNEL(define, kind)     \
  define(vbgemm_ragged_unpromoted_256_##kind, kind, 256) \
  define(vbgemm_ragged_unpromoted_128_##kind, kind, 128)
#define VBGEMM_EVERY_UNPROMOTED_KERNEL_OF_ALL(define) \
  VBGEMM_EVERY_UNPROMOTED_KERNEL(define, s8)          \
  VBGEMM_EVERY_UNPROMOTED_KERNEL(define, e4m3)        \
  VBGEMM_EVERY_UNPROMOTED_KERNEL(define, e5m2)        \
  VBGEMM_EVERY_UNPROMOTED_KERNEL(define, e4m3_e5m2)   \
  VBGEMM_EVERY_UNPROMOTED_KERNEL(define, e5m2_e4m3)

#define VBGEMM_EVERY_RAGGED_KERNEL(define, kind)                                          \
  VBGEMM_EVERY_TRANSPOSED_KERNEL(define, kind)                                            \
  define(vbgemm_ragged_transposed_256x2_##kind, kind, false, false, false, 256, 2, false) \
  define(vbgemm_ragged_rows_256x2_##kind, kind, false, false, true, 256, 2, false)        \
  define(vbgemm_ragged_rows_256_##kind, kind, false, false, true, 256, 1, false)          \
  define(vbgemm_ragged_rows_128_##kind, kind, false, false, true, 128, 1, false)          \
  define(vbgemm_ragged_contraction_256_##kind, kind, true, true, true, 256, 1, false)     \
  define(vbgemm_ragged_contraction_128_##kind, kind, true, true, true, 128, 1, false)

#define VBGEMM_EVERY_GATHERING_KERNEL(define, kind)                                             \
  define(vbgemm_ragged_gathered_rows_256_##kind, kind, false, false, true, 256, 1, true)        \
  define(vbgemm_ragged_gathered_rows_128_##kind, kind, false, false, true, 128, 1, true)        \
  define(vbgemm_ragged_gathered_transposed_256_##kind, kind, false, false, false, 256, 1, true) \
  define(vbgemm_ragged_gathered_transposed_128_##kind, kind, false, false, false, 128, 1, true)

// For 16-bit rows and narrower weights: name, arithmetic, weight type.
#define VBGEMM_EVERY_MIXED_KERNEL(define, kind)        \
  define(vbgemm_ragged_mixed_##kind##_s8, kind, s8)     \
  define(vbgemm_ragged_mixed_##kind##_e4m3, kind, e4m3) \
  define(vbgemm_ragged_mixed_##kind##_s4, kind, s4)
// clang-format on

#define VBGEMM_DECLARE(name, kind, contracts, mn_major_a, mn_major_b, cols, cluster, gathers) \
  extern "C" __global__ void name(VBGEMM_PARAMETERS(vbgemm::GroupParameters, parameters));
VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DECLARE, bf16)
VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DECLARE, f16)
VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DECLARE, tf32)
VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_DECLARE, e4m3)
VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_DECLARE, e5m2)
VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_DECLARE, e4m3_e5m2)
VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_DECLARE, e5m2_e4m3)
VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DECLARE, s8)
VBGEMM_EVERY_GATHERING_KERNEL(VBGEMM_DECLARE, bf16)
VBGEMM_EVERY_GATHERING_KERNEL(VBGEMM_DECLARE, f16)
#undef VBGEMM_DECLARE
#define VBGEMM_DECLARE(name, kind, cols) extern "C" __global__ void name(VBGEMM_PARAMETERS(vbgemm::GroupParameters, parameters));
VBGEMM_EVERY_UNPROMOTED_KERNEL_OF_ALL(VBGEMM_DECLARE)
#undef VBGEMM_DECLARE
#define VBGEMM_DECLARE(name, kind, weights) extern "C" __global__ void name(VBGEMM_PARAMETERS(vbgemm::GroupParameters, parameters));
VBGEMM_EVERY_MIXED_KERNEL(VBGEMM_DECLARE, bf16)
VBGEMM_EVERY_MIXED_KERNEL(VBGEMM_DECLARE, f16)
#undef VBGEMM_DECLARE
