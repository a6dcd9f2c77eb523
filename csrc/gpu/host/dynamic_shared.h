// The dynamic shared memory of each kernel. Tensor kernels, row tiles and the largest ordinary tiles use more shared memory than a kernel
// can declare statically, so that each launch has to request it.
#pragma once
#include "catalogue.h"
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"

#if VBGEMM_WAVE_SIZE == 64

namespace vbgemm {
constexpr int dynamic_shared_bytes(Kind, Kernel) { return 0; }  // kernels for CDNA declare all of their shared memory
}  // namespace vbgemm

#else
#include "gpu/simt/simt_tile.h"
#include "gpu/tensor/aligned_tile.h"

namespace vbgemm {

template <class Policy>
constexpr int ordinary_shared_bytes(Kernel kernel) {
  switch (kernel) {
#define ORDINARY_KERNEL(name, threads) \
  case Kernel::name: return sizeof(typename TileKernel<Policy, Kernel::name>::Shared);
#define TENSOR_KERNEL(...)
#define PIPELINED_KERNEL(...)
#define ALIGNED_KERNEL(...)
#include "kernels.def"
    default: return 0;
  }
}

template <Kind kKind>
constexpr int aligned_shared_bytes(Kernel kernel) {
  if constexpr (kKind == Kind::bf16 || kKind == Kind::f16 || kKind == Kind::tf32) {
    switch (kernel) {
#define ORDINARY_KERNEL(...)
#define TENSOR_KERNEL(...)
#define PIPELINED_KERNEL(...)
#define ALIGNED_KERNEL(name, ...) \
  case Kernel::name: return sizeof(typename AlignedTile<kKind, Kernel::name>::Shared);
#include "kernels.def"
      default: break;
    }
  }
  return 0;
}

template <Kind kKind>
constexpr int tensor_shared_bytes(Kernel kernel) {
  switch (kernel) {
#define ORDINARY_KERNEL(...)
#define TENSOR_KERNEL(name, threads) \
  case Kernel::name: return sizeof(typename TileKernel<TensorPolicy<kKind>, Kernel::name>::Shared);
#define PIPELINED_KERNEL(name, ...) \
  case Kernel::name: return kPipelineMaxShared;
#define ALIGNED_KERNEL(...)
#include "kernels.def"
    default: return 0;
  }
}

constexpr bool has_tensor_tiles(Kind kind) {
  for (const TileShape& tile : kTiles) {
    if (tile.tensor && tile.built_for(kind)) return true;
  }
  return false;
}

template <Kind kKind>
constexpr int dynamic_shared_bytes(Kernel kernel) {
  using Policy = SimtPolicy<plain_kind_of(kKind)>;  // TF32 uses float32's ordinary tiles
  if (requests_shared(kernel)) return ordinary_shared_bytes<Policy>(kernel);
  if (aligned_row(kernel) >= 0) return aligned_shared_bytes<kKind>(kernel);
  if constexpr (kKind != Kind::f32 && has_tensor_tiles(kKind)) return tensor_shared_bytes<kKind>(kernel);
  return 0;
}

constexpr int dynamic_shared_bytes(Kind kind, Kernel kernel) {
  switch (kind) {
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, ...) \
  case Kind::id: return dynamic_shared_bytes<Kind::id>(kernel);
#include "dtypes.def"
  }
  return 0;
}

}  // namespace vbgemm
#endif
