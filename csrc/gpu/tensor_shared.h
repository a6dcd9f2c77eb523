// How much shared memory a launch must give each kernel: the tensor kernels' blocks use more than a kernel can declare.
#pragma once
#include "../catalogue.h"
#include "gpu_vendor.h"

#if VBGEMM_WAVE_SIZE == 64

namespace vbgemm {
constexpr int dynamic_shared_bytes(Kind, Kernel) { return 0; }  // kernels for CDNA declare all they use
}  // namespace vbgemm

#else
#include "tensor_tile.h"

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
    default: return 0;
  }
}

constexpr int dynamic_shared_bytes(Kind kind, Kernel kernel) {
  switch (kind) {
    case Kind::f64: return tensor_shared_bytes<Kind::f64>(kernel);
    case Kind::bf16: return tensor_shared_bytes<Kind::bf16>(kernel);
    case Kind::f16: return tensor_shared_bytes<Kind::f16>(kernel);
    case Kind::tf32: return tensor_shared_bytes<Kind::tf32>(kernel);
    case Kind::tf32x3: return tensor_shared_bytes<Kind::tf32x3>(kernel);
    default: return 0;
  }
}

}  // namespace vbgemm
#endif
