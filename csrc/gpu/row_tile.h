// One tile of whole rows of C, for a B that is small: each thread computes all columns of its rows. A goes from global memory straight to
// registers and only B lies in shared memory, so that once B is there no thread waits for another: the waves of a block drift apart, and
// one's loads are under way while others multiply or write.
#pragma once
#include "tile_place.h"
#include "tile_store.h"

namespace vbgemm {

// Row `kIndex` of the catalogue, for operands of type T.
template <class T, int kIndex>
struct RowCut {
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr int kRows = kShape.m, kCols = kShape.n, kThreads = kShape.threads;

  // The rows of a thread lie a block apart, so that a wave's rows are neighbours; the block takes the tile in passes. (With two rows a
  // thread CDNA's shared memory would hold the sums of one block.)
  static constexpr int kThreadRows = kCdna ? 1 : 2, kPassRows = kThreadRows * kThreads;

  // Of K: what B's part of shared memory holds, what one vector of A holds, and how much of A a thread loads before it multiplies
  // (less where the sums take most of its registers).
  static constexpr int kDepth = kShape.k, kVector = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kBatch = (kCols < 32 ? 64 : 32) / static_cast<int>(sizeof(T)), kGroups = kBatch / kVector;

  // B lies there as accumulators, since all threads read all of it, and then the sums of a pass.
  static constexpr int kColVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  static constexpr int kSharedElements = (kDepth + kPassRows) * kCols * static_cast<int>(sizeof(Sum) / sizeof(T));
  static_assert(kSharedElements * static_cast<int>(sizeof(T)) <= shared_budget(kernel_of(kShape)));
  static_assert(kRows % kPassRows == 0 && kDepth % kBatch == 0);
};

// K steps of a thread's rows of A, a vector each.
template <class Cut, class T>
using RowBatch = Vector<T, Cut::kVector>[Cut::kThreadRows][Cut::kGroups];

// Reads a thread's rows of A. In place of rows beyond the tile's last it reads that one again: nothing will be written of them.
template <class Cut, class T>
class RowReader {
 public:
  // `a` lies in shared memory, and is read again at each batch: that is cheaper than registers to keep it.
  __device__ RowReader(const MatrixView& a, int row, int rows) : a_(a) {
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
#pragma unroll
    for (auto& row : batch) {
#pragma unroll
      for (auto& group : row) group = {};
    }
    if (a_.way == Way::vectors) {
#pragma unroll
      for (int group = 0; group < Cut::kGroups; ++group) {
        const int at = k + group * Cut::kVector;
        if (at >= depth) break;  // the depth is a multiple of the vector
#pragma unroll
        for (int i = 0; i < Cut::kThreadRows; ++i) load_bytes<kVectorBytes>(&batch[i][group], first_[i] + at);
      }
      return;
    }
    // Element by element, a column of all the wave's rows at once: that is along memory where A is transposed.
    const int64_t stride = a_.col_stride;
    int64_t offset = k * stride;
#pragma unroll
    for (int group = 0; group < Cut::kGroups; ++group) {
      if (k + group * Cut::kVector >= depth) break;
#pragma unroll
      for (int n = 0; n < Cut::kVector; ++n, offset += stride) {
        const bool inside = k + group * Cut::kVector + n < depth;
#pragma unroll
        for (int i = 0; i < Cut::kThreadRows; ++i) {
          if (inside) load_bytes<sizeof(T)>(&batch[i][group].element[n], first_[i] + offset);
        }
      }
    }
  }

 private:
  const MatrixView& a_;
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
  constexpr int kStep = Cut::kThreads / Cut::kCols, kElements = Cut::kDepth / kStep;
  const int row = thread_index() / Cut::kCols, col = thread_index() % Cut::kCols;
  const MatrixView& b = place.matrix[kB];
  const int rows = col < place.cols ? place.depth - k - row : 0;
  const T* from = b.template at<const T>(k + row, col);
  const int64_t step = kStep * b.row_stride;
  T element[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i, from += step) {
    element[i] = T{};
    if (i * kStep < rows) load_bytes<sizeof(T)>(&element[i], from);
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) shared[(row + i * kStep) * Cut::kCols + col] = widen(element[i]);
}

// A thread's own part of shared memory, as an epilogue sees it: the sums of its rows.
template <class Cut, class Sum>
struct RowStage {
  static constexpr int kElements = Cut::kThreadRows * Cut::kCols;
  Sum* first;
  int row;

  __device__ Sum& element(int n) const { return first[n * Cut::kThreads]; }
  __device__ Location locate(Extent tile, int, int n) const {
    const int at = row + n / Cut::kCols * Cut::kThreads, col = n % Cut::kCols;
    return {at, col, at < tile.rows && col < tile.cols};
  }
};

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
        swap_with_neighbour(traded);
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
  if (place.fused) {
    const RowStage<Cut, Sum> stage{staged + thread_index(), row};
#pragma unroll
    for (int i = 0; i < Cut::kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < Cut::kCols; ++j) stage.element(i * Cut::kCols + j) = sum[i][j];
    }
    apply_epilogue<Out>(stage, place, 0);
    write_elements<Out>(stage, place, 0);
    return;
  }
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Out));
  const MatrixView c = place.matrix[kC];
  const int rows = place.rows, cols = place.cols;
  if (takes_vectors<Out, kVector>(c, cols)) return store_row_vectors<Out, Cut>(c, rows, cols, sum, row);
#pragma unroll
  for (int i = 0; i < Cut::kThreadRows; ++i) {
    const int at = row + i * Cut::kThreads;
    if (at >= rows) break;
    Out* to = c.at<Out>(at, 0);
#pragma unroll
    for (int j = 0; j < Cut::kCols; ++j, to += c.col_stride) {
      Out result;
      narrow(sum[i][j], result);
      if (j < cols) store_bytes<sizeof(Out)>(to, &result);
    }
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
