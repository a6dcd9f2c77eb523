// How a row tile is stored to C. A warp's lanes exchange their sums through shared memory so that stores coalesce. If C is column-major and
// each thread has all sums of its rows, stores coalesce without the exchange. `Traits` are the tile traits of row_tile.h.
#pragma once
#include "gpu/tile/finish.h"
#include "gpu/tile/swizzle.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Store variants, chosen before a tile begins. vectors: C is dense, row-major and in whole vectors, and has the operands' type. columns: C
// is column-major. Both have no epilogue. general: anything else. Each case has code of its own, because skipped code still costs its
// instruction fetch (docs/design/latency.md, L12).
enum class Stored { vectors, columns, general };

// A warp's own part of shared memory: one dense row of sums per lane, as in most C. kWhole: the rows are whole vectors, in C's element type
// as well.
template <class Traits, bool kWhole>
struct RowStaging {
  using Sum = typename Traits::Sum;
  static constexpr int kElements = Traits::kCols, kVector = Traits::kColVector;  // of one lane
  Sum* first;
  int lane, cols;  // the tile's columns

  __device__ bool swizzled() const { return kWhole || cols % kVector == 0; }
  __device__ int place(unsigned at) const { return swizzled() ? swizzled_vector(at / kVector) * kVector + at % kVector : at; }

  // Writes the lane's row.
  __device__ void put(const Sum (&sum)[Traits::kCols]) const {
    if (swizzled()) {
      const int mine = lane * (static_cast<unsigned>(cols) / kVector);
#pragma unroll
      for (int j = 0; j < Traits::kCols; j += kVector) {
        if (j >= cols) continue;  // a break would keep clang from unrolling the loop
        Vector<Sum, kVector> vector;
#pragma unroll
        for (int v = 0; v < kVector; ++v) vector.element[v] = sum[j + v];
        *reinterpret_cast<Vector<Sum, kVector>*>(first + swizzled_vector(mine + j / kVector) * kVector) = vector;
      }
      return;
    }
    Sum* const mine = first + lane * cols;
#pragma unroll
    for (int j = 0; j < Traits::kCols; ++j) {
      if (j < cols) mine[j] = sum[j];
    }
  }

  // Reads the vector at column `col` of the lane's row; `col` is a multiple of the vector width. Elements after the row's end are
  // arbitrary.
  __device__ Vector<Sum, kVector> neighbours(int col) const {
    const int at = lane * cols + col;
    if (swizzled()) return *reinterpret_cast<const Vector<Sum, kVector>*>(first + place(at));
    Vector<Sum, kVector> vector = {};
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (col + v < cols) vector.element[v] = first[at + v];
    }
    return vector;
  }

  // Stores `elements` elements of whole rows to a dense C, in vectors.
  template <class Out>
  __device__ void write_gapless(Out* to, int elements) const {
    constexpr int kOutVector = kVectorBytes / static_cast<int>(sizeof(Out));
    using Mine = LaneVectors<kOutVector / kVector>;
    const int vectors = static_cast<unsigned>(elements) / kOutVector;
    const Mine mine(lane, swizzled());
    const Sum* from = first;
    Out* target = to + lane * kOutVector;
#pragma unroll 1
    for (int at = lane; at < vectors; at += Mine::kPeriod * kWaveSize) {
#pragma unroll
      for (int turn = 0; turn < Mine::kPeriod; ++turn) {
        if (at + turn * kWaveSize >= vectors) break;
        Vector<Out, kOutVector> vector;
#pragma unroll
        for (int v = 0; v < kOutVector; v += kVector) {
          const auto sums = *reinterpret_cast<const Vector<Sum, kVector>*>(from + mine.place[turn][v / kVector] * kVector);
#pragma unroll
          for (int n = 0; n < kVector; ++n) narrow(sums.element[n], vector.element[v + n]);
        }
        store_bytes<kVectorBytes>(target + turn * kWaveSize * kOutVector, &vector);
      }
      from += Mine::kPeriodVectors * kVector;
      target += Mine::kPeriod * kWaveSize * kOutVector;
    }
    if (kWhole) return;
    const int rest = vectors * kOutVector + lane;
    if (rest >= elements) return;
    Out result;
    narrow(first[place(rest)], result);
    store_bytes<sizeof(Out)>(to + rest, &result);
  }
};

// A row staging that knows each element's position in the tile, for epilogues and for a C with gaps.
template <class Traits>
struct LocatedRowStaging : RowStaging<Traits, false> {
  using Staging = RowStaging<Traits, false>;
  using Sum = typename Traits::Sum;
  int row, inverse;  // row: the warp's first row of the tile; inverse: 1 / columns in fixed point

  __device__ LocatedRowStaging(const Staging& staging, int first_row)
      : Staging(staging), row(first_row), inverse((1 << kInverseBits) / staging.cols + 1) {}

  // The lane's n-th element.
  __device__ Sum& element(int n) const { return this->first[this->place(n * kWaveSize + this->lane)]; }
  __device__ Location locate(Extent tile, int, int n) const {
    const int at = n * kWaveSize + this->lane, down = at * inverse >> kInverseBits;
    return {row + down, at - down * this->cols, n < this->cols && row + down < tile.rows};
  }

 private:
  // This division is exact for every element: the inverse is too large by less than 2^-18, so the quotient is too large by less than 1 /
  // cols.
  static constexpr int kInverseBits = 18;
  static_assert(kWaveSize * Traits::kCols * Traits::kCols <= 1 << kInverseBits);
};

template <class Traits, class T>
__device__ inline bool stores_vectors(const ResolvedTile<T>& place) {
  const MatrixView& c = place.matrix[kC];
  return c.access == Access::vectors && c.row_stride == place.cols && !place.fused && !place.stores_sums();
}
template <class T>
__device__ inline bool stores_columns(const ResolvedTile<T>& place) {
  return place.matrix[kC].access == Access::columns && !place.fused;
}

// Stores a warp's rows. Products: the type that holds the warp's sums (row_tile.h).
template <class Traits, class T, Stored kStored, class Products>
class RowStore {
 public:
  using Sum = typename Traits::Sum;
  static constexpr bool kWhole = kStored == Stored::vectors;

  // `place` is in shared memory. `staged` is the warp's own part of shared memory, of kStagedSums sums.
  __device__ RowStore(const ResolvedTile<T>& place, int lane, Sum* staged)
      : place_(place), staging_{staged, lane, place.cols}, rows_(place.rows) {
    const MatrixView& c = place.matrix[kC];
    const bool aligned = reinterpret_cast<uintptr_t>(c.first) % kVectorBytes == 0;
    gapless_ = kWhole || (aligned && c.row_stride == place.cols && c.col_stride == 1 && !place.fused);
  }

  // `row`: the warp's first row. All lanes of the warp call this together.
  __device__ void operator()(int row, const Products& products) const {
    if (!kWhole && place_.stores_sums()) {
      store_as<Sum>(row, products);
    } else {
      store_as<T>(row, products);
    }
  }

 private:
  template <class Out>
  __device__ void store_as(int row, const Products& products) const {
    if constexpr (kStored == Stored::columns) {
      store_own_columns<Out>(row, products);
    } else if (!kWhole && stores_columns(place_)) {
      store_columns<Out>(row, products);
    } else {
      store_rows<Out>(row, products);
    }
  }

  template <class Out>
  __device__ void store_rows(int row, const Products& products) const {
#pragma unroll
    for (int i = 0; i < Traits::kThreadRows; ++i, row += kWaveSize) {
      if (row >= rows_) break;
      products.put(i, staging_);
      wave_barrier();
      if (gapless_) {
        const int left = rows_ - row, rows = left < kWaveSize ? left : kWaveSize;
        staging_.write_gapless(static_cast<Out*>(place_.matrix[kC].first) + static_cast<int64_t>(row) * staging_.cols,
                               rows * staging_.cols);
      } else if constexpr (!kWhole) {
        const LocatedRowStaging<Traits> staging(staging_, row);
        if (place_.fused) apply_epilogue<Out>(staging, place_, 0);
        write_elements<Out>(staging, place_, 0);
      }
      wave_barrier();  // before the sums of the next rows are written
    }
  }

  // For a column-major C: each lane stores its own rows from registers.
  template <class Out>
  __device__ void store_own_columns(int row, const Products& products) const {
    const MatrixView c = place_.matrix[kC];
#pragma unroll
    for (int i = 0; i < Traits::kThreadRows; ++i) {
      const int mine = row + i * kWaveSize + staging_.lane;
      Out* to = c.at<Out>(mine, 0);
#pragma unroll
      for (int j = 0; j < Traits::kCols; ++j, to += c.col_stride) {
        if (j < staging_.cols) store(products.sum[i][j], to, mine < rows_);
      }
    }
  }

  // Like store_own_columns, but each lane stores a row from shared memory, which, unlike registers, a loop can index at run time.
  template <class Out>
  __device__ void store_columns(int row, const Products& products) const {
    constexpr int kVector = Traits::kColVector;
    const MatrixView c = place_.matrix[kC];
#pragma unroll
    for (int i = 0; i < Traits::kThreadRows; ++i, row += kWaveSize) {
      const int mine = row + staging_.lane;
      Out* to = c.at<Out>(mine, 0);
      products.put(i, staging_);
      wave_barrier();
#pragma unroll 1
      for (int j = 0; j < staging_.cols; j += kVector) {
        const Vector<Sum, kVector> sums = staging_.neighbours(j);
#pragma unroll
        for (int v = 0; v < kVector; ++v, to += c.col_stride) store(sums.element[v], to, j + v < staging_.cols && mine < rows_);
      }
      wave_barrier();  // before the sums of the next rows are written
    }
  }

  template <class Out>
  __device__ static void store(Sum sum, Out* to, bool exists) {
    Out result;
    narrow(sum, result);
    store_bytes_if<sizeof(Out)>(exists, to, &result);
  }

  const ResolvedTile<T>& place_;
  RowStaging<Traits, kWhole> staging_;
  int rows_;
  bool gapless_;
};

}  // namespace vbgemm
