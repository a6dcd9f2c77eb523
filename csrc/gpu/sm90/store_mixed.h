// The epilogue of a tile that was computed transposed (mainloop_mixed.h). A consumer warp has 16 columns of the result in each of its two
// boxes; in a gated product one box belongs to the gate and one to the other half.
#pragma once
#include "gpu/sm90/store_groups.h"

namespace vbgemm {

template <class Source>
class MixedEpilogue {
  using Traits = typename Source::Traits;
  static constexpr int kCols = 16, kParts = 2, kPart = Traits::kBlocks / kParts, kRows = Traits::kRows;
  static_assert(kParts * kRows * kCols * static_cast<int>(sizeof(float)) <= Traits::kStagingBytes && kRows == 32);

 public:
  static constexpr bool kStoresZeros = true;

  __device__ MixedEpilogue(const GroupParameters& parameters, typename Source::Shared& shared, int warp, int lane)
      : parameters_(parameters), staging_(reinterpret_cast<float*>(shared.staging[warp])), warp_(warp), lane_(lane) {}

  // Returns false: the tile is no longer needed.
  __device__ bool store(const RaggedTile& tile, int, const float (&sums)[Traits::kBlocks][4]) const {
    wave_barrier();  // all lanes have read the previous contents
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int block = 0; block < kPart; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int col = lane_ / 4 + i / 2 * 8, row = 8 * block + lane_ % 4 * 2 + i % 2;
          staged(part, row, col / 4)[col % 4] = sums[part * kPart + block][i];
        }
      }
    }
    wave_barrier();
    store_rows<true>(tile);
    return false;
  }

  __device__ void store_zeros(const RaggedTile& tile) const { store_rows<false>(tile); }
  __device__ void store_deferred() const {}
  __device__ void skip() const {}

 private:
  static constexpr int kVector = 8;  // adjacent results of a lane
  using Values = float[kVector];

  // A vector of four adjacent sums. The vectors are swizzled within a row against bank conflicts.
  __device__ float* staged(int part, int row, int vector) const {
    return staging_ + (part * kRows + row) * kCols + (vector ^ (row / 2 % 4)) * 4;
  }

  // Each lane stores one vector of a row: few rows keep few lanes busy, but each lane has several independent results.
  template <bool kExist>
  __device__ void store_rows(const RaggedTile& tile) const {
    const RaggedSizes& sizes = parameters_.sizes;
    constexpr int kVectors = kCols / kVector;
    const int parts = sizes.gated ? 1 : kParts;
#pragma unroll 1
    for (int item = lane_; item < tile.rows * kVectors * parts; item += 32) {
      const int within = item % kVectors * kVector, part = item / kVectors % parts, row = item / kVectors / parts;
      const int left = part * 2 * Traits::kBox + warp_ / 4 * Traits::kBox + warp_ % 4 * kCols + within;
      if (left >= tile.cols) continue;
      Values x = {};
      if constexpr (kExist) finish(tile, part, row, left, within, x);
      const int64_t at = int64_t{tile.row + row} * sizes.n + tile.col + left;
      char* const out = static_cast<char*>(parameters_.results);
      if (parameters_.wide_results) {
        store_bytes<16>(out + at * 4, &x[0]), store_bytes<16>(out + at * 4 + 16, &x[4]);
      } else {
        uint32_t words[kVector / 2];
#pragma unroll
        for (int i = 0; i < kVector / 2; ++i) words[i] = narrow_pair<Traits::kKind>(x[2 * i], x[2 * i + 1]);
        store_bytes<16>(out + at * 2, words);
      }
    }
  }

  // row_scale activation(sum + bias), multiplied by the other half in a gated product.
  __device__ void finish(const RaggedTile& tile, int part, int row, int left, int within, Values& x) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const int64_t column = int64_t{tile.matrix} * sizes.columns() + tile.col + left;
    load(part, row, within, column, x);
    Values up;
    if (sizes.gated) load(1, row, within, column + sizes.n, up);
    const bool fast = parameters_.activation == Activation::silu || parameters_.activation == Activation::gelu;
    const float scale = parameters_.row_scale ? static_cast<const float*>(parameters_.row_scale)[tile.row + row] : 1;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      x[i] = fast ? fast_gate(parameters_.activation, x[i]).value : activate(parameters_.activation, x[i]);
      if (sizes.gated) x[i] *= up[i];
      x[i] *= scale;
    }
  }

  // Loads sums and adds their bias; `column` counts the columns of all matrices.
  __device__ void load(int part, int row, int within, int64_t column, Values& x) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] = staged(part, row, (within + i) / 4)[i % 4];
    if (!parameters_.bias) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      x[i] += parameters_.wide_results ? static_cast<const float*>(parameters_.bias)[column + i]
                                       : widen(static_cast<const typename Traits::T*>(parameters_.bias)[column + i]);
    }
  }

  const GroupParameters& parameters_;
  float* staging_;
  int warp_, lane_;
};

}  // namespace vbgemm
