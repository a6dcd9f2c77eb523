// One tile of whole rows of C, for a B that is small: each thread computes all columns of its rows. A goes from global memory straight to
// registers and only B lies in shared memory, so that once B is there no thread waits for another: the waves of a block drift apart, and
// one's loads are under way while others multiply or write.
#pragma once
#include "row_store.h"
#include "tile_place.h"

namespace vbgemm {

// Row `kIndex` of the catalogue, for operands of type T.
template <class T, int kIndex>
struct RowCut {
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;

  // The rows of a thread lie a block apart, so that a wave's rows are neighbours; the block takes the tile in passes. Two, as long as a
  // thread has registers for their sums. (With two rows a thread CDNA's shared memory would hold the sums of one block.)
  static constexpr int kThreadRows = kCdna || kCols * sizeof(Sum) > 160 ? 1 : 2, kPassRows = kThreadRows * kThreads;

  // Of K: what B's part of shared memory holds, what one vector of A holds, and how much of A a thread loads before it multiplies
  // (less where the sums take most of its registers).
  static constexpr int kDepth = 32, kVector = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kBatch = (kCols < 32 ? 64 : 32) / static_cast<int>(sizeof(T)), kGroups = kBatch / kVector;

  // B lies there as accumulators, since all threads read all of it, and then the sums of a row a thread: each row's begin one bank behind
  // those of the row before.
  static constexpr int kColVector = kVectorBytes / static_cast<int>(sizeof(Sum)), kPitch = kCols + 1;
  static constexpr int kSharedElements = (kDepth * kCols + kThreads * kPitch) * static_cast<int>(sizeof(Sum) / sizeof(T));
  static_assert(kSharedElements * static_cast<int>(sizeof(T)) <= shared_budget(kernel_of(kShape)));
  static_assert(kRows % kPassRows == 0 && kDepth % kBatch == 0);
};

// K steps of a thread's rows of A, a vector each.
template <class Cut, class T>
using RowBatch = Vector<T, Cut::kVector>[Cut::kThreadRows][Cut::kGroups];

// Moves elements of kBytes towards the front, by `elements` < 16 / kBytes: by 8, 4 and 2 bytes, as the bits of the distance say. The last
// four words are lost.
template <int kBytes, int kWords>
__device__ inline void shift_down(uint32_t (&words)[kWords], int elements) {
  const int bytes = elements * kBytes;
#pragma unroll
  for (int w = 0; w < kWords - 2; ++w) words[w] = bytes & 8 ? words[w + 2] : words[w];
  if (kBytes == 8) return;
#pragma unroll
  for (int w = 0; w < kWords - 3; ++w) words[w] = bytes & 4 ? words[w + 1] : words[w];
  if (kBytes == 4) return;
#pragma unroll
  for (int w = 0; w < kWords - 4; ++w) words[w] = bytes & 2 ? words[w] >> 16 | words[w + 1] << 16 : words[w];
}

// Reads a thread's rows of A. In place of rows beyond the tile's last it reads that one again: nothing will be written of them.
template <class Cut, class T>
class RowReader {
 public:
  // `a` lies in shared memory, and is read again at each batch: that is cheaper than registers to keep it.
  __device__ RowReader(const MatrixView& a, int row, int rows)
      : a_(a), last_(row + (Cut::kThreadRows - 1) * Cut::kThreads >= rows - 1 || a.row_stride < kVector) {
#pragma unroll
    for (int i = 0; i < Cut::kThreadRows; ++i) {
      const int mine = row + i * Cut::kThreads;
      first_[i] = a.template at<const T>(mine < rows ? mine : rows - 1, 0);
    }
  }

  __device__ void prefetch() const {
#pragma unroll
    for (int i = 0; i < Cut::kThreadRows; ++i) prefetch_to_l2(first_[i]);
  }

  // The batch that begins at `k`, zeros from `depth` on: a register that is not always written would be kept over the whole kernel.
  __device__ void read(int k, int depth, RowBatch<Cut, T>& batch) const {
    if (a_.way == Way::vectors) return read_vectors(k, depth, batch);
    // Short rows are read faster one element at a time. (On CDNA the shift takes scratch memory.)
    const bool overhangs = last_ && depth - k < Cut::kBatch + kVector - 1;
    if (!kCdna && a_.way == Way::rows && a_.col_stride == 1 && depth >= kShortRow && !overhangs) return read_pieces(k, depth, batch);
    read_elements(k, depth, batch);
  }

 private:
  static constexpr int kVector = Cut::kVector, kGroups = Cut::kGroups, kShortRow = 8;

  __device__ void read_vectors(int k, int depth, RowBatch<Cut, T>& batch) const {
    clear(batch);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int at = k + group * kVector;
      if (at >= depth) break;  // the depth is a multiple of the vector
#pragma unroll
      for (int i = 0; i < Cut::kThreadRows; ++i) load_bytes<kVectorBytes>(&batch[i][group], first_[i] + at);
    }
  }

  // Rows that begin anywhere: aligned pieces, shifted in registers. A row's first piece may begin in the row ahead of it, and its last one
  // end in the row behind it.
  __device__ void read_pieces(int k, int depth, RowBatch<Cut, T>& batch) const {
    constexpr int kPieceWords = kVectorBytes / 4;
    const int left = depth - k, needed = left < Cut::kBatch ? left : Cut::kBatch;
    uint32_t words[Cut::kThreadRows][(kGroups + 1) * kPieceWords] = {};
    int ahead[Cut::kThreadRows];  // elements of the first piece ahead of the row's first
#pragma unroll
    for (int i = 0; i < Cut::kThreadRows; ++i) {
      const T* const first = first_[i] + k;
      ahead[i] = static_cast<int>(reinterpret_cast<uintptr_t>(first) / sizeof(T) % kVector);
#pragma unroll
      for (int piece = 0; piece <= kGroups; ++piece) {
        const int begin = piece * kVector - ahead[i];
        if (begin < needed) load_bytes<kVectorBytes>(&words[i][piece * kPieceWords], first + begin);
      }
    }
#pragma unroll
    for (int i = 0; i < Cut::kThreadRows; ++i) {
      shift_down<sizeof(T)>(words[i], ahead[i]);
      memcpy(batch[i], words[i], sizeof(batch[i]));
#pragma unroll
      for (int n = 0; n < Cut::kBatch; ++n) {
        if (n >= left) batch[i][n / kVector].element[n % kVector] = T{};  // in place of the next row's
      }
    }
  }

  // A column of all the wave's rows at once: that is along memory where A is transposed.
  __device__ void read_elements(int k, int depth, RowBatch<Cut, T>& batch) const {
    clear(batch);
    const int64_t stride = a_.col_stride;
    int64_t offset = k * stride;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (k + group * kVector >= depth) break;
#pragma unroll
      for (int n = 0; n < kVector; ++n, offset += stride) {
        const bool inside = k + group * kVector + n < depth;
#pragma unroll
        for (int i = 0; i < Cut::kThreadRows; ++i) {
          if (inside) load_bytes<sizeof(T)>(&batch[i][group].element[n], first_[i] + offset);
        }
      }
    }
  }

  __device__ static void clear(RowBatch<Cut, T>& batch) {
#pragma unroll
    for (auto& row : batch) {
#pragma unroll
      for (auto& group : row) group = {};
    }
  }

  const MatrixView& a_;
  const bool last_;  // behind the thread's last row there may be nothing
  const T* first_[Cut::kThreadRows];
};

// sum += A B over one batch, of which `depth` steps of K count. K runs upwards, as in every other tile.
template <class Cut, class T, class Sum>
__device__ inline void multiply_batch(const RowBatch<Cut, T>& batch, const Sum* shared_b, int depth,
                                      Sum (&sum)[Cut::kThreadRows][Cut::kCols]) {
  using ColVector = Vector<Sum, Cut::kColVector>;
#pragma unroll
  for (int group = 0; group < Cut::kGroups; ++group) {
    if (group * Cut::kVector >= depth) break;
#pragma unroll
    for (int n = 0; n < Cut::kVector; ++n) {
      const Sum* const row = shared_b + (group * Cut::kVector + n) * Cut::kCols;
#pragma unroll
      for (int j = 0; j < Cut::kCols; j += Cut::kColVector) {
        const ColVector b = *reinterpret_cast<const ColVector*>(row + j);
#pragma unroll
        for (int i = 0; i < Cut::kThreadRows; ++i) {
          const Sum x = widen(batch[i][group].element[n]);
#pragma unroll
          for (int v = 0; v < Cut::kColVector; ++v) sum[i][j + v] = multiply_add(x, b.element[v], sum[i][j + v]);
        }
      }
    }
  }
}

// B's rows from `k` on, as many as shared memory has room for; zeros beyond its end. By way of registers, where they are widened.
template <class Cut, class T>
__device__ inline void copy_part_of_b(const TilePlace<T>& place, int k, typename Cut::Sum* shared) {
  constexpr int kElements = Cut::kDepth * Cut::kCols / Cut::kThreads;
  static_assert(kElements * Cut::kThreads == Cut::kDepth * Cut::kCols);
  const MatrixView& b = place.matrix[kB];
  const int rows = place.depth - k, cols = place.cols, thread = thread_index();
  T element[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int at = thread + i * Cut::kThreads, row = at / Cut::kCols, col = at % Cut::kCols;
    element[i] = T{};
    if (row < rows && col < cols) load_bytes<sizeof(T)>(&element[i], b.template at<const T>(k + row, col));
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) shared[thread + i * Cut::kThreads] = widen(element[i]);
}

// Computes one tile. A K that shared memory can hold is there once for all passes; a deeper one is walked anew in each.
template <class Cut, class T>
__device__ inline void multiply_rows(const TilePlace<T>& place, T* shared) {
  using Sum = typename Cut::Sum;
  Sum* const shared_b = reinterpret_cast<Sum*>(shared);
  Sum* const staged = shared_b + Cut::kDepth * Cut::kCols;
  const int rows = place.rows, depth = place.depth, thread = thread_index();
  const bool deep = depth > Cut::kDepth;
  await_previous_kernel();
  if (!deep) {
    if (depth > 0) RowReader<Cut, T>(place.matrix[kA], thread, rows).prefetch();  // on its way while B is waited for
    copy_part_of_b<Cut>(place, 0, shared_b);
    block_barrier();
  }
  // A thread without rows still meets the others: at the barriers, or where its wave's lanes trade results.
  const int end = deep ? rows + thread : (rows + kWaveSize - 1) / kWaveSize * kWaveSize;
#pragma unroll 1
  for (int row = thread; row < end; row += Cut::kPassRows) {
    const RowReader<Cut, T> reader(place.matrix[kA], row, rows);
    Sum sum[Cut::kThreadRows][Cut::kCols] = {};
#pragma unroll 1
    for (int k = 0; k < depth; k += Cut::kBatch) {
      const int k_there = k % Cut::kDepth;
      if (deep && k_there == 0) {
        block_barrier();  // nobody reads the part of B before this one any more
        copy_part_of_b<Cut>(place, k, shared_b);
        block_barrier();
      }
      RowBatch<Cut, T> batch;
      reader.read(k, depth, batch);
      multiply_batch<Cut>(batch, shared_b + k_there * Cut::kCols, depth - k, sum);
    }
    store_rows<Cut>(place, sum, row, staged);
  }
}

}  // namespace vbgemm
