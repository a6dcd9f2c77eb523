// The epilogue of a ragged contraction of 16-bit operands. A tile's K is one group's rows, often so few that storing the tile takes about
// as long as computing it. Consumer warps only write results to shared memory. Two further warps, one for each consumer warpgroup, issue
// the TMA stores: the proxy fence before a TMA store would make a consumer wait for its MMAs in flight (docs/design/ragged.md).
#pragma once
#include "gpu/sm90/store_groups.h"

namespace vbgemm {

// The staging buffer of a consumer warpgroup: each round holds two boxes, with 128 bytes of each of its 64 rows per box.
template <class Source>
class ResultBuffer {
  using Traits = typename Source::Traits;

 public:
  static constexpr int kBoxes = Traits::kStoreBoxes, kBoxBytes = Traits::kBox * 128;
  static_assert(4 * Traits::kStagingBytes == kBoxes * kBoxBytes);

  __device__ ResultBuffer(typename Source::Shared& shared, int half)
      : full(shared.source.results_full[half]), empty(shared.source.results_empty[half]), boxes_(shared.staging[4 * half]) {}

  __device__ unsigned char* box(int i) const { return boxes_ + i * kBoxBytes; }

  Mbarrier &full, &empty;

 private:
  unsigned char* boxes_;
};

// The storing warps, which take the place of a Copier (block.h). One lane of each warp issues the stores.
template <class Source>
class ResultStorer {
  using Traits = typename Source::Traits;
  using Tile = typename Source::Tile;
  using Stages = PipelineState<Traits::kStages>;
  using Buffer = ResultBuffer<Source>;

 public:
  static constexpr int kWarps = 2, kArrivals = 0;
  static constexpr bool kCopiesAlone = false;

  __device__ ResultStorer(const GroupParameters& parameters, typename Source::Shared& shared, int thread)
      : parameters_(parameters), shared_(shared), half_(shfl(thread / 32, 0)), lane_(thread % 32) {}

  __device__ void run() const {
    if (lane_ > 0) return;
    const Buffer buffer(shared_, half_);
    uint32_t parity = 0;
    each_tile<Traits>(shared_, [&](const Tile& tile, int slot, Stages&) {
      if (VBGEMM_PIPELINE_STORES && tile.depth > 0 && Source::computes(tile, half_)) store(tile, buffer, parity);
      mbarrier_arrive(shared_.tile_empty[slot]);
    });
    cp_async_bulk_wait_group();
  }

 private:
  __device__ void store(const Tile& tile, const Buffer& buffer, uint32_t& parity) const {
    const int box_cols = parameters_.wide_results ? 32 : 64, cols = min(tile.cols, +Traits::kCols);
    for (int left = 0; left < cols; left += Buffer::kBoxes * box_cols, parity ^= 1) {
      mbarrier_wait(buffer.full, parity);
      fence_proxy_async();
#pragma unroll
      for (int i = 0; i < Buffer::kBoxes; ++i) {
        const int col = tile.col + left + i * box_cols, row = tile.row + half_ * Traits::kBox;
        if (left + i * box_cols >= cols) continue;
        if (parameters_.accumulates) {
          tma_reduce_add(parameters_.out, col, row, tile.matrix, buffer.box(i));
        } else {
          tma_store(parameters_.out, col, row, tile.matrix, buffer.box(i));
        }
      }
      cp_async_bulk_commit_group();
      cp_async_bulk_wait_group_read();
      mbarrier_arrive(buffer.empty);
    }
  }

  const GroupParameters& parameters_;
  typename Source::Shared& shared_;
  int half_, lane_;
};

template <class Source>
class ContractionEpilogue {
  using Traits = typename Source::Traits;
  using Buffer = ResultBuffer<Source>;
  static constexpr int kBlocks = Traits::kBlocks, kWideRound = Buffer::kBoxes * 32 / 8, kNarrowRound = Buffer::kBoxes * 64 / 8;

  static_assert(kBlocks == 2 * kNarrowRound);  // one round is passed on immediately, one is held

 public:
  static constexpr bool kStoresZeros = true;

  __device__ ContractionEpilogue(const GroupParameters& parameters, typename Source::Shared& shared, int warp, int lane)
      : parameters_(parameters), buffer_(shared, warp / 4), warp_(warp), lane_(lane) {}

  // Queues the tile's results for storing. The second half of 16-bit results is stored during the next tile's MMAs. Returns whether the
  // tile is still needed, which is never the case.
  __device__ bool store(const RaggedTile& tile, int, const float (&sums)[kBlocks][4]) {
    if (parameters_.wide_results) {
#pragma unroll
      for (int block = 0; block < kBlocks; block += kWideRound) {
        if (block * 8 < tile.cols) stage_and_signal_wide([&](int i) __attribute__((always_inline)) -> auto& { return sums[block + i]; });
      }
      return false;
    }
#pragma unroll
    for (int block = 0; block < kBlocks; block += kNarrowRound) {
      if (block * 8 >= tile.cols) continue;
      const auto word_at = [&](int i, int pair) __attribute__((always_inline)) {
        return narrow_pair<Traits::kShortResults>(sums[block + i][2 * pair], sums[block + i][2 * pair + 1]);
      };
      if (block == 0) {
        stage_and_signal_narrow(word_at);
      } else {
#pragma unroll
        for (int i = 0; i < kNarrowRound; ++i) {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) held_[i][pair] = word_at(i, pair);
        }
        has_deferred_ = true;
      }
    }
    return false;
  }

  __device__ void store_zeros(const RaggedTile& tile) const {
    if (parameters_.accumulates) return;
    const int bytes = parameters_.wide_results ? 4 : 2, row = tile.row + warp_ * 16;
    const int64_t line = int64_t{tile.matrix} * parameters_.sizes.k + row, row_bytes = int64_t{parameters_.sizes.n} * bytes;
    char* const out = static_cast<char*>(parameters_.results) + line * row_bytes + tile.col * bytes;
    vbgemm::store_zeros<Traits>({out, row_bytes, tile.rows - warp_ * 16, min(tile.cols, +Traits::kCols), parameters_.out, 0, 0, 0}, lane_,
                                parameters_.wide_results);
  }

  __device__ void store_deferred() {
    if (!has_deferred_) return;
    stage_and_signal_narrow([&](int i, int pair) __attribute__((always_inline)) { return held_[i][pair]; });
    has_deferred_ = false;
  }
  __device__ void skip() const {}

 private:
  // word_at(block, i): the thread's word in rows 8 i to 8 i + 7 of a block of 8 columns.
  template <class WordAt>
  __device__ void stage_and_signal_narrow(const WordAt& word_at) {
    await_empty();
#pragma unroll
    for (int box = 0; box < Buffer::kBoxes; ++box) {
      stage_narrow<Traits, 8>(rows_of(box), lane_,
                              [&](int block, int i) __attribute__((always_inline)) { return word_at(box * 8 + block, i); });
    }
    signal_full();
  }

  // values_of(block): the thread's four accumulators of a block of 8 columns.
  template <class ValuesOf>
  __device__ void stage_and_signal_wide(const ValuesOf& values_of) {
    await_empty();
#pragma unroll
    for (int box = 0; box < Buffer::kBoxes; ++box) {
      stage_wide(rows_of(box), lane_, [&](int block, int i) __attribute__((always_inline)) { return values_of(box * 4 + block)[i]; });
    }
    signal_full();
  }

  __device__ unsigned char* rows_of(int box) const { return buffer_.box(box) + warp_ % 4 * (16 * 128); }

  __device__ void await_empty() {
    mbarrier_wait(buffer_.empty, parity_ ^ 1);
    parity_ ^= 1;
  }
  __device__ void signal_full() const {
    wave_barrier();
    if (lane_ == 0) mbarrier_arrive(buffer_.full);
  }

  const GroupParameters& parameters_;
  const Buffer buffer_;
  int warp_, lane_;
  uint32_t parity_ = 0, held_[kNarrowRound][2];
  bool has_deferred_ = false;
};

}  // namespace vbgemm
