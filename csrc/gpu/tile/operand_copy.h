// Copies one operand of a tile, step by step along K, from global to shared memory. The SIMT tiles fill their pipeline stages with it.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tile/tile_place.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {

// Ways to distribute a thread block's threads over a rectangle. Each thread makes kCopies copies of kWidth elements, kStep rows (or
// columns) apart; row() and col() are the position of its first copy. A rectangle too long for that is copied in rounds, kSpan columns (or
// rows) apart.

// Along the rows: adjacent lanes copy adjacent elements of a row.
template <class Rectangle, int kThreads, int kWidth_>
struct AlongRows {
  static constexpr int kWidth = kWidth_, kSpan = Rectangle::kCols < kThreads * kWidth ? Rectangle::kCols : kThreads * kWidth;
  static constexpr int kRounds = Rectangle::kCols / kSpan, kRowPieces = kSpan / kWidth;
  static constexpr bool kDown = true;  // the thread's copies are in different rows
  static constexpr int kStep = kThreads / kRowPieces, kCopies = (Rectangle::kRows + kStep - 1) / kStep;
  static_assert(kThreads % kRowPieces == 0 && Rectangle::kCols % kSpan == 0);

  __device__ static int row(int thread) { return thread / kRowPieces; }
  __device__ static int col(int thread) { return thread % kRowPieces * kWidth; }
};

// Down the columns, for an operand that is contiguous along its columns. A warp copies kMinRows = 8 rows by four (or eight) columns:
// these are whole 32-byte sectors of global memory, and no two lanes write to one bank. It takes more rows only where the thread block has
// too few warps to span all rows. With sixteen rows there are half as many cache lines, and two lanes write to each bank.
template <class Rectangle, int kThreads, int kMinRows>
struct DownColumns {
  static constexpr int kWidth = 1, kRowsPerWave = Rectangle::kRows * kWaveSize / kThreads;
  static constexpr int kWarpRows = kRowsPerWave < kMinRows ? kMinRows : kRowsPerWave < kWaveSize ? kRowsPerWave : kWaveSize;  // of a warp
  static constexpr int kWaves = kThreads / kWaveSize, kWarpCols = kWaveSize / kWarpRows;
  static constexpr int kSpan = Rectangle::kRows < kWarpRows * kWaves ? Rectangle::kRows : kWarpRows * kWaves;
  static constexpr int kRounds = Rectangle::kRows / kSpan, kWavesM = kSpan / kWarpRows;
  static constexpr bool kDown = false;
  static constexpr int kStep = kThreads / kSpan, kCopies = (Rectangle::kCols + kStep - 1) / kStep;
  static_assert(kThreads % kSpan == 0 && kSpan % kWarpRows == 0 && Rectangle::kRows % kSpan == 0,
                "an operand's rows in a tile of tiles.def have to be a multiple of what the threads copy at once");

  __device__ static int row(int thread) { return thread / kWaveSize % kWavesM * kWarpRows + thread % kWarpRows; }
  __device__ static int col(int thread) { return thread / kWaveSize / kWavesM * kWarpCols + thread % kWaveSize / kWarpRows; }
};

// kL2Prefetch: the L2 prefetch size in bytes, as for cp_async. kMinRows: as for DownColumns.
template <class T, class Rectangle, int kThreads, int kL2Prefetch = 128, int kMinRows = 8>
class OperandCopy {
 public:
  // `from` is in shared memory and is read again at each step, which is cheaper than holding it in registers.
  __device__ explicit OperandCopy(const MatrixView& from) : from_(from) {
    const int thread = thread_index();
    const auto begin = [&](auto spread) { source_ = from.template at<const T>(spread.row(thread), spread.col(thread)); };
    with_spread(begin);
  }

  // Starts the asynchronous copies of one step. Elements outside the step's first rows x cols become zero.
  __device__ void start(T* shared, int rows, int cols) const {
    with_spread([&](auto spread) { start_as<decltype(spread)>(shared, rows, cols); });
  }

  __device__ void advance(int64_t elements) { source_ += elements; }

 private:
  template <class Action>
  __device__ void with_spread(const Action& action) const {
    switch (from_.access) {
      case Access::vectors: return action(AlongRows<Rectangle, kThreads, kVectorBytes / static_cast<int>(sizeof(T))>());
      case Access::rows: return action(AlongRows<Rectangle, kThreads, 1>());
      case Access::columns: return action(DownColumns<Rectangle, kThreads, kMinRows>());
    }
  }

  template <class Spread>
  __device__ void start_as(T* shared, int rows, int cols) const {
    const int thread = thread_index(), row = Spread::row(thread), col = Spread::col(thread);
    constexpr int kExtent = Spread::kDown ? Rectangle::kRows : Rectangle::kCols;
    if (Spread::kStep > kExtent && (Spread::kDown ? row : col) >= kExtent) return;  // there are more threads than copies to make
    constexpr int kSharedStep = Spread::kStep * (Spread::kDown ? Rectangle::kPitch : 1);
    constexpr int kSharedRound = Spread::kSpan * (Spread::kDown ? 1 : Rectangle::kPitch);
    constexpr int kBytes = Spread::kWidth * static_cast<int>(sizeof(T));
    const int64_t stride = Spread::kStep * (Spread::kDown ? from_.row_stride : from_.col_stride);
#pragma unroll sizeof(T) == 2 || (kCdna && sizeof(T) == 8) ? 2 : 1  // the highest unroll factor at which neither compiler spills a register
    for (int round = 0; round < Spread::kRounds; ++round) {
      const int ahead = round * Spread::kSpan;
      const int limit = Spread::kDown ? (col + ahead < cols ? rows - row : 0) : (row + ahead < rows ? cols - col : 0);
      T* const to = shared + row * Rectangle::kPitch + col + round * kSharedRound;
      const T* from = source_ + (round ? ahead * (Spread::kDown ? from_.col_stride : from_.row_stride) : 0);
#pragma unroll
      for (int i = 0; i < Spread::kCopies; ++i, from += stride) {
        cp_async<kBytes, kL2Prefetch>(to + i * kSharedStep, from, i * Spread::kStep < limit);
      }
    }
  }

  const MatrixView& from_;
  const T* source_;  // this thread's first element of the next step
};

}  // namespace vbgemm
