// Writes a tile's sums to C through shared memory, where each wave lays out a band of 16 rows at a time. Adjacent lanes then write adjacent
// elements, and the code of the epilogue exists once.
#pragma once
#include "gpu/mfma/mfma_product.h"
#include "gpu/tile/finish.h"

namespace vbgemm {

// A wave's band; a lane handles every 64th element of it.
template <class Traits>
struct Band {
  using Sum = typename Traits::Sum;
  static constexpr int kElements = Traits::kBlock * Traits::kWaveCols / kWaveSize;

  int first_row, first_col, lane;  // the wave's rectangle of the tile
  Sum* sums;

  __device__ int row(int n) const { return (n * kWaveSize + lane) / Traits::kWaveCols; }
  __device__ int col(int n) const { return (n * kWaveSize + lane) % Traits::kWaveCols; }

  // The lane's n-th element.
  __device__ Sum& element(int n) const { return sums[row(n) * Traits::kBandPitch + col(n)]; }

  // The position in the tile of the lane's n-th element. `pass` is the index of the band.
  __device__ Location locate(Extent tile, int pass, int n) const {
    const int tile_row = first_row + pass * Traits::kBlock + row(n), tile_col = first_col + col(n);
    return {tile_row, tile_col, tile_row < tile.rows && tile_col < tile.cols};
  }
};

template <class Out, class Traits, class T>
__device__ inline void store_bands_as(const ResolvedTile<T>& place, const MfmaSums<Traits>& sums, const Band<Traits>& band) {
#pragma unroll
  for (int i = 0; i < Traits::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < Traits::kBlocksN; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        band.sums[mfma_row<typename Traits::Sum>(band.lane, r) * Traits::kBandPitch + j * Traits::kBlock + band.lane % 16] = sums[i][j][r];
      }
    }
    wave_barrier();
    if (place.fused) apply_epilogue<Out>(band, place, i);
    write_elements<Out>(band, place, i);
    wave_barrier();  // because the next band overwrites this one
  }
}

template <class Traits, class T>
__device__ inline void store_bands(const ResolvedTile<T>& place, const MfmaSums<Traits>& sums, int row, int col,
                                   typename Traits::Sum* shared) {
  const Band<Traits> band{row, col, thread_index() % kWaveSize, shared};
  if (place.stores_sums()) {
    store_bands_as<typename Traits::Sum, Traits>(place, sums, band);
  } else {
    store_bands_as<T, Traits>(place, sums, band);
  }
}

}  // namespace vbgemm
