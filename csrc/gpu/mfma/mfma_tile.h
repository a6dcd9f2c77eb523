// One tile of C on CDNA's matrix cores: each K step passes through registers to shared memory, the products read it there, and the sums
// pass through shared memory to C.
#pragma once
#include "gpu/mfma/mfma_copy.h"
#include "gpu/mfma/mfma_product.h"
#include "gpu/mfma/mfma_store.h"
#include "gpu/tile/tile_kernel.h"

namespace vbgemm {

// The main loop. The loads of a step are in flight while the previous step is multiplied. K is walked upwards. With a K range of length 0
// the sums remain zero.
template <class Traits, class T>
__device__ inline void multiply_mfma_tile(const ResolvedTile<T>& place, T* shared) {
  const int wave = thread_index() / kWaveSize, lane = thread_index() % kWaveSize;
  const int row = wave / Traits::kWavesN * Traits::kWaveRows, col = wave % Traits::kWavesN * Traits::kWaveCols;
  T* const shared_b = shared + Traits::A::kElements;
  const T* const lane_a = shared + (row + lane % 16) * Traits::A::kPitch + lane / 16 * Traits::A::kVectorItems;
  const T* const lane_b = shared_b + (col + lane % 16) * Traits::B::kPitch + lane / 16 * Traits::B::kVectorItems;

  MfmaSums<Traits> sums = {};
  {
    VectorCopy<T, typename Traits::A, Traits::kThreads> copy_a(place.matrix[kA], true);
    VectorCopy<T, typename Traits::B, Traits::kThreads> copy_b(place.matrix[kB], false);
    const int rows = place.rows, cols = place.cols;
    int left = place.depth;
    await_previous_kernel();
    if (left > 0) copy_a.load(rows, left), copy_b.load(cols, left);
#pragma unroll 1
    while (left > 0) {
      copy_a.store(shared, left);
      copy_b.store(shared_b, left);
      left -= Traits::kDepth;
      if (left > 0) copy_a.load(rows, left), copy_b.load(cols, left);
      block_barrier();  // this step's data are visible
      multiply_mfma_step<Traits>(lane_a, lane_b, sums);
      block_barrier();  // all waves have read them
    }
  }
  store_bands<Traits>(place, sums, row, col, reinterpret_cast<typename Traits::Sum*>(shared) + wave * Traits::kBandElements);
}

// How AMD's matrix cores compute tiles of an arithmetic.
template <Kind kKind_>
struct MfmaPolicy {
  static constexpr Kind kKind = kKind_;
  static constexpr bool kMirrors = false;
  using Element = LeftOf<kKind>;
  static constexpr int kAlignment = kBankLineBytes;  // alignment in bytes of the operands in shared memory
  template <int kRow>
  using Traits = MfmaTraits<kKind, kRow>;

  template <class Traits>
  __device__ static void multiply(const ResolvedTile<Element>& place, Element* shared) {
    multiply_mfma_tile<Traits>(place, shared);
  }
};

}  // namespace vbgemm
