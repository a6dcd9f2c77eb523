// How a consumer warp stores its 16 rows of a tile from the wgmma accumulator layout.
#pragma once
#include "gpu/sm90/pipeline.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

// The destination of a warp's rows, and their number of existing elements.
struct RowsDestination {
  char* out;          // the first element of the first row
  int64_t row_bytes;  // distance between rows
  int rows, cols;     // rows and columns that exist; rows <= 0: none
  const CUtensorMap& map;
  int x, y, z;        // coordinates of the first element in the map
  bool adds = false;  // adds to the existing elements; only for clipped float32 rows
};

__device__ inline void store_two(void* to, float x, float y) { *reinterpret_cast<Vector<float, 2>*>(to) = {{x, y}}; }

// Copies a staged box (128 bytes of each row, from column `left` on) to global memory by one TMA store. If not kClipped and fewer than 16
// rows exist, threads copy it instead: TMA would write all 16 rows, and the last ones may belong to the next group of a ragged product.
// Each thread must have called fence_staged(), followed by a warp barrier.
template <bool kClipped, int kElement>
__device__ inline void store_staged(const RowsDestination& to, int left, const unsigned char* box, int lane) {
  if (kClipped || to.rows >= 16) {
    if (lane > 0 || to.rows <= 0 || left >= to.cols) return;
    if (kClipped && kElement == 4 && to.adds) {
      tma_reduce_add(to.map, to.x + left, to.y, to.z, box);
    } else {
      tma_store(to.map, to.x + left, to.y, to.z, box);
    }
    return;
  }
  const int vector = lane % 8, col = left + vector * (16 / kElement);
  for (int row = lane / 8; row < to.rows; row += 4) {
    if (col >= to.cols) continue;
    const auto staged = *reinterpret_cast<const Vector<uint32_t, 4>*>(box + row * 128 + (vector ^ (row & 7)) * 16);
    store_bytes<16>(to.out + row * to.row_bytes + col * kElement, &staged);
  }
}
template <bool kClipped>
__device__ inline void fence_staged(const RowsDestination& to) {
  if (kClipped || to.rows >= 16) fence_proxy_async();
}

// Stages 32 columns of a warp's rows as float32; value_at(block, i) is the thread's i-th value in a block of 8 columns.
template <class ValueAt>
__device__ inline void stage_wide(unsigned char* box, int lane, const ValueAt& value_at) {
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    const int row = lane / 4;
    unsigned char* const at = box + row * 128 + ((block * 2 + lane % 4 / 2) ^ row) * 16 + (lane & 1) * 8;
    store_two(at, value_at(block, 0), value_at(block, 1));
    store_two(at + 8 * 128, value_at(block, 2), value_at(block, 3));
  }
}

// Stores 8 kBlocks columns of a warp's rows as float32; value_at(block, i) is the thread's i-th value in a block of 8 columns. They pass
// through two smem boxes alternately.
template <class Traits, bool kClipped, int kBlocks, class ValueAt>
__device__ inline void store_wide(const RowsDestination& to, const ValueAt& value_at, unsigned char* staging, int lane) {
  constexpr int kBoxCols = 32, kBoxBlocks = kBoxCols / 8;
  static_assert(kBlocks / kBoxBlocks % Traits::kStoreBoxes == 0);  // so that the first box is not the newest store's
#pragma unroll
  for (int box = 0; box < kBlocks / kBoxBlocks; ++box) {
    unsigned char* const box_staging = staging + box % Traits::kStoreBoxes * Traits::kStoreBoxBytes;
    cp_async_bulk_wait_group_read<Traits::kStoreBoxes - 1>();  // TMA has read the box's previous contents
    wave_barrier();
    stage_wide(box_staging, lane, [&](int block, int i) __attribute__((always_inline)) { return value_at(box * kBoxBlocks + block, i); });
    fence_staged<kClipped>(to);
    wave_barrier();
    store_staged<kClipped, 4>(to, box * kBoxCols, box_staging, lane);
    cp_async_bulk_commit_group();  // one bulk group per box, even if threads stored it: the wait above counts groups
  }
}

// Stages 8 kBlocks columns of a warp's rows, in boxes of 64 columns. word_at(block, i): the thread's word in rows 8 i to 8 i + 7 of a block
// of 8 columns.
template <class Traits, int kBlocks, class WordAt>
__device__ inline void stage_narrow(unsigned char* staging, int lane, const WordAt& word_at) {
  constexpr int kBoxBlocks = 8;
  const int row = lane % 16;
#pragma unroll
  for (int block = 0; block < kBlocks; block += 2) {
    const uint32_t words[4] = {word_at(block, 0), word_at(block, 1), word_at(block + 1, 0), word_at(block + 1, 1)};
    unsigned char* const box = staging + block / kBoxBlocks * Traits::kStoreBoxBytes;
    stmatrix_x4(box + row * 128 + ((block % kBoxBlocks + lane / 16) ^ (row & 7)) * 16, words);
  }
}

// Like store_wide, for 16-bit results.
template <class Traits, bool kClipped, int kBlocks, class ValueAt>
__device__ inline void store_narrow(const RowsDestination& to, const ValueAt& value_at, unsigned char* staging, int lane) {
  constexpr int kBoxCols = 64, kBoxBlocks = kBoxCols / 8, kBoxes = kBlocks / kBoxBlocks;
  // Whether the first box differs from the newest store's; with a single box it never does.
  constexpr bool kAlternatesBoxes = kBoxes % Traits::kStoreBoxes == 0;
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    unsigned char* const box_staging = staging + box % Traits::kStoreBoxes * Traits::kStoreBoxBytes;
    cp_async_bulk_wait_group_read<kAlternatesBoxes ? Traits::kStoreBoxes - 1 : 0>();
    wave_barrier();
    stage_narrow<Traits, kBoxBlocks>(box_staging, lane, [&](int block, int i) __attribute__((always_inline)) {
      const int from = box * kBoxBlocks + block;
      return narrow_pair<Traits::kShortResults>(value_at(from, 2 * i), value_at(from, 2 * i + 1));
    });
    fence_staged<kClipped>(to);
    wave_barrier();
    store_staged<kClipped, 2>(to, box * kBoxCols, box_staging, lane);
    cp_async_bulk_commit_group();
  }
}

// A warp's 16-bit results. The first 128 columns are stored immediately; the others stay in registers until the next tile's MMAs run. Each
// of the two stores needs a fence between threads and TMA, and the fence appears to wait for the warp's MMAs. Therefore each store covers
// two boxes, and only one of a tile's two fences executes while MMAs are in flight (docs/design/ragged.md).
template <class Traits>
class NarrowRows {
 public:
  // Stores 8 kBlocks columns now or defers them; value_at(block, i) is the thread's i-th value in a block of 8 columns. No earlier results
  // may be deferred.
  template <bool kClipped, int kBlocks, class ValueAt>
  __device__ void store(const RowsDestination& to, const ValueAt& value_at, unsigned char* staging, int lane) {
    const auto narrow = [&](int block, int i) __attribute__((always_inline)) {
      return narrow_pair<Traits::kShortResults>(value_at(block, 2 * i), value_at(block, 2 * i + 1));
    };
    constexpr int kStoredNow = kBlocks < kHeld ? kBlocks : kHeld;
    store_boxes<kClipped, kStoredNow>(to, 0, narrow, staging, lane);
    if constexpr (kBlocks > kHeld) {
#pragma unroll
      for (int block = 0; block < kHeld; ++block) {
#pragma unroll
        for (int i = 0; i < 2; ++i) held_[block][i] = narrow(kHeld + block, i);
      }
      has_deferred_ = true;
    }
  }

  __device__ bool has_deferred() const { return has_deferred_; }

  template <bool kClipped>
  __device__ void store_deferred(const RowsDestination& to, unsigned char* staging, int lane) {
    store_boxes<kClipped, kHeld>(
        to, kHeld * 8, [&](int block, int i) __attribute__((always_inline)) { return held_[block][i]; }, staging, lane);
    has_deferred_ = false;
  }

 private:
  static constexpr int kBoxCols = 64, kBoxBlocks = kBoxCols / 8, kHeld = Traits::kStoreBoxes * kBoxBlocks;

  // Stores the columns from `left` on; word_at(block, i): the thread's word in rows 8 i to 8 i + 7 of a block of 8 columns.
  template <bool kClipped, int kBlocks, class WordAt>
  __device__ static void store_boxes(const RowsDestination& to, int left, const WordAt& word_at, unsigned char* staging, int lane) {
    constexpr int kBoxes = kBlocks / kBoxBlocks;
    cp_async_bulk_wait_group_read();  // TMA has read what was staged before
    wave_barrier();
    stage_narrow<Traits, kBlocks>(staging, lane, word_at);
    fence_staged<kClipped>(to);
    wave_barrier();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box)
      store_staged<kClipped, 2>(to, left + box * kBoxCols, staging + box * Traits::kStoreBoxBytes, lane);
    cp_async_bulk_commit_group();
  }

  uint32_t held_[kHeld][2];
  bool has_deferred_ = false;
};

}  // namespace vbgemm
