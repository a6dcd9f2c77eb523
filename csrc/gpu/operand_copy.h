// Copies one operand's part of a tile, step by step along K, from global to shared memory.
#pragma once
#include "gpu_vendor.h"
#include "tile_cut.h"
#include "tile_place.h"

namespace vbgemm {

// Ways to spread a block's threads over a rectangle. Each thread makes kCopies copies of kWidth elements, kStep rows (or columns) apart;
// row() and col() are the place of its first. A rectangle that is too long for that is taken in rounds, kSpan columns (or rows) apart.

// Along the rows: neighbours in a wave copy neighbours in a row.
template <class Rectangle, int kThreads, int kWidth_>
struct AlongRows {
  static constexpr int kWidth = kWidth_, kSpan = Rectangle::kCols < kThreads * kWidth ? Rectangle::kCols : kThreads * kWidth;
  static constexpr int kRounds = Rectangle::kCols / kSpan, kRowPieces = kSpan / kWidth;
  static constexpr bool kDown = true;  // the copies of one thread lie below each other
  static constexpr int kStep = kThreads / kRowPieces, kCopies = (Rectangle::kRows + kStep - 1) / kStep;
  static_assert(kThreads % kRowPieces == 0);

  __device__ static int row(int thread) { return thread / kRowPieces; }
  __device__ static int col(int thread) { return thread % kRowPieces * kWidth; }
};

// Down the columns, for an operand that is contiguous that way. A wave takes eight rows by four (or eight) columns: whole 32-byte sectors
// of memory, and no two lanes in one bank.
template <class Rectangle, int kThreads>
struct DownColumns {
  static constexpr int kWidth = 1, kRowsEach = 8, kColsEach = kWaveSize / kRowsEach, kWaves = kThreads / kWaveSize;  // each: wave
  static constexpr int kSpan = Rectangle::kRows < kRowsEach * kWaves ? Rectangle::kRows : kRowsEach * kWaves;
  static constexpr int kRounds = Rectangle::kRows / kSpan, kWavesDown = kSpan / kRowsEach;
  static constexpr bool kDown = false;
  static constexpr int kStep = kThreads / kSpan, kCopies = (Rectangle::kCols + kStep - 1) / kStep;
  static_assert(kThreads % kSpan == 0 && kSpan % kRowsEach == 0 && Rectangle::kRows % kSpan == 0);

  __device__ static int row(int thread) { return thread / kWaveSize % kWavesDown * kRowsEach + thread % kRowsEach; }
  __device__ static int col(int thread) { return thread / kWaveSize / kWavesDown * kColsEach + thread % kWaveSize / kRowsEach; }
};

template <class Spread, class Rectangle, class T>
__device__ inline void start_spread(const MatrixView& from, int first_row, int first_col, T* shared, int rows, int cols) {
  const int thread = thread_index(), row = Spread::row(thread), col = Spread::col(thread);
  constexpr int kExtent = Spread::kDown ? Rectangle::kRows : Rectangle::kCols;
  if (Spread::kStep > kExtent && (Spread::kDown ? row : col) >= kExtent) return;  // more threads than pieces
  constexpr int kSharedStep = Spread::kStep * (Spread::kDown ? Rectangle::kPitch : 1);
  constexpr int kSharedRound = Spread::kSpan * (Spread::kDown ? 1 : Rectangle::kPitch);
  constexpr int kBytes = Spread::kWidth * static_cast<int>(sizeof(T));
  shared += row * Rectangle::kPitch + col;
  const int64_t stride = Spread::kStep * (Spread::kDown ? from.row_stride : from.col_stride);
#pragma unroll 1
  for (int round = 0; round < Spread::kRounds; ++round, shared += kSharedRound) {
    const int down = row + (Spread::kDown ? 0 : round * Spread::kSpan), across = col + (Spread::kDown ? round * Spread::kSpan : 0);
    const int limit = Spread::kDown ? (across < cols ? rows - down : 0) : (down < rows ? cols - across : 0);
    const T* source = from.template at<const T>(first_row + down, first_col + across);
#pragma unroll
    for (int i = 0; i < Spread::kCopies; ++i, source += stride) {
      copy_async<kBytes>(shared + i * kSharedStep, source, i * Spread::kStep < limit);
    }
  }
}

// Starts the copies of the rectangle that begins at an element of a matrix; what lies outside its first rows x cols elements becomes zero.
// `from` lies in shared memory, and is read again at each step: that is cheaper than registers to keep what follows from it.
template <class Rectangle, int kThreads, class T>
__device__ inline void start_copies(const MatrixView& from, int first_row, int first_col, T* shared, int rows, int cols) {
  const auto start = [&](auto spread) { start_spread<decltype(spread), Rectangle>(from, first_row, first_col, shared, rows, cols); };
  switch (from.way) {
    case Way::vectors: return start(AlongRows<Rectangle, kThreads, kVectorBytes / static_cast<int>(sizeof(T))>());
    case Way::rows: return start(AlongRows<Rectangle, kThreads, 1>());
    case Way::columns: return start(DownColumns<Rectangle, kThreads>());
  }
}

}  // namespace vbgemm
