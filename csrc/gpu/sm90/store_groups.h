// The epilogue of a tile of a ragged product: a consumer warp stores its 16 rows as unmodified sums (store.h), as zeros, or after bias,
// activation, gate and row scale.
#pragma once
#include "gpu/sm90/source_groups.h"
#include "gpu/sm90/store.h"
#include "gpu/tile/epilogue.h"
#include "gpu/tile/fast_gate.h"

namespace vbgemm {

template <class Traits>
__device__ inline void store_zeros(const RowsDestination& to, int lane, bool wide_results) {
  constexpr Vector<uint32_t, 4> kZeros{};
  const int bytes = wide_results ? 4 : 2, line = to.cols * bytes;
  for (int row = 0; row < min(to.rows, 16); ++row) {
    char* const out = to.out + row * to.row_bytes;
    for (int byte = lane * 16; byte < line; byte += 32 * 16) store_bytes<16>(out + byte, &kZeros);
  }
}

// The epilogue of a warp's rows: row_scale activation(sum + bias); in a gated product row_scale activation(gate + its bias) (up + its
// bias).
struct RaggedFinish {
  const void* bias;        // the entry of the tile's first column, or null
  const float* row_scale;  // the entry of the warp's first row, or null
  Activation activation;
  int gated;  // 0, or in a gated product the distance from the gate's bias to the other half's
  bool wide_results;
};

template <Kind kKind>
__device__ inline float bias_of(const RaggedFinish& finish, int col) {
  using T = LeftOf<kKind>;
  return finish.wide_results ? static_cast<const float*>(finish.bias)[col] : widen(static_cast<const T*>(finish.bias)[col]);
}

// The values of a gated product without bias. row_scale: the scales of the thread's two rows. A thread has an element's gate and other
// factor at the same position of both halves of its accumulators, so no exchange between lanes is needed. The tensor cores are idle
// meanwhile, hence the fast division and exponential (relative error about 1e-6).
template <Activation kActivation, int kBlocks>
__device__ inline auto gated(const float (&sums)[kBlocks][4], const float (&row_scale)[2]) {
  return [&sums, &row_scale](int block, int i) __attribute__((always_inline)) {
    return fast_gate(kActivation, sums[block][i]).value * sums[block + kBlocks / 2][i] * row_scale[i / 2];
  };
}

// Applies any epilogue and stores. The sums first go to shared memory unchanged, so that the epilogue is one loop and not a copy of its
// code for every sum. In a gated product the first half of the sums belongs to the gate, and a round stages columns of both halves.
template <class Traits, int kBlocks>
__device__ inline void store_finished(const RowsDestination& to, const float (&sums)[kBlocks][4], float* staging, int lane,
                                      const RaggedFinish& finish) {
  constexpr int kRound = 8, kLine = 64;                  // blocks of 8 columns in a round; elements in a staged line
  const int results = finish.gated ? kLine / 2 : kLine;  // per round and row
  cp_async_bulk_wait_group_read();
#pragma unroll
  for (int round = 0; round < kBlocks / kRound; ++round) {
    wave_barrier();
#pragma unroll
    for (int block = 0; block < kRound; ++block) {
      const float (&all)[4] = sums[round * kRound + block];
      const float (&half)[4] = sums[block / (kRound / 2) * (kBlocks / 2) + round * (kRound / 2) + block % (kRound / 2)];
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = finish.gated ? half[i] : all[i];
      const int row = lane / 4, col = ((block ^ row) * 8) + lane % 4 * 2;
      store_two(staging + row * kLine + col, x[0], x[1]);
      store_two(staging + (row + 8) * kLine + col, x[2], x[3]);
    }
    wave_barrier();
#pragma unroll 1
    for (int item = lane; item < 16 * results / 2; item += 32) {
      const int row = item / (results / 2), pair = item % (results / 2), col = round * results + pair * 2;
      if (row >= to.rows || col >= to.cols) continue;
      const auto staged = [&](int pair, float (&x)[2]) {
        const float* const from = staging + row * kLine + ((pair / 4 ^ (row & 7)) * 8) + pair % 4 * 2;
        const auto sum = *reinterpret_cast<const Vector<float, 2>*>(from);
        x[0] = sum.element[0], x[1] = sum.element[1];
      };
      float x[2], up[2] = {1, 1};
      staged(pair, x);
      if (finish.gated) staged(pair + kLine / 4, up);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (finish.bias) {
          x[i] += bias_of<Traits::kShortResults>(finish, col + i);
          if (finish.gated) up[i] += bias_of<Traits::kShortResults>(finish, finish.gated + col + i);
        }
        x[i] = activate(finish.activation, x[i]);
        if (finish.gated) x[i] *= up[i];
        if (finish.row_scale) x[i] *= finish.row_scale[row];
      }
      if (Traits::kElement == 4 || finish.wide_results) {
        store_bytes<8>(to.out + row * to.row_bytes + col * 4, x);
      } else if constexpr (Traits::kElement < 4) {
        const uint32_t bits = narrow_pair<Traits::kShortResults>(x[0], x[1]);
        store_bytes<4>(to.out + row * to.row_bytes + col * 2, &bits);
      }
    }
  }
}

template <class Source>
class GroupEpilogue {
  using Traits = typename Source::Traits;
  static constexpr int kBlocks = Traits::kBlocks;
  static constexpr bool kClipped = Traits::kContraction;  // TMA clips rows after the end of a matrix, not after the end of a group

 public:
  static constexpr bool kStoresZeros = true;

  __device__ GroupEpilogue(const GroupParameters& parameters, typename Source::Shared& shared, int warp, int lane)
      : parameters_(parameters), shared_(shared), warp_(warp), lane_(lane) {}

  // Stores a tile, or keeps a part of it in registers until the next tile's MMAs run. Returns whether the tile, which is in this slot of
  // the ring, is needed until then.
  __device__ bool store(const RaggedTile& tile, int slot, const float (&sums)[kBlocks][4]) {
    const RaggedSizes& sizes = parameters_.sizes;
    const RowsDestination to = destination(tile);
    unsigned char* const staging = shared_.staging[warp_];
    const bool finishes = !Traits::kContraction && parameters_.finishes;
    const bool gates = sizes.gated && !parameters_.bias;
    float row_scale[2] = {1, 1};
    if (gates && parameters_.row_scale) {
      const float* const scale = static_cast<const float*>(parameters_.row_scale) + tile.row + warp_ * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (const int row = lane_ / 4 + 8 * i; row < to.rows) row_scale[i] = scale[row];
      }
    }
    const auto store_values = [&](auto blocks, const auto& value_at) __attribute__((always_inline)) {
      constexpr int kValueBlocks = decltype(blocks)::value;
      if (Traits::kElement == 4 || parameters_.wide_results) {
        store_wide<Traits, kClipped, kValueBlocks>(to, value_at, staging, lane_);
      } else if constexpr (Traits::kIs8Bit) {  // no registers are free to defer results
        store_narrow<Traits, kClipped, kValueBlocks>(to, value_at, staging, lane_);
      } else if constexpr (Traits::kElement == 2) {
        rows_.template store<kClipped, kValueBlocks>(to, value_at, staging, lane_);
      }
    };
    if (!finishes) {
      store_values(std::integral_constant<int, kBlocks>{}, [&](int block, int i) __attribute__((always_inline)) { return sums[block][i]; });
    } else if (gates && parameters_.activation == Activation::silu) {
      store_values(std::integral_constant<int, kBlocks / 2>{}, gated<Activation::silu>(sums, row_scale));
    } else if (gates && parameters_.activation == Activation::gelu) {
      store_values(std::integral_constant<int, kBlocks / 2>{}, gated<Activation::gelu>(sums, row_scale));
    } else {
      store_finished<Traits>(to, sums, reinterpret_cast<float*>(staging), lane_, finish_of(tile));
    }
    deferred_slot_ = slot;
    return rows_.has_deferred();
  }

  __device__ void store_zeros(const RaggedTile& tile) const {
    if (!accumulates()) vbgemm::store_zeros<Traits>(destination(tile), lane_, parameters_.wide_results);
  }

  // Stores the deferred results and releases their tile.
  __device__ void store_deferred() {
    if (!rows_.has_deferred()) return;
    rows_.template store_deferred<kClipped>(destination(shared_.tile[deferred_slot_]), shared_.staging[warp_], lane_);
    release_tile(shared_, deferred_slot_, lane_);
  }
  __device__ void skip() const {}

 private:
  // The destination of this warp's rows.
  __device__ RowsDestination destination(const RaggedTile& tile) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const int row = tile.row + warp_ * 16;
    const int64_t line = Traits::kContraction ? int64_t{tile.matrix} * sizes.k + row : row, row_bytes = int64_t{sizes.n} * result_bytes();
    return {static_cast<char*>(parameters_.results) + line * row_bytes + tile.col * result_bytes(),
            row_bytes,
            tile.rows - warp_ * 16,
            min(tile.cols, sizes.gated ? Traits::kCols / 2 : Traits::kCols),
            parameters_.out,
            tile.col,
            row,
            Traits::kContraction ? tile.matrix : 0,
            accumulates()};
  }
  __device__ bool accumulates() const { return Traits::kContraction && parameters_.accumulates; }
  __device__ int result_bytes() const { return parameters_.wide_results ? 4 : 2; }

  __device__ RaggedFinish finish_of(const RaggedTile& tile) const {
    const RaggedSizes& sizes = parameters_.sizes;
    const char* const bias = static_cast<const char*>(parameters_.bias);
    const float* const row_scale = static_cast<const float*>(parameters_.row_scale);
    return {bias ? bias + (int64_t{tile.matrix} * sizes.columns() + tile.col) * result_bytes() : nullptr,
            row_scale ? row_scale + tile.row + warp_ * 16 : nullptr, parameters_.activation, sizes.gated ? sizes.n : 0,
            parameters_.wide_results};
  }

  const GroupParameters& parameters_;
  typename Source::Shared& shared_;
  int warp_, lane_;
  NarrowRows<Traits> rows_;
  int deferred_slot_ = 0;  // the slot of the tile whose results are deferred; it is released when they are stored
};

}  // namespace vbgemm
