// The epilogue of a plan's tiles. A consumer warp finishes its 16 rows in registers and stores them by TMA. What that does not cover (bias,
// activation, unaligned rows, partial sums, a column-major C) goes through shared memory, from which threads finish and store it.
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

// Stores the transpose of a warp's 16 rows, rounded to 16 bits, to the mirror image of the tile. Each column becomes 32 adjacent bytes. C's
// rows must be whole aligned vectors.
template <class Traits, class T>
__device__ inline void store_mirrored(const ResolvedTile<T>& place, int warp, const float (&sums)[Traits::kBlocks][4],
                                      unsigned char* staging, int lane) {
  constexpr int kColumns = 64;  // staged at a time
  static_assert(kColumns * 32 <= Traits::kStagingBytes);
  // The swizzle keeps the eight columns that a matrix stores in different banks.
  const auto staged = [&](int col, int half) { return staging + col * 32 + (half ^ (col >> 2 & 1)) * 16; };
  const int row = warp * 16 + lane % 2 * 8, cols = row < place.rows ? place.cols : 0;
  const int64_t line = place.matrix[kC].row_stride;
  T* const to = static_cast<T*>(place.mirror) + row;
  cp_async_bulk_wait_group_read();  // TMA has read the previous contents
#pragma unroll
  for (int left = 0; left < Traits::kCols; left += kColumns) {
    wave_barrier();
#pragma unroll
    for (int block = 0; block < kColumns / 8; block += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&x)[4] = sums[left / 8 + block + i / 2];
        words[i] = narrow_pair<Traits::kShortResults>(x[i % 2 * 2], x[i % 2 * 2 + 1]);
      }
      stmatrix_x4_trans(staged((block + lane / 16) * 8 + lane % 8, lane / 8 % 2), words);
    }
    wave_barrier();
#pragma unroll
    for (int begin = 0; begin < kColumns; begin += 16) {
      const int col = begin + lane / 2;
      const auto eight = *reinterpret_cast<const Vector<uint32_t, 4>*>(staged(col, lane % 2));
      if (left + col < cols) store_bytes<16>(to + (left + col) * line, &eight);
    }
  }
}

// A piece of a warp's results, 16 rows by 32 columns, stored as if it were the tile of a CTA of 32 threads (tensor_store.h).
struct Patch {
  using Sum = float;
  static constexpr int kRows = 16, kCols = 32, kThreads = 32, kSplit = 1;
  static constexpr int kPitchInSums = kCols + 4, kPlane = kRows * kPitchInSums;  // distance between rows: padded against bank conflicts
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

// Stores the transpose of a patch's results, which begin at (row, col) of the tile, to the mirror image of the tile.
template <class Out, class T>
__device__ inline void store_mirrored_patch(const ResolvedTile<T>& place, int row, int col, const float* plane, int lane) {
  const MatrixView& c = place.matrix[kC];
  const int down = lane % Patch::kRows;
  if (row + down >= place.rows) return;
  Out* const to = static_cast<Out*>(place.mirror) + (row + down) * c.col_stride + col * c.row_stride;
  const int count = min(place.cols - col, Patch::kCols);
  for (int across = lane / Patch::kRows; across < count; across += Patch::kThreads / Patch::kRows) {
    narrow(plane[down * Patch::kPitchInSums + across], to[across * c.row_stride]);
  }
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
      float* const to = plane + lane / 4 * Patch::kPitchInSums + block * 8 + lane % 4 * 2;
      store_two(to, x[0], x[1]);
      store_two(to + 8 * Patch::kPitchInSums, x[2], x[3]);
    }
    wave_barrier();
    if (round * Patch::kCols >= place.cols) continue;
    if (vectors) {
      store_patch<Out, kVector>(place, warp * 16, round * Patch::kCols, plane, lane);
    } else {
      store_patch<Out, 1>(place, warp * 16, round * Patch::kCols, plane, lane);
    }
    if (!place.mirror) continue;
    wave_barrier();  // all lanes have written their results to the patch
    store_mirrored_patch<Out>(place, warp * 16, round * Patch::kCols, plane, lane);
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
  using T = typename Source::T;
  using Tile = typename Source::Tile;

 public:
  static constexpr bool kStoresZeros = false;  // a tile of depth 0 may have an epilogue

  __device__ PlanEpilogue(const PlanParameters&, typename Source::Shared& shared, int warp, int lane)
      : staging_(shared.staging[warp]), warp_(warp), lane_(lane) {}

  // Replaces sums by alpha sum + beta source in the columns of which this stage holds the source matrix.
  __device__ __forceinline__ void add_source(const Tile& tile, const unsigned char* stage, int stage_index,
                                             float (&sums)[Traits::kBlocks][4]) const {
    constexpr int kBoxBlocks = Traits::kBox / 8, kBlocks = SourceBoxes::kAcross * kBoxBlocks;
    static_assert(SourceBoxes::kStages * kBlocks == Traits::kBlocks &&
                  SourceBoxes::kAcross <= Traits::kStageBytes / (Traits::kBoxesA * Traits::kBoxBytes));
    const float alpha = tile.alpha, beta = tile.beta;
    const unsigned char* const from = stage + warp_ / 4 * Traits::kBoxBytes + (warp_ % 4 * 16 + lane_ / 4) * 128 + lane_ % 4 * 4;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int vector = block % kBoxBlocks ^ (lane_ / 4);  // swizzled by the line's index
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned char* const at = from + block / kBoxBlocks * (Traits::kBoxesA * Traits::kBoxBytes) + vector * 16 + i * (8 * 128);
        const auto pair = *reinterpret_cast<const Vector<T, 2>*>(at);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float& sum = sums[stage_index * kBlocks + block][2 * i + n];
          sum = scale_sum(alpha, sum, multiply_add(beta, widen(pair.element[n]), nothing<float>()));
        }
      }
    }
  }

  // Returns whether the tile is still needed: results are never deferred here.
  __device__ bool store(const Tile& tile, int, float (&sums)[Traits::kBlocks][4]) const {
    if (!tile.stored_by_tma) {
      store_by_threads<Traits>(tile, warp_, sums, staging_, lane_);
      return false;
    }
    if (tile.fused && !tile.source_by_tma) {
      const float alpha = tile.alpha;
#pragma unroll
      for (auto& block : sums) {
#pragma unroll
        for (float& sum : block) sum = scale_sum(alpha, sum, nothing<float>());
      }
    }
    store_by_tma<Traits>(tile.maps->c, tile, warp_, sums, staging_, lane_);
    if (tile.mirror) store_mirrored<Traits>(tile, warp_, sums, staging_, lane_);
    return false;
  }
  __device__ void store_zeros(const Tile&) const {}
  __device__ void store_deferred() const {}
  // Stores nothing, but waits as a store would: TMA must have read the previous tile's staged rows, whose maps are about to be replaced.
  __device__ void skip() const { cp_async_bulk_wait_group_read(); }

 private:
  unsigned char* staging_;
  int warp_, lane_;
};

}  // namespace vbgemm
