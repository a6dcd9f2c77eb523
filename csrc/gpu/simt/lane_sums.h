// Partial sums that are distributed over several lanes: their reduction, and their way to C through shared memory.
#pragma once
#include "gpu/tile/finish.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Reduces the partial sums of the lanes whose indices differ in the bits from kDistance on, always in the same order. For each bit a lane
// keeps one half of its kCount sums and exchanges the other half for its partner's, until one sum is left. Returns which of the lane's sums
// is now its first.
template <int kDistance, int kCount, class Sum, int kAll>
__device__ inline int add_lanes(Sum (&sum)[kAll]) {
  if constexpr (kDistance < kWaveSize) {
    constexpr int kHalf = kCount > 1 ? kCount / 2 : 1;
    const bool upper = kCount > 1 && (thread_index() & kDistance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const Sum low = sum[i], high = sum[kCount > 1 ? i + kHalf : i];
      Sum sent = upper ? low : high;
      shfl_xor<kDistance>(sent);
      sum[i] = (upper ? high : low) + sent;
    }
    return (upper ? kHalf : 0) + add_lanes<2 * kDistance, kHalf>(sum);
  }
  return 0;
}

// A tile's sums in shared memory, row by row; adjacent threads have adjacent elements.
template <class Traits>
struct TileStaging {
  using Sum = typename Traits::Sum;
  static constexpr int kTileSums = Traits::kRows * Traits::kCols, kElements = (kTileSums + Traits::kThreads - 1) / Traits::kThreads;
  Sum* sums;

  __device__ static int index(int n) { return n * Traits::kThreads + thread_index(); }
  __device__ Sum& element(int n) const { return sums[index(n)]; }
  __device__ Location locate(Extent tile, int, int n) const {
    const int row = index(n) / Traits::kCols, col = index(n) % Traits::kCols;
    return {row, col, row < tile.rows && col < tile.cols};
  }

  template <class T>
  __device__ void store(const ResolvedTile<T>& place) const {
    with_result<T>(place.result_type(), [&](auto out) __attribute__((always_inline)) { store_as<decltype(out)>(place); });
  }

 private:
  template <class Out, class T>
  __device__ void store_as(const ResolvedTile<T>& place) const {
    if (place.fused && index(0) < kTileSums) apply_epilogue<Out>(*this, place, 0);
    write_elements<Out>(*this, place, 0);
  }
};

}  // namespace vbgemm
