// Copies one operand's part of a tile, step by step along K, from global to shared memory.
#pragma once
#include "gpu_vendor.h"
#include "tile_cut.h"
#include "tile_place.h"

namespace vbgemm {

// Ways to spread a block's threads over a rectangle. Each thread makes kCopies copies of kWidth elements, kStep rows (or columns) apart;
// row() and col() are the place of its first.

// Along the rows: neighbours in a wave copy neighbours in a row.
template <class Rectangle, int kThreads, int kWidth_>
struct AlongRows {
  static constexpr int kWidth = kWidth_, kRowPieces = Rectangle::kCols / kWidth;
  static constexpr bool kDown = true;  // the copies of one thread lie below each other
  static constexpr int kStep = kThreads / kRowPieces, kCopies = (Rectangle::kRows + kStep - 1) / kStep;
  static_assert(kThreads % kRowPieces == 0);

  __device__ static int row(int thread) { return thread / kRowPieces; }
  __device__ static int col(int thread) { return thread % kRowPieces * kWidth; }
};

// Down the columns, for an operand that is contiguous that way. A wave takes eight rows by four (or eight) columns: whole 32-byte sectors
// of memory, and no two lanes in one bank. It takes more rows only where the block has too few waves to span them all.
template <class Rectangle, int kThreads>
struct DownColumns {
  static constexpr int kWidth = 1;
  static constexpr bool kDown = false;
  static constexpr int kStep = kThreads / Rectangle::kRows, kCopies = (Rectangle::kCols + kStep - 1) / kStep;
  static constexpr int kRowsEach = Rectangle::kRows * kWaveSize / kThreads > 8 ? Rectangle::kRows * kWaveSize / kThreads : 8;  // a wave
  static constexpr int kColsEach = kWaveSize / kRowsEach, kWavesDown = Rectangle::kRows / kRowsEach;
  static_assert(kThreads % Rectangle::kRows == 0 && Rectangle::kRows % kRowsEach == 0);

  __device__ static int row(int thread) { return thread / kWaveSize % kWavesDown * kRowsEach + thread % kRowsEach; }
  __device__ static int col(int thread) { return thread / kWaveSize / kWavesDown * kColsEach + thread % kWaveSize / kRowsEach; }
};

template <class T, class Rectangle, int kThreads>
class OperandCopy {
 public:
  // `from` lies in shared memory, and is read again at each step: that is cheaper than registers to keep it.
  __device__ explicit OperandCopy(const MatrixView& from) : from_(from) {
    const int thread = thread_index();
    const auto begin = [&](auto spread) { source_ = from.template at<const T>(spread.row(thread), spread.col(thread)); };
    with_spread(begin);
  }

  // Starts the copies of one step; what lies outside its first rows x cols elements becomes zero.
  __device__ void start(T* shared, int rows, int cols) const {
    with_spread([&](auto spread) { start_as<decltype(spread)>(shared, rows, cols); });
  }

  __device__ void advance(int64_t elements) { source_ += elements; }

 private:
  template <class Action>
  __device__ void with_spread(const Action& action) const {
    switch (from_.way) {
      case Way::vectors: return action(AlongRows<Rectangle, kThreads, kVectorBytes / static_cast<int>(sizeof(T))>());
      case Way::rows: return action(AlongRows<Rectangle, kThreads, 1>());
      case Way::columns: return action(DownColumns<Rectangle, kThreads>());
    }
  }

  template <class Spread>
  __device__ void start_as(T* shared, int rows, int cols) const {
    const int thread = thread_index(), row = Spread::row(thread), col = Spread::col(thread);
    constexpr int kExtent = Spread::kDown ? Rectangle::kRows : Rectangle::kCols;
    if (Spread::kStep > kExtent && (Spread::kDown ? row : col) >= kExtent) return;  // more threads than pieces
    constexpr int kSharedStep = Spread::kStep * (Spread::kDown ? Rectangle::kPitch : 1);
    const int limit = Spread::kDown ? (col < cols ? rows - row : 0) : (row < rows ? cols - col : 0);
    const int64_t stride = Spread::kStep * (Spread::kDown ? from_.row_stride : from_.col_stride);
    T* to = shared + row * Rectangle::kPitch + col;
    const T* from = source_;
    constexpr int kBytes = Spread::kWidth * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < Spread::kCopies; ++i, from += stride) {
      copy_async<kBytes>(to + i * kSharedStep, from, i * Spread::kStep < limit);
    }
  }

  const MatrixView& from_;
  const T* source_;  // this thread's first element of the next step
};

}  // namespace vbgemm
