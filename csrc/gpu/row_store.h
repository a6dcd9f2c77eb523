// How a tile of whole rows gets to memory: each thread has all sums of its rows. As vectors where C takes them, a thread's own elements
// where rows are short, else by way of shared memory. `Cut` is the tile's, of row_tile.h.
#pragma once
#include "finish.h"
#include "tile_place.h"

namespace vbgemm {

// A wave's own part of shared memory, where its lanes trade the sums of a row each so that neighbouring lanes get neighbouring elements.
template <class Cut, class Sum>
struct RowStage {
  static constexpr int kElements = Cut::kCols;  // of one lane
  Sum* first;
  int lane, row;  // of the tile, the wave's first

  __device__ RowStage(Sum* staged, int row_of_lane)
      : first(staged + thread_index() / kWaveSize * (kWaveSize * Cut::kPitch)),
        lane(thread_index() % kWaveSize),
        row(row_of_lane - thread_index() % kWaveSize) {}

  __device__ void put(const Sum (&sum)[Cut::kCols]) const {
#pragma unroll
    for (int j = 0; j < Cut::kCols; ++j) first[lane * Cut::kPitch + j] = sum[j];
  }

  // The lane's n-th element, and its place in the tile.
  __device__ Sum& element(int n) const {
    const int at = n * kWaveSize + lane;
    return first[at / Cut::kCols * Cut::kPitch + at % Cut::kCols];
  }
  __device__ Location locate(Extent tile, int, int n) const {
    const int at = n * kWaveSize + lane, in_tile = row + at / Cut::kCols, col = at % Cut::kCols;
    return {in_tile, col, in_tile < tile.rows && col < tile.cols};
  }

  // Writes the rows one behind the other, each as long as the tile: as they lie in memory, if C has no more columns.
  template <class Out>
  __device__ void write(const MatrixView& c, Extent tile) const {
    // Exact for every element: an inverse too large by less than 2^-18 is off by less than 1 / cols then.
    static_assert(kWaveSize * Cut::kCols * Cut::kCols <= 1 << 18);
    const int inverse = (1 << 18) / tile.cols + 1, left = tile.rows - row;
    const int elements = (left < kWaveSize ? left : kWaveSize) * tile.cols;
#pragma unroll 4
    for (int at = lane; at < elements; at += kWaveSize) {
      const int down = at * inverse >> 18, col = at - down * tile.cols;
      Out result;
      narrow(first[down * Cut::kPitch + col], result);
      store_bytes<sizeof(Out)>(c.template at<Out>(row + down, col), &result);
    }
  }
};

// Sectors of memory that a wave may write one element each, so often as a row has elements, and be faster so than by way of shared memory
// (measured on an H100: 5 columns of float64, 7 of float32).
inline constexpr int kFewSectors = 200;

// Each thread writes its own rows.
template <class Out, class Cut, class Sum>
__device__ inline void store_short_rows(const MatrixView& c, int rows, int cols, const Sum (&sum)[Cut::kThreadRows][Cut::kCols], int row) {
#pragma unroll
  for (int i = 0; i < Cut::kThreadRows; ++i) {
    const int at = row + i * Cut::kThreads;
    if (at >= rows) break;
    Out* to = c.at<Out>(at, 0);
#pragma unroll
    for (int j = 0; j < Cut::kCols && (j + 1) * (j + 1) * static_cast<int>(sizeof(Out)) <= kFewSectors; ++j, to += c.col_stride) {
      Out result;
      narrow(sum[i][j], result);
      if (j < cols) store_bytes<sizeof(Out)>(to, &result);
    }
  }
}

// Memory is written by sectors of 32 bytes, and a vector is half of one: the lanes of two neighbouring rows trade vectors, so that they
// write a row's two neighbours together, first of the one, then of the other row (on NVIDIA's GPUs). All lanes of a wave call this.
template <class Out, class Cut, class Sum>
__device__ inline void store_row_vectors(const MatrixView& c, int rows, int cols, const Sum (&sum)[Cut::kThreadRows][Cut::kCols], int row) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Out)), kTogether = kCdna || Cut::kCols < 2 * kVector ? 1 : 2;
  const int odd = kTogether == 2 ? thread_index() % 2 : 0;
#pragma unroll
  for (int i = 0; i < Cut::kThreadRows; ++i) {
    const int at = row + i * Cut::kThreads - odd;
    Out* const first = c.at<Out>(at, 0) + odd * kVector;
#pragma unroll
    for (int j = 0; j < Cut::kCols; j += kTogether * kVector) {
      Vector<Out, kVector> low, high;
#pragma unroll
      for (int v = 0; v < kVector; ++v) narrow(sum[i][j + v], low.element[v]);
      if constexpr (kTogether == 2) {
        Vector<Out, kVector> traded;
#pragma unroll
        for (int v = 0; v < kVector; ++v) narrow(sum[i][j + kVector + v], high.element[v]);
#pragma unroll
        for (int v = 0; v < kVector; ++v) traded.element[v] = odd ? low.element[v] : high.element[v];
        swap_lanes<1>(traded);
        // Now both become this lane's columns, low of the even row.
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          low.element[v] = odd ? traded.element[v] : low.element[v];
          high.element[v] = odd ? high.element[v] : traded.element[v];
        }
      }
      const bool inside = j + odd * kVector < cols;
      if (inside && at < rows) store_bytes<kVectorBytes>(first + j, &low);
      if (kTogether == 2 && inside && at + 1 < rows) store_bytes<kVectorBytes>(first + c.row_stride + j, &high);
    }
  }
}

template <class Out, class Cut, class T, class Sum>
__device__ inline void store_rows_as(const TilePlace<T>& place, const Sum (&sum)[Cut::kThreadRows][Cut::kCols], int row, Sum* staged) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Out));
  const MatrixView c = place.matrix[kC];
  const int rows = place.rows, cols = place.cols;
  if (takes_vectors<Out, kVector>(c, cols) && !place.fused) return store_row_vectors<Out, Cut>(c, rows, cols, sum, row);
  if (cols * cols * static_cast<int>(sizeof(Out)) <= kFewSectors && !place.fused)
    return store_short_rows<Out, Cut>(c, rows, cols, sum, row);
#pragma unroll
  for (int i = 0; i < Cut::kThreadRows; ++i) {
    const RowStage<Cut, Sum> stage(staged, row + i * Cut::kThreads);
    stage.put(sum[i]);
    wave_barrier();
    if (place.fused) {
      apply_epilogue<Out>(stage, place, 0);
      wave_barrier();
    }
    stage.template write<Out>(c, {rows, cols});
    wave_barrier();  // before the next rows' sums
  }
}

template <class Cut, class T, class Sum>
__device__ inline void store_rows(const TilePlace<T>& place, const Sum (&sum)[Cut::kThreadRows][Cut::kCols], int row, Sum* staged) {
  if (sizeof(T) < sizeof(Sum) && place.wide_results) {
    store_rows_as<Sum, Cut>(place, sum, row, staged);
  } else {
    store_rows_as<T, Cut>(place, sum, row, staged);
  }
}

}  // namespace vbgemm
