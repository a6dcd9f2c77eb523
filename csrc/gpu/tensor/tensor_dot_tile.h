// One dot-product tile (simt/dot_tile.h) on tensor cores, for more columns or wider types than the SIMT units can keep up with. Each warp
// loads its own rows of A directly into fragment registers; shared memory holds B only.
#pragma once
#include "gpu/tensor/tensor_copy.h"
#include "gpu/tensor/tensor_dot_traits.h"
#include "gpu/tensor/tensor_store.h"

namespace vbgemm {

// Reads a lane's vectors of its two rows of A, kLinesInFlight lines at a time. Rows beyond the tile's last row read the last row again;
// nothing will be stored for them. kVectors: all 16-byte vectors are aligned. Otherwise A is read by elements, and 2-byte elements one line
// at a time, since each would occupy a 4-byte register.
template <class Traits, class T, bool kVectors>
class TensorDotReader {
 public:
  using Line = typename Traits::Line;
  static constexpr int kLinesInFlight = kVectors || sizeof(T) > 2 ? Traits::kLines : 1;
  using LineRegisters = typename Line::Registers[2][kLinesInFlight];

  // `a` is in shared memory and is read again at each step, which is cheaper than holding it in registers.
  __device__ TensorDotReader(const MatrixView& a, int rows) : a_(a) {
    const int thread = thread_index(), row = thread / kLanes * Traits::kWaveRows + thread % kLanes / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int mine = row + 8 * half;
      first_[half] = a.template at<const T>(mine < rows ? mine : rows - 1, 0);
    }
  }

  // Reads the vectors of the lines that begin at K element `k`. kWhole: all of their elements exist; otherwise elements from `depth` on are
  // zero. (A run-time test here would make both cases meet in the same registers, through moves that wait for the loads.)
  template <bool kWhole>
  __device__ void read(int k, int depth, LineRegisters& x) const {
    const int begin = k + thread_index() % 4 * Line::kVectorItems;
    const int64_t col_stride = kVectors ? 1 : a_.col_stride;
    const T* const from[2] = {first_[0] + begin * col_stride, first_[1] + begin * col_stride};
#pragma unroll
    for (int line = 0; line < kLinesInFlight; ++line) {
      const int ahead = line * Line::kDepth, left = kWhole ? Line::kVectorItems : depth - begin - ahead;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kVectors) {
          x[half][line] = {};
          if (left > 0) load_streamed<kVectorBytes>(&x[half][line], from[half] + ahead);  // depth is a multiple of the vector width
        } else {
          x[half][line] = elements(from[half] + ahead * col_stride, col_stride, left);
        }
      }
    }
  }

 private:
  // Returns the first `count` elements of a vector, followed by zeros.
  __device__ static typename Line::Registers elements(const T* from, int64_t stride, int count) {
    T element[Line::kVectorItems] = {};
#pragma unroll
    for (int e = 0; e < Line::kVectorItems; ++e) {
      if (e < count) load_bytes<sizeof(T)>(&element[e], from + e * stride);
    }
    typename Line::Registers registers;
    memcpy(&registers, element, sizeof registers);
    return registers;
  }

  const MatrixView& a_;
  const T* first_[2];
};

// sums += A B for kLinesInFlight lines; `b` points to their part of B.
template <class Traits, class LinesB, class T, class Registers, int kLinesInFlight>
__device__ inline void multiply_lines(const Registers (&x)[2][kLinesInFlight], const T* b, Sums<Traits>& sums) {
#pragma unroll
  for (int line = 0; line < kLinesInFlight; ++line) {
    Registers y[Traits::kBlocksN];
#pragma unroll
    for (int j = 0; j < Traits::kBlocksN; ++j) y[j] = LinesB::read(b, line, j);
#pragma unroll
    for (int w = 0; w < Traits::Line::kWords; w += 2) {
      const auto &upper = x[0][line].element, &lower = x[1][line].element;
      Register<T> left[1][4] = {{upper[w], lower[w], upper[w + 1], lower[w + 1]}}, right[Traits::kBlocksN][2];
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) right[j][0] = y[j].element[w], right[j][1] = y[j].element[w + 1];
      multiply_chunk<Traits>(left, right, sums);
    }
  }
}

// sums += A B, with B in shared memory in the layout LinesB. The first loads of a step of A are in flight while the step's B is waited for.
template <class Traits, class LinesB, bool kVectors, class T, class Mode>
__device__ inline void add_dots(const ResolvedTile<T>& place, T* shared, Mode mode, Sums<Traits>& sums) {
  const MatrixView& b = place.matrix[kB];
  constexpr bool kIsKMajorB = LinesB::kKMajor;
  using Reader = TensorDotReader<Traits, T, kVectors>;
  const Reader rows(place.matrix[kA], place.rows);
  LineCopy<T, LinesB, !kIsKMajorB, Traits::kThreads, false, Mode> copy(b, mode);
  const int depth = place.depth, cols = place.cols;
  int uncopied = depth;  // negative once the copies have run past the end of K
  const auto start_step = [&](T* stage) {
    if (uncopied > 0) {
      copy.start(stage, kIsKMajorB ? cols : uncopied, kIsKMajorB ? uncopied : cols);
      copy.advance(Traits::kDepth * b.row_stride);
    }
    uncopied -= Traits::kDepth;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Traits::kStages - 1; ++slot) start_step(shared + slot * Traits::kStageElements);

  const int lane_offset = LinesB::lane_offset();
  T* const last_stage = shared + (Traits::kStages - 1) * Traits::kStageElements;
  T* stage = shared;
  const auto take_step = [&](auto whole, int k) __attribute__((always_inline)) {
    constexpr bool kWhole = decltype(whole)::value;
    typename Reader::LineRegisters x;
    rows.template read<kWhole>(k, depth, x);
    cp_async_wait_group<Traits::kStages - 2>();
    copy.finish(stage, kIsKMajorB ? depth - k : LinesB::kItems);
    block_barrier();  // this step's B is visible, and no thread reads the previous stage any more
    start_step(stage == shared ? last_stage : stage - Traits::kStageElements);
    multiply_lines<Traits, LinesB>(x, stage + lane_offset, sums);
#pragma unroll 1
    for (int line = Reader::kLinesInFlight; line < Traits::kLines; line += Reader::kLinesInFlight) {
      rows.template read<kWhole>(k + line * Traits::Line::kDepth, depth, x);
      multiply_lines<Traits, LinesB>(x, stage + lane_offset + line * LinesB::kLineElements, sums);
    }
    stage = stage == last_stage ? shared : stage + Traits::kStageElements;
  };
  int k = 0;
#pragma unroll 1
  for (; k + Traits::kDepth <= depth; k += Traits::kDepth) take_step(std::true_type(), k);
  if (k < depth) take_step(std::false_type(), k);
}

// Computes one tile. Each way to read A and B has a loop of its own, because code that a loop does not need would cost it instruction
// fetches.
template <class Traits, class T>
__device__ __forceinline__ void multiply_tensor_dots(const ResolvedTile<T>& place, T* shared) {
  const MatrixView& b = place.matrix[kB];
  Sums<Traits> sums = {};
  const auto with_b = [&](auto along, auto mode) __attribute__((always_inline)) {
    using LinesB = typename Traits::template B<decltype(along)::value>;
    if (place.matrix[kA].access == Access::vectors) {
      add_dots<Traits, LinesB, true>(place, shared, mode, sums);
    } else {
      add_dots<Traits, LinesB, false>(place, shared, mode, sums);
    }
  };
  const RuntimeMode mode{copy_mode<T>(b, place.depth, place.cols)};
  if (b.access == Access::columns) {
    with_b(std::true_type(), mode);
  } else if constexpr (sizeof(T) == 2) {
    with_b(std::false_type(), mode);
  } else {
    with_b(std::false_type(), StaticMode<CopyMode::elements>());
  }
  store_sums<Traits>(place, sums, shared);
}

}  // namespace vbgemm
