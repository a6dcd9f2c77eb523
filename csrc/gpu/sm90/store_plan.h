// The epilogue of a plan's tiles: a consumer warp stores its 16 rows by TMA, or through shared memory by threads, which handle epilogues,
// unaligned rows, partial sums and a column-major C.
#pragma once
#include "gpu/sm90/source_plan.h"
#include "gpu/sm90/store.h"
#include "gpu/tensor/tensor_store.h"

namespace vbgemm {

template <class Traits, class T>
__device__ inline void store_by_tma(const CUtensorMap& map, const ResolvedTile<T>& place, int warp, const float (&sums)[Traits::kBlocks][4],
                                    unsigned char* staging, int lane) {
  const RowsDestination to{nullptr, 0, place.rows - warp * 16, place.cols, map, 0, warp * 16, 0};
  const auto sum = [&](int block, int i) __attribute__((always_inline)) { return sums[block][i]; };
  if (place.stores_sums()) {
    store_wide<Traits, true, Traits::kBlocks>(to, sum, staging, lane);
  } else {
    store_narrow<Traits, true, Traits::kBlocks>(to, sum, staging, lane);
  }
}

// A piece of a warp's results, 16 rows by 32 columns, stored as if it were the tile of a CTA of 32 threads (tensor_store.h).
struct Patch {
  using Sum = float;
  static constexpr int kRows = 16, kCols = 32, kThreads = 32, kSplit = 1;
  static constexpr int kSumPitch = kCols + 4, kPlane = kRows * kSumPitch;  // padded against bank conflicts
};

template <class Out, int kWidth, class T>
__device__ inline void store_patch(const ResolvedTile<T>& place, int row, int col, float* plane, int lane) {
  Planes<Patch, kWidth> mine(lane, plane);
  const int rows = min(place.rows - row, Patch::kRows);
  const int count = col + mine.col < place.cols ? max(rows - mine.row + mine.kStep - 1, 0) / mine.kStep : 0;
  mine.row += row;
  mine.col += col;
  if (place.fused) {
    scale_sums<Out>(place, mine, count);
    activate_sums(place, mine, count);
  }
  store_elements<Out>(place, mine, count, 1);
}

template <class Out, class Traits, class T>
__device__ inline void store_patches(const ResolvedTile<T>& place, int warp, const float (&sums)[Traits::kBlocks][4], float* plane,
                                     int lane) {
  constexpr int kVector = 4, kRound = Patch::kCols / 8;  // blocks of 8 columns in a patch
  const auto vectorizes = [&](const MatrixView& x) { return !x.first || takes_vectors<Out, kVector>(x, place.cols); };
  const bool vectors =
      vectorizes(place.matrix[kC]) && (!place.fused || (vectorizes(place.matrix[kSource]) && vectorizes(place.matrix[kBias])));
  cp_async_bulk_wait_group_read();  // TMA has read the previous contents
#pragma unroll
  for (int round = 0; round < Traits::kBlocks / kRound; ++round) {
    wave_barrier();
#pragma unroll
    for (int block = 0; block < kRound; ++block) {
      const float (&x)[4] = sums[round * kRound + block];
      float* const to = plane + lane / 4 * Patch::kSumPitch + block * 8 + lane % 4 * 2;
      store_two(to, x[0], x[1]);
      store_two(to + 8 * Patch::kSumPitch, x[2], x[3]);
    }
    wave_barrier();
    if (round * Patch::kCols >= place.cols) continue;
    if (vectors) {
      store_patch<Out, kVector>(place, warp * 16, round * Patch::kCols, plane, lane);
    } else {
      store_patch<Out, 1>(place, warp * 16, round * Patch::kCols, plane, lane);
    }
  }
}

template <class Traits, class T>
__device__ inline void store_by_threads(const ResolvedTile<T>& place, int warp, const float (&sums)[Traits::kBlocks][4],
                                        unsigned char* staging, int lane) {
  static_assert(Patch::kPlane * sizeof(float) <= Traits::kStagingBytes);
  float* const plane = reinterpret_cast<float*>(staging);
  if (place.stores_sums()) {
    store_patches<float, Traits>(place, warp, sums, plane, lane);
  } else {
    store_patches<T, Traits>(place, warp, sums, plane, lane);
  }
}

template <class Source>
class PlanEpilogue {
  using Traits = typename Source::Traits;

 public:
  static constexpr bool kStoresZeros = false;  // a tile of depth 0 may have an epilogue

  __device__ PlanEpilogue(const PlanParameters&, typename Source::Shared& shared, int warp, int lane)
      : staging_(shared.staging[warp]), warp_(warp), lane_(lane) {}

  // Returns whether the tile is still needed: results are never deferred here.
  __device__ bool store(const typename Source::Tile& tile, int, const float (&sums)[Traits::kBlocks][4]) const {
    if (tile.stored_by_tma) {
      store_by_tma<Traits>(tile.maps->c, tile, warp_, sums, staging_, lane_);
    } else {
      store_by_threads<Traits>(tile, warp_, sums, staging_, lane_);
    }
    return false;
  }
  __device__ void store_zeros(const typename Source::Tile&) const {}
  __device__ void store_deferred() const {}
  // Stores nothing, but waits as a store would: TMA must have read the previous tile's staged rows, whose maps are about to be replaced.
  __device__ void skip() const { cp_async_bulk_wait_group_read(); }

 private:
  unsigned char* staging_;
  int warp_, lane_;
};

}  // namespace vbgemm
