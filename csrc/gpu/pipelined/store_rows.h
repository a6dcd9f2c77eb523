// How a consumer warp stores its part of a tile: 16 rows, in the register layout in which warpgroup products leave them.
#pragma once
#include "gpu/pipelined/pipeline.h"
#include "gpu/tile/tile_cut.h"

namespace vbgemm {

// Where a warp's rows are stored, and how many elements of them exist.
struct RowsDestination {
  char* out;          // the first element of the first row
  int64_t row_bytes;  // distance between rows
  int rows, cols;     // how many exist; if rows <= 0, the warp has none
  const CUtensorMap& map;
  int x, y, z;  // coordinates of the first element in the map
};

__device__ inline void store_two(void* to, float x, float y) { *reinterpret_cast<Vector<float, 2>*>(to) = {{x, y}}; }

// Stores values through shared memory, from where TMA copies them to global memory. If not kClipped, fewer than 16 rows are
// stored by the threads instead, because TMA would write all 16 (in ragged products the last ones belong to the next group). `value`
// returns the value of a register of a block of 8 columns.
template <class Cut, bool kWide, bool kClipped, int kBlocks, class Value>
__device__ inline void store_rows(const RowsDestination& to, const Value& value, unsigned char* staging, int lane) {
  constexpr int kBoxCols = kWide ? 32 : 64, kBoxBlocks = kBoxCols / 8, kElement = kWide ? 4 : 2;
  const bool whole = kClipped || to.rows >= 16;
#pragma unroll
  for (int box = 0; box < kBlocks / kBoxBlocks; ++box) {
    unsigned char* const place = staging + box % Cut::kStoreBoxes * Cut::kStoreBoxBytes;
    wait_stores_read<Cut::kStoreBoxes - 1>();  // TMA has read what was staged there before
    wave_barrier();
#pragma unroll
    for (int block = 0; block < kBoxBlocks; block += 2) {
      float x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = value(box * kBoxBlocks + block, i), y[i] = value(box * kBoxBlocks + block + 1, i);
      if constexpr (kWide) {
        const int row = lane / 4, vector = block * 2 + lane % 4 / 2;
        unsigned char* const first = place + row * 128 + (lane & 1) * 8;
        const int left = (vector ^ row) * 16, right = ((vector + 2) ^ row) * 16;
        store_two(first + left, x[0], x[1]);
        store_two(first + 8 * 128 + left, x[2], x[3]);
        store_two(first + right, y[0], y[1]);
        store_two(first + 8 * 128 + right, y[2], y[3]);
      } else {
        const uint32_t words[4] = {narrow_pair<Cut::kKind>(x[0], x[1]), narrow_pair<Cut::kKind>(x[2], x[3]),
                                   narrow_pair<Cut::kKind>(y[0], y[1]), narrow_pair<Cut::kKind>(y[2], y[3])};
        const int row = lane % 16;
        store_matrices(place + row * 128 + ((block + lane / 16) ^ (row & 7)) * 16, words);
      }
    }
    if (whole) fence_async_proxy();
    wave_barrier();
    if (whole) {
      if (lane == 0 && to.rows > 0 && box * kBoxCols < to.cols) store_box(to.map, to.x + box * kBoxCols, to.y, to.z, place);
    } else {
      const int vector = lane % 8, col = box * kBoxCols + vector * (16 / kElement);
      for (int row = lane / 8; row < to.rows; row += 4) {
        if (col < to.cols) store_bytes<16>(to.out + row * to.row_bytes + col * kElement, place + row * 128 + (vector ^ (row & 7)) * 16);
      }
    }
    commit_stores();  // One group for every box, even if threads stored it: the wait above counts groups
  }
}

}  // namespace vbgemm
