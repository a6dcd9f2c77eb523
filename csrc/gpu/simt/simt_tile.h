// One tile of C on the SIMT units: a pipeline of asynchronous copies along K, then multiply-adds from shared memory.
#pragma once
#include "gpu/simt/deep_tile.h"
#include "gpu/simt/dot_tile.h"
#include "gpu/simt/row_tile.h"
#include "gpu/tile/operand_copy.h"
#include "gpu/tile/tile_place.h"
#include "gpu/tile/tile_store.h"

namespace vbgemm {

// sum += A B over one K step in shared memory. `depth` is the number of K elements that exist; the others are zero. Every tile walks K
// upwards for each element, so that the bits of a result do not depend on the plan (unless the plan splits K).
template <class Traits, class T, class Right, class Sum>
__device__ inline void multiply_step(const T* shared_a, const Right* shared_b, int depth,
                                     Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols]) {
  using DepthVector = Vector<T, Traits::kDepthVector>;
  using ColVector = Vector<Right, Traits::kColVector>;
  const auto multiply_chunk = [&] {
#pragma unroll
    for (int k = 0; k < Traits::kChunk; k += Traits::kDepthVector) {
      DepthVector a[Traits::kThreadRows];
#pragma unroll
      for (int i = 0; i < Traits::kThreadRows; ++i) {
        a[i] = *reinterpret_cast<const DepthVector*>(shared_a + i * Traits::kGridRows * Traits::A::kPitch + k);
      }
#pragma unroll
      for (int l = 0; l < Traits::kDepthVector; ++l) {
        Sum b[Traits::kThreadCols];
#pragma unroll
        for (int j = 0; j < Traits::kThreadCols; j += Traits::kColVector) {
          const ColVector cols = *reinterpret_cast<const ColVector*>(shared_b + (k + l) * Traits::B::kPitch + j * Traits::kGridCols);
#pragma unroll
          for (int v = 0; v < Traits::kColVector; ++v) b[j + v] = widen(cols.element[v]);
        }
#pragma unroll
        for (int i = 0; i < Traits::kThreadRows; ++i) {
          const Sum x = widen(a[i].element[l]);
#pragma unroll
          for (int j = 0; j < Traits::kThreadCols; ++j) sum[i][j] = multiply_add(x, b[j], sum[i][j]);
        }
      }
    }
    shared_a += Traits::kChunk;
    shared_b += Traits::kChunk * Traits::B::kPitch;
  };
  // One chunk after another, because unrolling them would need more registers than there are; chunks after the end of K are skipped. The
  // first chunk is peeled if its code is short, so that the compiler can schedule it among the code around it. If it is long, the extra
  // instruction fetches would cost more than peeling gains.
  constexpr bool kPeelsFirstChunk = Traits::kSums <= 16;
  int left = depth < Traits::kDepth ? depth : Traits::kDepth;
  if (kPeelsFirstChunk) multiply_chunk(), left -= Traits::kChunk;
#pragma unroll 1
  for (; left > 0; left -= Traits::kChunk) multiply_chunk();
}

// Moves the sums to registers other than the accumulators. A vector store takes adjacent registers. Without this move the compiler would
// accumulate in those, and six to eight times as many multiply-adds of a large tile would read all operands from one bank of the register
// file, which takes two cycles (docs/design/kernels.md, K11). (`depth` is never negative, but the compiler does not know this.)
template <class Traits, class T, class Sum>
__device__ inline void move_to_store_registers(const ResolvedTile<T>& place, Sum (&sum)[Traits::kThreadRows][Traits::kThreadCols]) {
  if constexpr (std::is_same_v<Sum, float> && !kCdna && Traits::kIsLarge) {
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
template <class Traits, class Right, class T>
__device__ inline void multiply_tile(const ResolvedTile<T>& place, T* shared) {
  OperandCopy<T, typename Traits::A, Traits::kThreads, Traits::kL2Prefetch> copy_a(place.matrix[kA]);
  OperandCopy<T, typename Traits::B, Traits::kThreads, Traits::kL2Prefetch, Traits::kCopyRowsB> copy_b(place.matrix[kB]);
  int uncopied = place.depth;  // negative once the copies have run past the end of K
  const auto start_step = [&](T* stage) {
    if (uncopied > 0) {
      copy_a.start(stage, place.rows, uncopied);
      copy_b.start(stage + Traits::A::kElements, uncopied, place.cols);
      copy_a.advance(Traits::kDepth * place.matrix[kA].col_stride);
      copy_b.advance(Traits::kDepth * place.matrix[kB].row_stride);
    }
    uncopied -= Traits::kDepth;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Traits::kStages - 1; ++slot) start_step(shared + slot * Traits::kStageElements);

  const ThreadPosition thread = grid_place<Traits>(thread_index());
  const int thread_a = thread.row() * Traits::A::kPitch, thread_b = Traits::A::kElements + thread.col() * Traits::kColVector;
  Accumulator<T> sum[Traits::kThreadRows][Traits::kThreadCols] = {};
  T* const last_stage = shared + (Traits::kStages - 1) * Traits::kStageElements;
  T* stage = shared;
  constexpr int kPrefetchDepth = (Traits::kStages - 1) * Traits::kDepth;  // K elements by which copies lead the multiply-adds
#pragma unroll 1
  while (uncopied + kPrefetchDepth > 0) {
    cp_async_wait_group<Traits::kStages - 2>();
    block_barrier();  // this step's data are visible, and no thread reads the previous stage any more
    start_step(stage == shared ? last_stage : stage - Traits::kStageElements);
    multiply_step<Traits>(stage + thread_a, reinterpret_cast<const Right*>(stage + thread_b), uncopied + kPrefetchDepth + Traits::kDepth,
                          sum);
    stage = stage == last_stage ? shared : stage + Traits::kStageElements;
  }
  move_to_store_registers<Traits>(place, sum);
  store_tile<Traits>(place, sum, shared);
}

// The tile traits for a tile's thread partition. Called for its return type only.
template <class T, int kRow>
constexpr auto traits_of() {
  constexpr ThreadPartition kPartition = kTiles[kRow].partition;
  if constexpr (kPartition == ThreadPartition::rows) {
    return RowTraits<T, kRow>();
  } else if constexpr (kPartition == ThreadPartition::sliced_k) {
    return DeepTraits<T, kRow>();
  } else if constexpr (kPartition == ThreadPartition::warp_sliced_k) {
    return DotTraits<T, kRow>();
  } else {
    return TileTraits<T, kRow>();
  }
}

// How ordinary units compute tiles of an arithmetic.
template <Kind kKind_>
struct SimtPolicy {
  using Element = LeftOf<kKind_>;
  using T = Element;
  static constexpr int kAlignment = kBankLineBytes;  // alignment in bytes of the operands in shared memory
  static constexpr Kind kKind = kKind_;
  static constexpr bool kMirrors = false;
  template <int kRow>
  using Traits = decltype(traits_of<T, kRow>());

  template <class Traits>
  __device__ static void multiply(const ResolvedTile<T>& place, T* shared) {
    if constexpr (Traits::kShape.partition == ThreadPartition::rows) {
      multiply_rows<Traits, RowProducts<Traits, T>>(place, shared);
    } else if constexpr (Traits::kShape.partition == ThreadPartition::sliced_k) {
      multiply_deep<Traits>(place, shared);
    } else if constexpr (Traits::kShape.partition == ThreadPartition::warp_sliced_k) {
      multiply_dots<Traits>(place, shared);
    } else {
      multiply_tile<Traits, RightOf<kKind>>(place, shared);
    }
  }
};

}  // namespace vbgemm
