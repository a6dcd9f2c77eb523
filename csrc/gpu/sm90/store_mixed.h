// The epilogue of a tile whose transpose was computed (mainloop_mixed.h): a consumer warp has 16 columns of the result in each of its two
// boxes, of which those of a gated product belong to the gate and to the other half.
#pragma once
#include "gpu/sm90/store_groups.h"

namespace vbgemm {

template <class Source>
class MixedEpilogue {
  using Cut = typename Source::Cut;
  static constexpr int kCols = 16, kParts = 2, kPart = Cut::kBlocks / kParts, kRows = Cut::kRows;
  static_assert(kParts * kRows * kCols * static_cast<int>(sizeof(float)) <= Cut::kStagingBytes && kRows == 32);

 public:
  static constexpr bool kStoresZeros = true;

  __device__ MixedEpilogue(const GroupParameters& parameters, typename Source::Shared& shared, int warp, int lane)
      : parameters_(parameters), staging_(reinterpret_cast<float*>(shared.staging[warp])), warp_(warp), lane_(lane) {}

  // Returns that the tile is not needed any more.
  __device__ bool store(const RaggedTile& tile, int, const float (&sums)[Cut::kBlocks][4]) const {
    wave_barrier();  // all lanes have read what was staged before
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int block = 0; block < kPart; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int col = lane_ / 4 + i / 2 * 8, row = 8 * block + lane_ % 4 * 2 + i % 2;
          place(part, row)[col ^ turn(row)] = sums[part * kPart + block][i];
        }
      }
    }
    wave_barrier();
    store_columns(tile, true);
    return false;
  }

  __device__ void store_zeros(const RaggedTile& tile) const { store_columns(tile, false); }
  __device__ void store_waiting() const {}
  __device__ void skip() const {}

 private:
  __device__ float* place(int part, int row) const { return staging_ + (part * kRows + row) * kCols; }
  // Rows are permuted against bank conflicts, in pairs of columns.
  __device__ static int turn(int row) { return row / 2 % 4 * 2; }

  // A lane has a row of the tile.
  __device__ void store_columns(const RaggedTile& tile, bool exist) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const int row = tile.row + lane_;
    if (lane_ >= tile.rows) return;
    const float scale = parameters_.row_scale ? static_cast<const float*>(parameters_.row_scale)[row] : 1;
    const int bytes = parameters_.wide_results ? 4 : 2;
    constexpr int kEach = 4;
#pragma unroll 1
    for (int part = 0; part < (sizes.gated ? 1 : kParts); ++part) {
      const int left = part * 2 * Cut::kBox + warp_ / 4 * Cut::kBox + warp_ % 4 * kCols;
      char* const out = static_cast<char*>(parameters_.results) + (int64_t{row} * sizes.n + tile.col + left) * bytes;
#pragma unroll 1
      for (int col = 0; col < kCols && left + col < tile.cols; col += kEach) {
        float x[kEach] = {};
#pragma unroll
        for (int i = 0; exist && i < kEach; ++i) x[i] = scale * finished(tile, part, left, col + i);
        if (parameters_.wide_results) {
          store_bytes<16>(out + col * 4, x);
        } else {
          const uint32_t words[2] = {narrow_pair<Cut::kKind>(x[0], x[1]), narrow_pair<Cut::kKind>(x[2], x[3])};
          store_bytes<8>(out + col * 2, words);
        }
      }
    }
  }

  // activation(sum + bias), times the other half in a gated product.
  __device__ float finished(const RaggedTile& tile, int part, int left, int col) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const auto with_bias = [&](int of, int distance) {
      const float sum = place(of, lane_)[col ^ turn(lane_)];
      if (!parameters_.bias) return sum;
      const int64_t at = int64_t{tile.matrix} * sizes.columns() + distance + tile.col + left + col;
      if (parameters_.wide_results) return sum + static_cast<const float*>(parameters_.bias)[at];
      return sum + widen(static_cast<const typename Cut::T*>(parameters_.bias)[at]);
    };
    const float value = activate(parameters_.activation, with_bias(part, 0));
    return sizes.gated ? value * with_bias(1, sizes.n) : value;
  }

  const GroupParameters& parameters_;
  float* staging_;
  int warp_, lane_;
};

}  // namespace vbgemm
