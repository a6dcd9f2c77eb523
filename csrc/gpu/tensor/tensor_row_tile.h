// One row tile (simt/row_tile.h) on tensor cores, where the lanes of a warp share its rows. It serves more columns, or wider types, than
// the SIMT units can keep up with.
#pragma once
#include "gpu/simt/row_tile.h"
#include "gpu/tensor/tensor_dot_traits.h"

namespace vbgemm {

// How row `kIndex` of the catalogue is divided. K is permuted within each line, in A and B alike, as in dot-product tiles
// (tensor_dot_traits.h).
template <Kind kKind_, int kIndex>
struct TensorRowTraits : RowTraits<LeftOf<kKind_>, kIndex> {
  using T = LeftOf<kKind_>;
  using Base = RowTraits<T, kIndex>;
  using Line = DotLine<T>;
  using LinesB = DotColumns<T, Base::kCols, Base::kDepth, true>;
  static constexpr Kind kKind = kKind_;
  static constexpr int kBlocksM = 1, kBlocksN = Base::kCols / 8, kBlocksOfRows = Base::kWaveRows / 16;  // products of 16 x 8
  static_assert(Base::kTensor && Base::kWaveRows % kWaveSize == 0 && kBlocksN * 8 == Base::kCols);
  static_assert(Base::kDepth % Line::kDepth == 0 && LinesB::kElements == Base::kElementsOfB && Line::kVectorItems == Base::kVector);
};

// A warp's rows of A, read directly from global memory. Rows beyond the tile's last row read the last row again; nothing will be stored for
// them.
template <class T>
struct RowsInPlace {
  static constexpr bool kStreams = false;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  const MatrixView& a;
  int first, last, k_first;

  // Reads the vector that begins at K element `k` of a row. Only its first `count` elements exist; the others are left unchanged.
  __device__ void read(int row, int k, int count, Vector<T, kVector>& x) const {
    wave_barrier();  // one vector after the other: otherwise the compiler would use registers for several loads
    const int mine = first + row;
    const T* const from = a.template at<const T>(mine < last ? mine : last, k_first + k);
    if (a.access == Access::vectors) {
      if (count > 0) load_bytes<kVectorBytes>(&x, from);
      return;
    }
#pragma unroll
    for (int n = 0; n < kVector; ++n) {
      if (n < count) load_bytes<sizeof(T)>(&x.element[n], from + n * a.col_stride);
    }
  }
};

// A warp's accumulators of a pass, as fragments.
template <class Traits, class T>
struct TensorRowProducts {
  using Sum = typename Traits::Sum;
  using Line = typename Traits::Line;
  static constexpr bool kThreadHoldsRows = false;
  Sums<Traits> sums[Traits::kBlocksOfRows] = {};

  __device__ static void store(const PartOfB<Traits, T>& b, T* shared, int) { b.store_columns(shared, Traits::LinesB::kPitch); }

  // sums += A B for existing rows of A, with B in shared memory. K elements after the end are zero in both operands.
  template <class Rows>
  __device__ void add(const Rows& rows, int lane, int depth, const T* shared) {
    const int t = lane % 4;
    const T* b = shared + Traits::LinesB::lane_offset();
#pragma unroll 1
    for (int k = t * Line::kVectorItems; k - t * Line::kVectorItems < depth; k += Line::kDepth, b += Line::kDepth) {
      typename Line::Registers y[Traits::kBlocksN];
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) y[j] = Traits::LinesB::read(b, 0, j);
      // Sixteen rows at a time, because all at once would take too many registers.
#pragma unroll
      for (int i = 0; i < Traits::kBlocksOfRows; ++i) {
        typename Line::Registers x[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) read(rows, lane, 2 * i + half, k, depth - k, x[half]);
#pragma unroll
        for (int w = 0; w < Line::kWords; w += 2) {
          Register<T> left[1][4] = {{x[0].element[w], x[1].element[w], x[0].element[w + 1], x[1].element[w + 1]}};
          Register<T> right[Traits::kBlocksN][2];
#pragma unroll
          for (int j = 0; j < Traits::kBlocksN; ++j) right[j][0] = y[j].element[w], right[j][1] = y[j].element[w + 1];
          multiply_chunk<Traits>(left, right, sums[i]);
        }
      }
    }
  }

  // Reads a lane's vector of a line, for eight rows.
  template <class Rows>
  __device__ static void read(const Rows& rows, int lane, int eight, int k, int count, typename Line::Registers& x) {
    if constexpr (sizeof(T) == 2 && Rows::kStreams) {
      if (rows.in_columns()) {
        // A line has four vectors of 8 elements, and ldmatrix loads four 8 x 8 matrices. Matrix w holds the w-th pair of elements of each
        // vector, one K element per row. Transposed, it gives each lane the w-th pair of the lane's own vector.
        const int matrix = lane / 8, row = lane % 8, ahead = (row / 2 - lane % 4) * Line::kVectorItems + 2 * matrix + row % 2;
        ldmatrix_x4_trans(rows.eight_rows(eight, ahead < count ? k + ahead : 0), x.element);
#pragma unroll
        for (int w = 0; w < Line::kWords; ++w) {
          if (2 * w + 1 >= count) x.element[w] &= 2 * w < count ? 0xffffu : 0u;
        }
        return;
      }
    }
    Vector<T, Traits::kVector> steps = {};
    rows.read(8 * eight + lane / 4, k, count, steps);
    memcpy(&x, &steps, sizeof steps);
  }

  // Writes the sums to the warp's staging memory; the i-th call writes as many rows as a warp has lanes.
  template <class Staging>
  __device__ void put(int i, const Staging& staging) const {
    constexpr int kHalves = kWaveSize / 8;
    const int g = staging.lane / 4, t = staging.lane % 4;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = (8 * half + g) * staging.cols;
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) {
        const auto& sum = sums[(i * kHalves + half) / 2][0][j];
        const int col = 8 * j + 2 * t;
        const Vector<Sum, 2> two = {{sum[half % 2 * 2], sum[half % 2 * 2 + 1]}};
        if (staging.swizzled()) {  // in whole vectors, which hold two adjacent sums
          if (col < staging.cols) *reinterpret_cast<Vector<Sum, 2>*>(staging.first + staging.place(row + col)) = two;
        } else {
          if (col < staging.cols) staging.first[row + col] = two.element[0];
          if (col + 1 < staging.cols) staging.first[row + col + 1] = two.element[1];
        }
      }
    }
  }

  // Computes a tile whose A is not streamed through shared memory. If all of K fits, B is loaded once for all passes; otherwise it is
  // loaded again in every pass.
  __device__ static void walk(const ResolvedTile<T>& place, T* shared) {
    const int depth = place.depth;
    const bool deep = depth > Traits::kDepth;
    await_previous_kernel();
#pragma unroll 1
    for (int first = 0; first < place.rows; first += Traits::kPassRows) {
      const int thread = thread_index(), row = first + thread / kWaveSize * Traits::kWaveRows;
      TensorRowProducts products;
#pragma unroll 1
      for (int k = 0; k < depth; k += Traits::kDepth) {
        if (deep || first == 0) {
          block_barrier();  // no thread reads the previous part of B any more
          PartOfB<Traits, T>(place, k).store_columns(shared, Traits::LinesB::kPitch);
          block_barrier();
        }
        const int left = depth - k;
        products.add(RowsInPlace<T>{place.matrix[kA], row, place.rows - 1, k}, thread % kWaveSize,
                     left < Traits::kDepth ? left : Traits::kDepth, shared);
      }
      store_rows<Traits, Stored::general>(place, shared, row, products);
    }
  }
};

}  // namespace vbgemm
