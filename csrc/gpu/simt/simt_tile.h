// One tile of C on the ordinary (SIMT) arithmetic units: a pipeline of asynchronous copies along K, then multiply-adds from shared memory.
#pragma once
#include "gpu/simt/deep_tile.h"
#include "gpu/simt/dot_tile.h"
#include "gpu/simt/row_tile.h"
#include "gpu/tile/operand_copy.h"
#include "gpu/tile/tile_place.h"
#include "gpu/tile/tile_store.h"

namespace vbgemm {

// sum += A B over one K step in shared memory. `depth` is the number of columns of A (rows of B) that count; the others are zero. K is
// walked upwards for every element, whatever the tile, so that the bits of a result do not depend on the plan (unless the plan splits K).
template <class Cut, class T, class Right, class Sum>
__device__ inline void multiply_step(const T* shared_a, const Right* shared_b, int depth, Sum (&sum)[Cut::kThreadRows][Cut::kThreadCols]) {
  using DepthVector = Vector<T, Cut::kDepthVector>;
  using ColVector = Vector<Right, Cut::kColVector>;
  const auto multiply_chunk = [&] {
#pragma unroll
    for (int k = 0; k < Cut::kChunk; k += Cut::kDepthVector) {
      DepthVector a[Cut::kThreadRows];
#pragma unroll
      for (int i = 0; i < Cut::kThreadRows; ++i) {
        a[i] = *reinterpret_cast<const DepthVector*>(shared_a + i * Cut::kGridRows * Cut::A::kPitch + k);
      }
#pragma unroll
      for (int l = 0; l < Cut::kDepthVector; ++l) {
        Sum b[Cut::kThreadCols];
#pragma unroll
        for (int j = 0; j < Cut::kThreadCols; j += Cut::kColVector) {
          const ColVector cols = *reinterpret_cast<const ColVector*>(shared_b + (k + l) * Cut::B::kPitch + j * Cut::kGridCols);
#pragma unroll
          for (int v = 0; v < Cut::kColVector; ++v) b[j + v] = widen(cols.element[v]);
        }
#pragma unroll
        for (int i = 0; i < Cut::kThreadRows; ++i) {
          const Sum x = widen(a[i].element[l]);
#pragma unroll
          for (int j = 0; j < Cut::kThreadCols; ++j) sum[i][j] = multiply_add(x, b[j], sum[i][j]);
        }
      }
    }
    shared_a += Cut::kChunk;
    shared_b += Cut::kChunk * Cut::B::kPitch;
  };
  // One chunk after the other, because more unrolled code would need more registers than there are; chunks beyond the end of K are left
  // out. The first chunk has code of its own where this is short, so that the compiler can schedule it among the code around it. Where it
  // is long, the instruction fetches would cost more than that gains.
  constexpr bool kFirstApart = Cut::kSums <= 16;
  int left = depth < Cut::kDepth ? depth : Cut::kDepth;
  if (kFirstApart) multiply_chunk(), left -= Cut::kChunk;
#pragma unroll 1
  for (; left > 0; left -= Cut::kChunk) multiply_chunk();
}

// Moves the sums to other registers than those in which they were added up. A vector store takes adjacent registers, and without this the
// compiler adds up in the same ones, so that six to eight times as many multiply-adds of a large tile find all their operands in one bank
// of the register file and take two cycles (docs/design/kernels.md, K11). The compiler does not know that the depth is never negative.
template <class Cut, class T, class Sum>
__device__ inline void leave_summing_registers(const TilePlace<T>& place, Sum (&sum)[Cut::kThreadRows][Cut::kThreadCols]) {
  if constexpr (std::is_same_v<Sum, float> && !kCdna && Cut::kIsLarge) {
    const uint32_t zero = static_cast<uint32_t>(place.depth >> 31);
#pragma unroll
    for (auto& row : sum) {
#pragma unroll
      for (float& x : row) x = float_of_bits(bits_of_float(x) ^ zero);
    }
  }
}

// Computes one tile. The copies of kStages - 1 steps are in flight before the first step is waited for. From then on, each step starts the
// copies of the step that will use the stage just freed. With a K range of length 0 the sums remain zero. `Right` is the type of B's
// elements; it has the size of A's, which is all that the copies depend on.
template <class Cut, class Right, class T>
__device__ inline void multiply_tile(const TilePlace<T>& place, T* shared) {
  OperandCopy<T, typename Cut::A, Cut::kThreads, Cut::kAhead> copy_a(place.matrix[kA]);
  OperandCopy<T, typename Cut::B, Cut::kThreads, Cut::kAhead, Cut::kRowsDown> copy_b(place.matrix[kB]);
  int uncopied = place.depth;  // negative once the copies have run past the end of K
  const auto start_step = [&](T* stage) {
    if (uncopied > 0) {
      copy_a.start(stage, place.rows, uncopied);
      copy_b.start(stage + Cut::A::kElements, uncopied, place.cols);
      copy_a.advance(Cut::kDepth * place.matrix[kA].col_stride);
      copy_b.advance(Cut::kDepth * place.matrix[kB].row_stride);
    }
    uncopied -= Cut::kDepth;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Cut::kStages - 1; ++slot) start_step(shared + slot * Cut::kStageElements);

  const GridPlace thread = grid_place<Cut>(thread_index());
  const int thread_a = thread.row() * Cut::A::kPitch, thread_b = Cut::A::kElements + thread.col() * Cut::kColVector;
  Accumulator<T> sum[Cut::kThreadRows][Cut::kThreadCols] = {};
  T* const last_stage = shared + (Cut::kStages - 1) * Cut::kStageElements;
  T* stage = shared;
  constexpr int kAhead = (Cut::kStages - 1) * Cut::kDepth;  // steps of K by which the copies lead
#pragma unroll 1
  while (uncopied + kAhead > 0) {
    cp_async_wait_group<Cut::kStages - 2>();
    block_barrier();  // this step's data are visible, and no thread reads the previous stage any more
    start_step(stage == shared ? last_stage : stage - Cut::kStageElements);
    multiply_step<Cut>(stage + thread_a, reinterpret_cast<const Right*>(stage + thread_b), uncopied + kAhead + Cut::kDepth, sum);
    stage = stage == last_stage ? shared : stage + Cut::kStageElements;
  }
  leave_summing_registers<Cut>(place, sum);
  store_tile<Cut>(place, sum, shared);
}

// The division of a tile, chosen by what its threads own. Called for its return type only.
template <class T, int kRow>
constexpr auto cut_of() {
  constexpr ThreadPartition kPartition = kTiles[kRow].partition;
  if constexpr (kPartition == ThreadPartition::rows) {
    return RowCut<T, kRow>();
  } else if constexpr (kPartition == ThreadPartition::sliced_k) {
    return DeepCut<T, kRow>();
  } else if constexpr (kPartition == ThreadPartition::warp_sliced_k) {
    return DotCut<T, kRow>();
  } else {
    return TileCut<T, kRow>();
  }
}

template <Kind kKind_>
struct SimtFamily {
  using Element = LeftOf<kKind_>;
  using T = Element;
  static constexpr int kAlignment = kBankLineBytes;  // alignment in bytes of the operands in shared memory
  static constexpr Kind kKind = kKind_;
  static constexpr bool kMirrors = false;
  template <int kRow>
  using Cut = decltype(cut_of<T, kRow>());

  template <class Cut>
  __device__ static void multiply(const TilePlace<T>& place, T* shared) {
    if constexpr (Cut::kShape.partition == ThreadPartition::rows) {
      multiply_rows<Cut, RowProducts<Cut, T>>(place, shared);
    } else if constexpr (Cut::kShape.partition == ThreadPartition::sliced_k) {
      multiply_deep<Cut>(place, shared);
    } else if constexpr (Cut::kShape.partition == ThreadPartition::warp_sliced_k) {
      multiply_dots<Cut>(place, shared);
    } else {
      multiply_tile<Cut, RightOf<kKind>>(place, shared);
    }
  }
};

}  // namespace vbgemm
