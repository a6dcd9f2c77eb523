// Names and definitions of the launched tile kernels: one kernel for each pair of a catalogue kernel (Kernel, catalogue.h) and an
// arithmetic (Kind, dtypes.h), each defined in the instances/ file of its tile family and arithmetic. host/launch.cu compares these lists
// with the tiles that have code (gpu/vendor_tiles.h).
#pragma once
#include <type_traits>

#include "catalogue.h"
#include "gpu/tile/kernel_parameters.h"

// The names have C linkage so that tools find them in the compiler's resource report: vbgemm_<kernel>_<kind>.
#define VBGEMM_SIMT_KERNELS(FOR_EACH, kind) \
  FOR_EACH(t128_light, kind) FOR_EACH(t256_light, kind) FOR_EACH(t256_heavy, kind) FOR_EACH(t128_medium, kind)
#define VBGEMM_REAL_KERNELS(FOR_EACH, kind) VBGEMM_SIMT_KERNELS(FOR_EACH, kind) FOR_EACH(t128_deep, kind)

// Dot-product tiles, and row tiles and long tiles on tensor cores, exist on NVIDIA GPUs only.
#if VBGEMM_WAVE_SIZE == 64
#define VBGEMM_DOT_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_LONG_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind)
#else
#define VBGEMM_DOT_KERNELS(FOR_EACH, kind) FOR_EACH(t256_dots, kind)
#define VBGEMM_TENSOR_LONG_KERNELS(FOR_EACH, kind) FOR_EACH(m128_long, kind)
#define VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind) FOR_EACH(m256_dots, kind) FOR_EACH(m128_rows, kind) FOR_EACH(m128_wide_rows, kind)
#endif
#define VBGEMM_REAL_AND_DOT_KERNELS(FOR_EACH, kind) VBGEMM_REAL_KERNELS(FOR_EACH, kind) VBGEMM_DOT_KERNELS(FOR_EACH, kind)
#define VBGEMM_HEAVY_KERNEL(FOR_EACH, kind) FOR_EACH(t128_heavy, kind)
#define VBGEMM_LARGE_KERNELS(FOR_EACH, kind) VBGEMM_HEAVY_KERNEL(FOR_EACH, kind) FOR_EACH(t128_full, kind)

// The kernel of the small tensor tiles has a translation unit of its own, because it takes as long to compile as all other tensor kernels
// of an arithmetic.
#define VBGEMM_TENSOR_LIGHT_KERNELS(FOR_EACH, kind) FOR_EACH(m128_light, kind)
#define VBGEMM_TENSOR_KERNELS(FOR_EACH, kind) \
  VBGEMM_TENSOR_LONG_KERNELS(FOR_EACH, kind) FOR_EACH(m128_heavy, kind) FOR_EACH(m256_heavy, kind)
#define VBGEMM_TENSOR_KERNELS_16(FOR_EACH, kind) VBGEMM_TENSOR_KERNELS(FOR_EACH, kind) VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_KERNELS_64(FOR_EACH, kind) \
  VBGEMM_TENSOR_LONG_KERNELS(FOR_EACH, kind)     \
  FOR_EACH(m128_heavy, kind) VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind)  // float64 has no larger tiles

#if VBGEMM_WAVE_SIZE == 64
#define VBGEMM_TENSOR_KERNELS_8(FOR_EACH, kind)
#else
#define VBGEMM_TENSOR_KERNELS_8(FOR_EACH, kind) FOR_EACH(m128_light, kind) FOR_EACH(m256_heavy, kind)
#endif

// CDNA's matrix cores multiply float32 without rounding it. On NVIDIA GPUs only TF32 and the three-product TF32 (tf32x3) run on tensor
// cores, and the largest TF32 tile is built for NVIDIA only.
#define VBGEMM_LIGHT_AND(KERNELS, FOR_EACH, kind) VBGEMM_TENSOR_LIGHT_KERNELS(FOR_EACH, kind) KERNELS(FOR_EACH, kind)
#if VBGEMM_WAVE_SIZE == 64
#define VBGEMM_TENSOR_KERNELS_TF32 VBGEMM_TENSOR_KERNELS
#define VBGEMM_TENSOR_F32(FOR_EACH, kind) VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS, FOR_EACH, kind)
#define VBGEMM_TENSOR_TF32X3(FOR_EACH, kind)
#else
#define VBGEMM_TENSOR_KERNELS_TF32(FOR_EACH, kind) \
  VBGEMM_TENSOR_KERNELS(FOR_EACH, kind) FOR_EACH(m256_dots, kind) FOR_EACH(m128_wide_rows, kind) FOR_EACH(m256_full, kind)
#define VBGEMM_TENSOR_F32(FOR_EACH, kind)
#define VBGEMM_TENSOR_TF32X3(FOR_EACH, kind) VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS, FOR_EACH, kind)
#endif

#define VBGEMM_ROW_KERNELS(FOR_EACH, kind) FOR_EACH(t128_rows, kind) FOR_EACH(t128_wide_rows, kind)

// The launched kernels of an arithmetic. The macro suffixes are the values of dtypes.def's columns `ordinary` and `tensor`.
#define VBGEMM_ORDINARY_PIECES(FOR_EACH, kind) VBGEMM_SIMT_KERNELS(FOR_EACH, kind) VBGEMM_HEAVY_KERNEL(FOR_EACH, kind)
#define VBGEMM_ORDINARY_BYTES(FOR_EACH, kind) FOR_EACH(t128_light, kind) FOR_EACH(t128_medium, kind)
#define VBGEMM_ORDINARY_ROWS(FOR_EACH, kind) \
  VBGEMM_ROW_KERNELS(FOR_EACH, kind) VBGEMM_REAL_KERNELS(FOR_EACH, kind) VBGEMM_LARGE_KERNELS(FOR_EACH, kind)
#define VBGEMM_ORDINARY_ROWS_AND_DOTS(FOR_EACH, kind) \
  VBGEMM_ROW_KERNELS(FOR_EACH, kind) VBGEMM_REAL_AND_DOT_KERNELS(FOR_EACH, kind) VBGEMM_HEAVY_KERNEL(FOR_EACH, kind)
#define VBGEMM_ORDINARY_ALL(FOR_EACH, kind) VBGEMM_ORDINARY_ROWS_AND_DOTS(FOR_EACH, kind) FOR_EACH(t128_full, kind)
#define VBGEMM_ORDINARY_NONE(FOR_EACH, kind)
#if VBGEMM_WAVE_SIZE == 64
#define VBGEMM_ALIGNED_KERNELS(FOR_EACH, kind)
#else
#define VBGEMM_ALIGNED_KERNELS(FOR_EACH, kind) \
  FOR_EACH(m128_aligned_32x32, kind)           \
  FOR_EACH(m128_aligned_32x64, kind)           \
  FOR_EACH(m128_aligned_64x64, kind) FOR_EACH(m128_aligned_64x128, kind) FOR_EACH(m256_aligned_128x128, kind)
#endif
#ifdef VBGEMM_HAS_PIPELINE
#define VBGEMM_PIPELINED_KERNELS(FOR_EACH, kind) FOR_EACH(m384_pipelined, kind)
#else
#define VBGEMM_PIPELINED_KERNELS(FOR_EACH, kind)
#endif
#define VBGEMM_TENSOR_SHORT(FOR_EACH, kind)                  \
  VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS_16, FOR_EACH, kind) \
  VBGEMM_ALIGNED_KERNELS(FOR_EACH, kind) VBGEMM_PIPELINED_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_F64(FOR_EACH, kind) VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS_64, FOR_EACH, kind)
#define VBGEMM_TENSOR_TF32(FOR_EACH, kind) \
  VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS_TF32, FOR_EACH, kind) VBGEMM_ALIGNED_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_BYTES VBGEMM_TENSOR_KERNELS_8
#define VBGEMM_TENSOR_NONE(FOR_EACH, kind)

namespace vbgemm {
struct PlanParameters;
template <Kernel kKernel>
struct ParametersOf {
  using type = std::conditional_t<shape_of(kKernel).pipelined, PlanParameters, KernelParameters>;  // gpu/sm90/tile_maps.h
};
}  // namespace vbgemm

#define VBGEMM_DECLARE_ADD_PARTIAL_SUMS(kind) \
  extern "C" __global__ void vbgemm_add_partial_sums_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters));
#define VBGEMM_DECLARE_KERNEL(kernel, kind) \
  extern "C" __global__ void vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::ParametersOf<vbgemm::Kernel::kernel>::type, parameters));

// The kernel that reduces split-K partial sums exists once per type of A.
#define DTYPE(id, name, ...) VBGEMM_DECLARE_ADD_PARTIAL_SUMS(name)
#define OTHER_DTYPE(...)
#define ARITHMETIC(id, set, name, lhs, rhs, ordinary, tensor) \
  VBGEMM_ORDINARY_##ordinary(VBGEMM_DECLARE_KERNEL, name) VBGEMM_TENSOR_##tensor(VBGEMM_DECLARE_KERNEL, name)
#include "dtypes.def"

// Define the kernels of an arithmetic; `kind` is its identifier in kernel names and `kind_` its enumerator.
#define VBGEMM_DEFINE_SIMT_KERNEL_IN(SHARED, kernel, kind, kind_)                                                                  \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),                                      \
                                                  vbgemm::min_blocks<vbgemm::LeftOf<vbgemm::Kind::kind_>>(vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                                          \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                                                  \
    using Policy = vbgemm::SimtPolicy<vbgemm::Kind::kind_>;                                                                        \
    using Body = vbgemm::TileKernel<Policy, vbgemm::Kernel::kernel>;                                                               \
    SHARED(Body::Shared, shared);                                                                                                  \
    Body::run(parameters, shared);                                                                                                 \
  }
#define VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, kind_)             \
  static_assert(!vbgemm::requests_shared(vbgemm::Kernel::kernel)); \
  VBGEMM_DEFINE_SIMT_KERNEL_IN(VBGEMM_SHARED, kernel, kind, kind_)
#define VBGEMM_DEFINE_LARGE_SIMT_KERNEL(kernel, kind, kind_)      \
  static_assert(vbgemm::requests_shared(vbgemm::Kernel::kernel)); \
  VBGEMM_DEFINE_SIMT_KERNEL_IN(VBGEMM_DYNAMIC_SHARED, kernel, kind, kind_)
#define VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, kind_)                                                                  \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),                             \
                                                  vbgemm::tensor_min_blocks(vbgemm::Kind::kind_, vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                                 \
    using Body = vbgemm::TileKernel<vbgemm::TensorPolicy<vbgemm::Kind::kind_>, vbgemm::Kernel::kernel>;                   \
    VBGEMM_DYNAMIC_SHARED(Body::Shared, shared);                                                                          \
    Body::run(parameters, shared);                                                                                        \
  }

#define VBGEMM_DEFINE_ALIGNED_KERNEL(kernel, kind, kind_)                                             \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),         \
                                                  vbgemm::aligned_min_blocks(vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {             \
    using Body = vbgemm::AlignedTile<vbgemm::Kind::kind_, vbgemm::Kernel::kernel>;                    \
    VBGEMM_DYNAMIC_SHARED(Body::Shared, shared);                                                      \
    Body::run(parameters, shared);                                                                    \
  }

#define VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, kind_)                                                                  \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),                           \
                                                  vbgemm::mfma_min_blocks(vbgemm::Kind::kind_, vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                               \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                                       \
    using Body = vbgemm::TileKernel<vbgemm::MfmaPolicy<vbgemm::Kind::kind_>, vbgemm::Kernel::kernel>;                   \
    VBGEMM_SHARED(Body::Shared, shared);                                                                                \
    Body::run(parameters, shared);                                                                                      \
  }
