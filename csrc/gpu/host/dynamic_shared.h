// How much shared memory a launch must give each kernel: the blocks of the tensor kernels, and of that for whole rows, use more than a
// kernel can declare.
#pragma once
#include "catalogue.h"
#include "gpu/arch/gpu_vendor.h"

#if VBGEMM_WAVE_SIZE == 64

namespace vbgemm {
constexpr int dynamic_shared_bytes(Kind, Kernel) { return 0; }  // kernels for CDNA declare all they use
}  // namespace vbgemm

#else
#include "gpu/simt/simt_tile.h"
#include "gpu/tensor/tensor_tile.h"

namespace vbgemm {

template <Kind kKind>
constexpr int tensor_shared_bytes(Kernel kernel) {
  using Family = TensorFamily<kKind>;
  switch (kernel) {
    case Kernel::m128_light: return sizeof(typename TileKernel<Family, Kernel::m128_light>::Shared);
    case Kernel::m128_heavy: return sizeof(typename TileKernel<Family, Kernel::m128_heavy>::Shared);
    case Kernel::m256_heavy: return sizeof(typename TileKernel<Family, Kernel::m256_heavy>::Shared);
    case Kernel::m256_full: return sizeof(typename TileKernel<Family, Kernel::m256_full>::Shared);
    case Kernel::m256_dots: return sizeof(typename TileKernel<Family, Kernel::m256_dots>::Shared);
    case Kernel::m128_rows: return sizeof(typename TileKernel<Family, Kernel::m128_rows>::Shared);
    case Kernel::m128_wide_rows: return sizeof(typename TileKernel<Family, Kernel::m128_wide_rows>::Shared);
    default: return 0;
  }
}

template <Kind kKind>
constexpr int dynamic_shared_bytes(Kernel kernel) {
  using Family = SimtFamily<typename TensorElement<kKind>::type, kind_of(element_of(kKind))>;  // tf32's tiles of whole rows are float32's
  switch (kernel) {
    case Kernel::t128_rows: return sizeof(typename TileKernel<Family, Kernel::t128_rows>::Shared);
    case Kernel::t128_wide_rows: return sizeof(typename TileKernel<Family, Kernel::t128_wide_rows>::Shared);
    default: return kKind == Kind::f32 ? 0 : tensor_shared_bytes<kKind>(kernel);
  }
}

constexpr int dynamic_shared_bytes(Kind kind, Kernel kernel) {
  switch (kind) {
    case Kind::f32: return dynamic_shared_bytes<Kind::f32>(kernel);
    case Kind::f64: return dynamic_shared_bytes<Kind::f64>(kernel);
    case Kind::bf16: return dynamic_shared_bytes<Kind::bf16>(kernel);
    case Kind::f16: return dynamic_shared_bytes<Kind::f16>(kernel);
    case Kind::tf32: return dynamic_shared_bytes<Kind::tf32>(kernel);
    case Kind::tf32x3: return dynamic_shared_bytes<Kind::tf32x3>(kernel);
    default: return 0;
  }
}

}  // namespace vbgemm
#endif
