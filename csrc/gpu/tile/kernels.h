// The launched kernels, by name: one a (kernel of the catalogue, kind), each defined in the file of its family and kind.
#pragma once
#include "gpu/tile/kernel_parameters.h"

// The names are plain C so that tools find them in the compiler's report: vbgemm_<kernel>_<kind>.
#define VBGEMM_SIMT_KERNELS(FOR_EACH, kind) \
  FOR_EACH(t128_light, kind) FOR_EACH(t128_heavy, kind) FOR_EACH(t256_light, kind) FOR_EACH(t256_heavy, kind) FOR_EACH(t128_medium, kind)
#define VBGEMM_REAL_KERNELS(FOR_EACH, kind) VBGEMM_SIMT_KERNELS(FOR_EACH, kind) FOR_EACH(t128_deep, kind)

// Dot products are NVIDIA's alone, and so are whole rows on tensor cores.
#if VBGEMM_WAVE_SIZE == 64
#define VBGEMM_DOT_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind)
#else
#define VBGEMM_DOT_KERNELS(FOR_EACH, kind) FOR_EACH(t256_dots, kind)
#define VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind) FOR_EACH(m256_dots, kind) FOR_EACH(m128_rows, kind) FOR_EACH(m128_wide_rows, kind)
#endif
#define VBGEMM_REAL_AND_DOT_KERNELS(FOR_EACH, kind) VBGEMM_REAL_KERNELS(FOR_EACH, kind) VBGEMM_DOT_KERNELS(FOR_EACH, kind)

// The kernel of small tiles is compiled apart, as that takes as long as all others of a kind.
#define VBGEMM_TENSOR_LIGHT_KERNELS(FOR_EACH, kind) FOR_EACH(m128_light, kind)
#define VBGEMM_TENSOR_KERNELS(FOR_EACH, kind) FOR_EACH(m128_heavy, kind) FOR_EACH(m256_heavy, kind)
#define VBGEMM_TENSOR_KERNELS_16(FOR_EACH, kind) VBGEMM_TENSOR_KERNELS(FOR_EACH, kind) VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind)
#define VBGEMM_TENSOR_KERNELS_64(FOR_EACH, kind) \
  FOR_EACH(m128_heavy, kind) VBGEMM_TENSOR_STREAMING_KERNELS(FOR_EACH, kind)  // float64 has no larger tiles

// CDNA's matrix units multiply float32 as it is; on NVIDIA only its two substitutes have tensor cores, and tf32's largest tile is NVIDIA's.
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

// Their blocks use more shared memory than a kernel can declare.
#define VBGEMM_ROW_KERNELS(FOR_EACH, kind) FOR_EACH(t128_rows, kind) FOR_EACH(t128_wide_rows, kind)

// The launched kernels of an arithmetic, by the words that dtypes.def has for them.
#define VBGEMM_ORDINARY_PIECES VBGEMM_SIMT_KERNELS
#define VBGEMM_ORDINARY_ROWS(FOR_EACH, kind) VBGEMM_ROW_KERNELS(FOR_EACH, kind) VBGEMM_REAL_KERNELS(FOR_EACH, kind)
#define VBGEMM_ORDINARY_ROWS_AND_DOTS(FOR_EACH, kind) VBGEMM_ROW_KERNELS(FOR_EACH, kind) VBGEMM_REAL_AND_DOT_KERNELS(FOR_EACH, kind)
#define VBGEMM_ORDINARY_NONE(FOR_EACH, kind)
#define VBGEMM_TENSOR_SHORT(FOR_EACH, kind) VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS_16, FOR_EACH, kind)
#define VBGEMM_TENSOR_F64(FOR_EACH, kind) VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS_64, FOR_EACH, kind)
#define VBGEMM_TENSOR_TF32(FOR_EACH, kind) VBGEMM_LIGHT_AND(VBGEMM_TENSOR_KERNELS_TF32, FOR_EACH, kind)
#define VBGEMM_TENSOR_NONE(FOR_EACH, kind)

#define VBGEMM_DECLARE_KERNEL(kernel, kind) \
  extern "C" __global__ void vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters));

// The kernel that adds up the shares of split K is one of each type of left operands.
#define DTYPE(id, name, ...) VBGEMM_DECLARE_KERNEL(add_shares, name)
#define SUM_DTYPE(...)
#define ARITHMETIC(id, set, name, lhs, rhs, ordinary, tensor) \
  VBGEMM_ORDINARY_##ordinary(VBGEMM_DECLARE_KERNEL, name) VBGEMM_TENSOR_##tensor(VBGEMM_DECLARE_KERNEL, name)
#include "dtypes.def"

// Define a kind's kernels; `kind_` is its enumerator.
#define VBGEMM_DEFINE_SIMT_KERNEL_IN(SHARED, kernel, kind, kind_)                                                                  \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),                                      \
                                                  vbgemm::min_blocks<vbgemm::LeftOf<vbgemm::Kind::kind_>>(vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                                          \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                                                  \
    using Family = vbgemm::SimtFamily<vbgemm::Kind::kind_>;                                                                        \
    using Body = vbgemm::TileKernel<Family, vbgemm::Kernel::kernel>;                                                               \
    SHARED(Body::Shared, shared);                                                                                                  \
    Body::run(parameters, shared);                                                                                                 \
  }
#define VBGEMM_DEFINE_SIMT_KERNEL(kernel, kind, kind_) VBGEMM_DEFINE_SIMT_KERNEL_IN(VBGEMM_SHARED, kernel, kind, kind_)
#define VBGEMM_DEFINE_ROW_KERNEL(kernel, kind, kind_) VBGEMM_DEFINE_SIMT_KERNEL_IN(VBGEMM_DYNAMIC_SHARED, kernel, kind, kind_)
#define VBGEMM_DEFINE_TENSOR_KERNEL(kernel, kind, kind_)                                                                  \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),                             \
                                                  vbgemm::tensor_min_blocks(vbgemm::Kind::kind_, vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                                 \
    using Body = vbgemm::TileKernel<vbgemm::TensorFamily<vbgemm::Kind::kind_>, vbgemm::Kernel::kernel>;                   \
    VBGEMM_DYNAMIC_SHARED(Body::Shared, shared);                                                                          \
    Body::run(parameters, shared);                                                                                        \
  }

#define VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, kind_)                                                                  \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::threads_of(vbgemm::Kernel::kernel),                           \
                                                  vbgemm::mfma_min_blocks(vbgemm::Kind::kind_, vbgemm::Kernel::kernel)) \
      vbgemm_##kernel##_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                               \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                                       \
    using Body = vbgemm::TileKernel<vbgemm::MfmaFamily<vbgemm::Kind::kind_>, vbgemm::Kernel::kernel>;                   \
    VBGEMM_SHARED(Body::Shared, shared);                                                                                \
    Body::run(parameters, shared);                                                                                      \
  }
