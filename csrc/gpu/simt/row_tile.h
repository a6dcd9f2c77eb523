// One row tile: whole rows of C, for a small B. Each thread computes all columns of its rows (on tensor cores each warp does:
// tensor_row_tile.h), and the thread block shares only B. Once B is loaded no warp waits for another: the warps drift apart, and some load
// while others multiply or store.
#pragma once
#include "gpu/simt/row_store.h"
#include "gpu/simt/row_stream.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// How row `kIndex` of the catalogue is divided, for operands of type T.
template <class T, int kIndex>
struct RowTraits {
  using Sum = Accumulator<T>;
  static constexpr TileShape kShape = kTiles[kIndex];
  static constexpr bool kTensor = kShape.tensor;
  // A column tile computes whole rows of C^T = B^T A^T.
  static constexpr bool kTransposed = kShape.n > kShape.m;
  static constexpr int kRows = kTransposed ? kShape.n : kShape.m, kCols = kTransposed ? kShape.m : kShape.n;
  static constexpr int kThreads = kShape.threads, kWaves = kThreads / kWaveSize;

  // Each warp takes passes of adjacent rows, of which a thread has every kWaveSize-th. A thread has two rows per pass, which halves the
  // reads of B, if there are enough rows for all warps and passes are short enough to keep loads in flight. (On CDNA, the sums of a second
  // row would leave registers for one thread block only; on tensor cores, shorter passes are faster.)
  static constexpr int kThreadRows = kCdna || kTensor || is_short(kShape) || sizeof(Sum) == 8 ? 1 : 2;
  static constexpr int kWaveRows = kThreadRows * kWaveSize;
  static constexpr int kPassRows = kWaves * kWaveRows;  // of the thread block

  // K elements of B in shared memory, K elements in one vector of A, and K elements of A that a thread loads from global memory before it
  // multiplies (fewer if the accumulators take most of its registers).
  static constexpr int kDepth = k_step(kShape, sizeof(T), kCdna);
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kBatch = (kCols < 16 && sizeof(Sum) == 4 ? 64 : 32) / static_cast<int>(sizeof(T)), kGroups = kBatch / kVector;

  // Shared memory holds B first: as accumulators, because all threads read all of it (for tensor cores as elements, with its columns
  // contiguous along K and padded). Each warp's results follow, one row for each thread, and then A.
  static constexpr int kColVector = kVectorBytes / static_cast<int>(sizeof(Sum)), kElementsPerSum = sizeof(Sum) / sizeof(T);
  static constexpr int kSumsOfB = kDepth * kCols, kStagedSums = kWaveSize * kCols;
  static constexpr int kElementsOfB = kTensor ? kCols * (kDepth + 4 * kVector) : kSumsOfB * kElementsPerSum;
  static constexpr int kSumElements = kElementsOfB + kWaves * kStagedSums * kElementsPerSum;
  static constexpr int kBudget = kTensor ? tensor_row_budget(kernel_of(kShape), sizeof(T)) : shared_budget(kernel_of(kShape));
  static constexpr int ring_elements() {
    if (kCdna) return 0;  // copies on CDNA are synchronous, so a ring would gain nothing
    constexpr int kLine = kBankLineBytes / static_cast<int>(sizeof(T));
    const int left = kBudget / static_cast<int>(sizeof(T)) - kSumElements;
    return left / kWaves / kLine * kLine;
  }
  static constexpr int kRingElements = ring_elements(),
                       kWholeDepth = kRingElements / kWaveRows < kDepth ? kRingElements / kWaveRows : kDepth;
  static constexpr int kSharedElements = kSumElements + kWaves * kRingElements;
  static_assert(kSharedElements * static_cast<int>(sizeof(T)) <= kBudget);
  static_assert(kRows % kPassRows == 0 && kDepth % kBatch == 0 && kWaveRows * kVectorBytes % kBankLineBytes == 0);
};

// A batch of K elements of a thread's rows of A, one vector of each row at a time.
template <class Traits, class T>
using RowBatch = Vector<T, Traits::kVector>[Traits::kGroups][Traits::kThreadRows];

// Reads a thread's rows of A straight into registers. Rows after the tile's last row read the last row again; nothing is stored for them.
template <class Traits, class T>
class RowReader {
 public:
  // `a` is in shared memory and is read again at each batch, which is cheaper than holding it in registers. `row`: the thread's first row.
  __device__ RowReader(const MatrixView& a, int row, int rows) : a_(a) {
#pragma unroll
    for (int i = 0; i < Traits::kThreadRows; ++i) {
      const int mine = row + i * kWaveSize;
      first_[i] = a.template at<const T>(mine < rows ? mine : rows - 1, 0);
    }
  }

  // Reads the batch that begins at K element `k`; elements from `depth` on are not used. (The batch is set to zero first, because a
  // register that is not always written would be kept alive through the whole kernel.)
  __device__ void read(int k, int depth, RowBatch<Traits, T>& batch) const {
#pragma unroll
    for (auto& group : batch) {
#pragma unroll
      for (auto& row : group) row = {};
    }
    if (a_.access == Access::vectors) {
      read_vectors(k, depth, batch);
    } else {
      read_elements(k, depth, batch);
    }
  }

 private:
  static constexpr int kVector = Traits::kVector, kGroups = Traits::kGroups;

  __device__ void read_vectors(int k, int depth, RowBatch<Traits, T>& batch) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int at = k + group * kVector;
      if (at >= depth) break;  // depth is a multiple of the vector width
#pragma unroll
      for (int i = 0; i < Traits::kThreadRows; ++i) load_bytes<kVectorBytes>(&batch[group][i], first_[i] + at);
    }
  }

  // All lanes read one column at a time, which is contiguous if A is transposed.
  __device__ void read_elements(int k, int depth, RowBatch<Traits, T>& batch) const {
    const int64_t stride = a_.col_stride;
    int64_t offset = k * stride;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (k + group * kVector >= depth) break;
#pragma unroll
      for (int n = 0; n < kVector; ++n, offset += stride) {
        const bool inside = k + group * kVector + n < depth;
#pragma unroll
        for (int i = 0; i < Traits::kThreadRows; ++i) {
          if (inside) load_bytes<sizeof(T)>(&batch[group][i].element[n], first_[i] + offset);
        }
      }
    }
  }

  const MatrixView& a_;
  const T* first_[Traits::kThreadRows];
};

// sum += A B over one vector of K elements. Only the first `count` elements exist; the others are skipped. K is walked upwards, as in every
// other tile.
template <class Traits, class T, class Sum>
__device__ inline void multiply_vector(const Vector<T, Traits::kVector> (&x)[Traits::kThreadRows], const Sum* shared_b, int count,
                                       Sum (&sum)[Traits::kThreadRows][Traits::kCols]) {
  using ColVector = Vector<Sum, Traits::kColVector>;
#pragma unroll
  for (int n = 0; n < Traits::kVector; ++n) {
    if (n >= count) break;
#pragma unroll
    for (int j = 0; j < Traits::kCols; j += Traits::kColVector) {
      const ColVector b = *reinterpret_cast<const ColVector*>(shared_b + n * Traits::kCols + j);
#pragma unroll
      for (int i = 0; i < Traits::kThreadRows; ++i) {
#pragma unroll
        for (int v = 0; v < Traits::kColVector; ++v) sum[i][j + v] = multiply_add(widen(x[i].element[n]), b.element[v], sum[i][j + v]);
      }
    }
  }
}

// Like multiply_vector, for a batch of vectors.
template <class Traits, class T, class Sum>
__device__ inline void multiply_batch(const RowBatch<Traits, T>& batch, const Sum* shared_b, int count,
                                      Sum (&sum)[Traits::kThreadRows][Traits::kCols]) {
#pragma unroll
  for (int group = 0; group < Traits::kGroups; ++group) {
    const int first = group * Traits::kVector;
    if (first >= count) break;
    multiply_vector<Traits>(batch[group], shared_b + first * Traits::kCols, count - first, sum);
  }
}

// One thread's part of the rows of B from `k` on that fit into shared memory. It passes through registers, where it is widened.
template <class Traits, class T>
class PartOfB {
 public:
  __device__ PartOfB(const ResolvedTile<T>& place, int k) {
    const MatrixView& b = place.matrix[kB];
    const int thread = thread_index(), row = thread / Traits::kCols, col = thread % Traits::kCols;
    const int rows = row < kRowsAtOnce && col < place.cols ? place.depth - k - row : 0;  // from the thread's first row on
    const T* from = rows > 0 ? b.template at<const T>(k + row, col) : nullptr;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      element_[i] = T{};
      if (i * kRowsAtOnce < rows) load_bytes<sizeof(T)>(&element_[i], from + i * kRowsAtOnce * b.row_stride);
    }
  }

  // Stores the first `rows` rows as accumulators, row by row.
  __device__ void store(typename Traits::Sum* shared, int rows) const {
    const int thread = thread_index();
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i * kRowsAtOnce < rows && exists(thread, i)) shared[thread + i * kRowsAtOnce * Traits::kCols] = widen(element_[i]);
    }
  }

  // Stores the elements unconverted, column by column, with zeros after their end.
  __device__ void store_columns(T* shared, int pitch) const {
    const int thread = thread_index(), row = thread / Traits::kCols, col = thread % Traits::kCols;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (exists(thread, i)) shared[col * pitch + row + i * kRowsAtOnce] = element_[i];
    }
  }

 private:
  static constexpr int kRowsAtOnce = Traits::kThreads / Traits::kCols, kElements = (Traits::kDepth + kRowsAtOnce - 1) / kRowsAtOnce;
  static constexpr bool kExact = kRowsAtOnce * Traits::kCols == Traits::kThreads && kElements * kRowsAtOnce == Traits::kDepth;
  __device__ static bool exists(int thread, int i) {
    return kExact || (thread < kRowsAtOnce * Traits::kCols && thread + i * kRowsAtOnce * Traits::kCols < Traits::kSumsOfB);
  }
  T element_[kElements];
};

// The thread index is read again here, so that values derived from it are recomputed in each pass and not held in registers.
template <class Traits, Stored kStored, class Products, class T>
__device__ inline void store_rows(const ResolvedTile<T>& place, T* shared, int row, const Products& products) {
  const int thread = thread_index();
  auto* const staged = reinterpret_cast<typename Traits::Sum*>(shared + Traits::kElementsOfB) + thread / kWaveSize * Traits::kStagedSums;
  RowStore<Traits, T, kStored, Products>(place, thread % kWaveSize, staged)(row, products);
}

// A warp's accumulators of a pass on the SIMT units: each thread has all sums of its rows.
template <class Traits, class T>
struct RowProducts {
  using Sum = typename Traits::Sum;
  static constexpr bool kThreadHoldsRows = true;
  Sum sum[Traits::kThreadRows][Traits::kCols] = {};

  __device__ static void store(const PartOfB<Traits, T>& b, T* shared, int rows) { b.store(reinterpret_cast<Sum*>(shared), rows); }

  // sum += A B for a pass that has arrived, with B in shared memory.
  template <bool kWhole>
  __device__ void add(const RowStream<Traits, T, kWhole>& stream, int lane, int depth, const T* shared) {
    constexpr int kVector = Traits::kVector;
    const Sum* const shared_b = reinterpret_cast<const Sum*>(shared);
    Vector<T, kVector> x[Traits::kThreadRows];
    const auto read = [&](int k, int count) __attribute__((always_inline)) {
#pragma unroll
      for (int i = 0; i < Traits::kThreadRows; ++i) stream.read(i * kWaveSize + lane, k, count, x[i]);
    };
    int k = 0;
#pragma unroll 1
    for (; k + kVector <= depth; k += kVector) {
      read(k, kVector);
      multiply_vector<Traits>(x, shared_b + k * Traits::kCols, kVector, sum);
    }
    if (!kWhole && k < depth) {
      read(k, depth - k);
      multiply_vector<Traits>(x, shared_b + k * Traits::kCols, depth - k, sum);
    }
  }

  // Writes the sums of the lane's i-th row to the warp's staging memory.
  template <class Staging>
  __device__ void put(int i, const Staging& staging) const {
    staging.put(sum[i]);
  }

  __device__ static void walk(const ResolvedTile<T>& place, T* shared);
};

// Computes one tile whose A is streamed through shared memory.
template <class Traits, class Products, Stored kStored, bool kWhole, class T>
__device__ inline void stream_rows(const ResolvedTile<T>& place, RowStream<Traits, T, kWhole>& stream, T* shared) {
  const int thread = thread_index(), wave = thread / kWaveSize, lane = thread % kWaveSize, rows = place.rows, depth = place.depth;
  const int passes = stream.passes();
  int row = wave * Traits::kWaveRows;
  await_previous_kernel();
  const PartOfB<Traits, T> b(place, 0);  // loaded first: after the copies below, its loads would wait for them
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) stream.start(lane, row + pass * Traits::kPassRows);
  Products::store(b, shared, depth);
  block_barrier();
#pragma unroll 1
  for (; row < rows; row += Traits::kPassRows) {
    Products products;
    stream.await();
    products.add(stream, lane, depth, shared);
    wave_barrier();  // all lanes have read this pass
    stream.start(lane, row + passes * Traits::kPassRows);
    store_rows<Traits, kStored>(place, shared, row, products);
  }
}

// Computes one tile whose threads read A from global memory. If all of K fits shared memory, B is loaded once for all passes; otherwise it
// is loaded again in every pass.
template <class Traits, class T>
__device__ inline void RowProducts<Traits, T>::walk(const ResolvedTile<T>& place, T* shared) {
  Sum* const shared_b = reinterpret_cast<Sum*>(shared);
  const int depth = place.depth;
  const bool deep = depth > Traits::kDepth;
  await_previous_kernel();
  if (!deep) {
    PartOfB<Traits, T>(place, 0).store(shared_b, depth);
    block_barrier();
  }
#pragma unroll 1
  for (int first = 0; first < place.rows; first += Traits::kPassRows) {
    const int thread = thread_index(), row = first + thread / kWaveSize * Traits::kWaveRows;
    if (!deep && row >= place.rows) break;  // with a deep K, warps without rows must take part in the barriers
    const RowReader<Traits, T> reader(place.matrix[kA], row + thread % kWaveSize, place.rows);
    RowProducts products;
#pragma unroll 1
    for (int k = 0; k < depth; k += Traits::kBatch) {
      const int k_there = k % Traits::kDepth;
      if (deep && k_there == 0) {
        block_barrier();  // no thread reads the previous part of B any more
        PartOfB<Traits, T>(place, k).store(shared_b, depth - k);
        block_barrier();
      }
      RowBatch<Traits, T> batch;
      reader.read(k, depth, batch);
      const Sum* const b = shared_b + k_there * Traits::kCols;
      // A second copy of the products' code would make float64 spill registers.
      if (sizeof(Sum) == 4 && k + Traits::kBatch <= depth) {
        multiply_batch<Traits>(batch, b, Traits::kBatch, products.sum);
      } else {
        multiply_batch<Traits>(batch, b, depth - k, products.sum);
      }
    }
    store_rows<Traits, Stored::general>(place, shared, row, products);
  }
}

// Computes one tile with a deep K whose A is column-major, and is copied through shared memory. The next part of B is loaded while the
// current one is multiplied. (Rivera et al., Algorithm 4, with more loads in flight than registers could hold.)
template <class Traits, class T>
__device__ inline void stream_columns(const ResolvedTile<T>& place, T* ring, T* shared) {
  using Sum = typename Traits::Sum;
  using Stream = ColumnStream<Traits, T>;
  constexpr int kVector = Traits::kVector, kPrefetchDepth = (Stream::kStages - 1) * Stream::kSteps;
  Sum* const shared_b = reinterpret_cast<Sum*>(shared);
  const int depth = place.depth, lane = thread_index() % kWaveSize;
  await_previous_kernel();
#pragma unroll 1
  for (int first = 0; first < place.rows; first += Traits::kPassRows) {
    const int row = first + thread_index() / kWaveSize * Traits::kWaveRows;
    PartOfB<Traits, T> b(place, 0);
    wave_barrier();  // the previous pass's copies have been read
    Stream stream(place, ring, row);
    if (stream.has_rows()) {
#pragma unroll 1
      for (int k = 0; k < kPrefetchDepth; k += Stream::kSteps) stream.start(lane, k);
    }
    RowProducts<Traits, T> products;
#pragma unroll 1
    for (int part = 0; part < depth; part += Traits::kDepth) {
      block_barrier();  // the previous part of B has been read
      b.store(shared_b, depth - part);
      block_barrier();
      b = PartOfB<Traits, T>(place, part + Traits::kDepth);
      if (!stream.has_rows()) continue;  // but the warp must take part in the barriers
      const int end = part + Traits::kDepth < depth ? part + Traits::kDepth : depth;
#pragma unroll 1
      for (int k = part; k < end; k += Stream::kSteps) {
        stream.await();
        const T* const a = stream.oldest() + lane;
        stream.start(lane, k + kPrefetchDepth);
        const auto multiply = [&](int count) __attribute__((always_inline)) {
#pragma unroll
          for (int v = 0; v < Stream::kSteps; v += kVector) {
            Vector<T, kVector> x[Traits::kThreadRows];
#pragma unroll
            for (int i = 0; i < Traits::kThreadRows; ++i) {
#pragma unroll
              for (int n = 0; n < kVector; ++n) x[i].element[n] = a[(v + n) * Traits::kWaveRows + i * kWaveSize];
            }
            multiply_vector<Traits>(x, shared_b + (k - part + v) * Traits::kCols, count - v, products.sum);
          }
        };
        if (k + Stream::kSteps <= end) {
          multiply(Stream::kSteps);
        } else {
          multiply(end - k);
        }
      }
    }
    if (stream.has_rows()) store_rows<Traits, Stored::general>(place, shared, row, products);
  }
}

template <class Traits, class Products, class T>
__device__ inline void multiply_rows(const ResolvedTile<T>& place, T* shared) {
  if constexpr (!kCdna) {
    T* const ring = shared + Traits::kSumElements + thread_index() / kWaveSize * Traits::kRingElements;
    const MatrixView& a = place.matrix[kA];
    const int depth = place.depth;
    if (depth > 0 && depth <= Traits::kWholeDepth && a.access == Access::vectors && a.row_stride == depth &&
        stores_vectors<Traits>(place)) {
      RowStream<Traits, T, true> stream(place, ring);
      stream_rows<Traits, Products, Stored::vectors>(place, stream, shared);
      return leave_after_last(place);
    }
    RowStream<Traits, T, false> stream(place, ring);
    if (depth <= Traits::kDepth && stream.passes() > 0) {
      if (!Products::kThreadHoldsRows || !stores_columns(place)) {
        stream_rows<Traits, Products, Stored::general>(place, stream, shared);
        return leave_after_last(place);
      }
      if constexpr (Products::kThreadHoldsRows) stream_rows<Traits, Products, Stored::columns>(place, stream, shared);
      return leave_after_last(place);
    }
    // Copies of smaller elements are not asynchronous, and float64 would spill registers.
    if constexpr (Products::kThreadHoldsRows && sizeof(T) == 4) {
      if (depth > Traits::kDepth && a.access == Access::columns) {
        stream_columns<Traits>(place, ring, shared);
        return leave_after_last(place);
      }
    }
  }
  Products::walk(place, shared);
}

}  // namespace vbgemm
