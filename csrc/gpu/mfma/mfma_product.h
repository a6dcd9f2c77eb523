// A wave's MFMAs on CDNA's matrix cores: loading fragments from shared memory, and the MFMA of each arithmetic.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/mfma/mfma_traits.h"

namespace vbgemm {

// The row, within a block of 16 x 16 sums, of a lane's element r. Its column is lane % 16.
template <class Sum>
__device__ inline int mfma_row(int lane, int r) {
  return sizeof(Sum) == 8 ? 4 * r + lane / 16 : lane / 16 * 4 + r;
}

// A fragment: 16 bytes along K. Lanes 0 to 15 hold the first vector of lines 0 to 15 of a block, lanes 16 to 31 the second, and so on. An
// instruction takes a few elements of each lane. It assigns the same K elements to them in A and B, so their order does not matter.
template <class T>
using Fragment = Vector<T, kVectorBytes / static_cast<int>(sizeof(T))>;

template <class Traits>
using MfmaSums = typename Traits::Sum[Traits::kBlocksM][Traits::kBlocksN][4];

// sum += a b for one block of sums, over the K of a fragment.
template <Kind kKind, class T, class Sum>
__device__ inline void multiply_fragments(const Fragment<T>& a, const Fragment<T>& b, Sum (&sum)[4]) {
  if constexpr (kKind == Kind::f32) {
#pragma unroll
    for (int e = 0; e < 4; ++e) mfma_float32(a.element[e], b.element[e], sum);
  } else if constexpr (kKind == Kind::f64) {
#pragma unroll
    for (int e = 0; e < 2; ++e) mfma_float64(a.element[e], b.element[e], sum);
  } else {
    // Two instructions, each with 8 bytes of every lane.
    uint32_t halves_a[2][2], halves_b[2][2];
    __builtin_memcpy(halves_a, &a, sizeof a);
    __builtin_memcpy(halves_b, &b, sizeof b);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kKind == Kind::bf16) {
        mfma_bfloat16(halves_a[h], halves_b[h], sum);
      } else if constexpr (kKind == Kind::f16) {
        mfma_float16(halves_a[h], halves_b[h], sum);
      } else {
        static_assert(kKind == Kind::tf32);
        mfma_tf32(halves_a[h], halves_b[h], sum);
      }
    }
  }
}

// sums += A B over one K step in shared memory; `a` and `b` are this lane's first fragments.
template <class Traits, class T>
__device__ inline void multiply_mfma_step(const T* a, const T* b, MfmaSums<Traits>& sums) {
  Fragment<T> columns[Traits::kBlocksN];
#pragma unroll
  for (int j = 0; j < Traits::kBlocksN; ++j) columns[j] = *reinterpret_cast<const Fragment<T>*>(b + j * Traits::kBlock * Traits::B::kPitch);
#pragma unroll
  for (int i = 0; i < Traits::kBlocksM; ++i) {
    const Fragment<T> rows = *reinterpret_cast<const Fragment<T>*>(a + i * Traits::kBlock * Traits::A::kPitch);
#pragma unroll
    for (int j = 0; j < Traits::kBlocksN; ++j) multiply_fragments<Traits::kKind, T>(rows, columns[j], sums[i][j]);
  }
}

}  // namespace vbgemm
