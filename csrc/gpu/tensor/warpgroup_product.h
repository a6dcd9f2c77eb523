// Warpgroup MMAs (wgmma) in tile kernels: the tensor cores read their operands from shared memory, for four warps together.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tensor/tensor_product.h"

namespace vbgemm {

// sums += A B over one K step; the counterpart of WarpMma (tensor_tile.h).
template <class Traits, class LinesA, class LinesB>
class WarpgroupMma {
 public:
  using T = typename Traits::T;

  __device__ explicit WarpgroupMma(const T*) : first_a_(thread_index() / 128 * LinesA::kOuterStep) {}

  // Called after a step's operands have arrived and before the barrier that makes them visible to the CTA.
  template <class CopyA>
  __device__ static void prepare(const CopyA&, const T*) {
    fence_proxy_async();
  }

  // `start_copies` is called while the MMAs run.
  template <class StartCopies>
  __device__ void multiply(const T* stage, Sums<Traits>& sums, const StartCopies& start_copies) const {
    const MatrixDescriptor a = matrix_descriptor(stage + first_a_, LinesA::kOuterStep * kBytes, LinesA::kEightLines * kBytes);
    const MatrixDescriptor b = matrix_descriptor(stage + Traits::kElementsA, LinesB::kOuterStep * kBytes, LinesB::kEightLines * kBytes);
    wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
      wgmma<Traits::kKind, !LinesA::kKMajor, !LinesB::kKMajor>(moved(a, chunk * LinesA::kDepthStep * kBytes),
                                                               moved(b, chunk * LinesB::kDepthStep * kBytes), sums[0]);
    }
    wgmma_commit_group();
    start_copies();
    wgmma_wait_group<0>();
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  int first_a_;  // of this warpgroup's 64 rows
};

// The transposed product C^T = B^T A^T over one K step: the columns of B, in registers, are the rows of the MMA. For tf32x3, each value is
// split into a big and a small part. B is split in registers; A's big parts are read from its stage, and its small parts from a separate
// buffer after the stages.
template <class Traits, class LinesA, class LinesB>
class TransposedWarpgroupMma {
 public:
  using T = typename Traits::T;

  __device__ explicit TransposedWarpgroupMma(T* behind_stages)
      : small_(behind_stages),
        first_b_(Traits::kElementsA + first_fragment<T, LinesB, false>(WarpPosition<Traits>(thread_index() / kLanes).col, 0)) {}

  template <class CopyA>
  __device__ void prepare(const CopyA& copy_a, T* stage) {
    if constexpr (kSplits) {
      odd_ = !odd_;
      T* const small = small_ + odd_ * Traits::kElementsA;
      float sum = 0;  // sum of all small parts, to detect Inf and NaN
      copy_a.wait_for_visits();
      copy_a.visit(stage, [&](const auto& piece) __attribute__((always_inline)) {
        auto rest = piece;
#pragma unroll
        for (float& x : rest.element) x = tf32_remainder(x);
        sum += sum_of(rest.element);
#pragma unroll
        for (float& x : rest.element) x = float_of_bits(round_to_tf32(x));
        reinterpret_cast<decltype(rest)&>(small[piece.element - stage]) = rest;
      });
      if (!is_finite(sum)) {
        copy_a.visit(stage, [&](auto& piece) __attribute__((always_inline)) {
          T* const rest = small + (piece.element - stage);
#pragma unroll 1
          for (int i = 0; i < static_cast<int>(sizeof(piece) / sizeof(T)); ++i) see_special(piece.element[i], rest[i]);
        });
      }
    }
    fence_proxy_async();
  }

  // The fragments of a chunk are loaded while the previous chunk's MMAs run. For TF32, B's values are rounded in registers, but the tensor
  // cores read A from shared memory and truncate it. So a NaN of A whose payload lies in the low 13 bits is read as an infinity.
  template <class StartCopies>
  __device__ void multiply(const T* stage, Sums<Traits>& sums, const StartCopies& start_copies) const {
    const MatrixDescriptor a = shared_lines(stage);
    if constexpr (!kSplits) {
      each_chunk(stage, [&](int chunk, Fragments& b) __attribute__((always_inline)) {
#pragma unroll
        for (auto& block : b) {
#pragma unroll
          for (uint32_t& x : block) x = round_to_tf32(float_of_bits(x));
        }
        wgmma_fence();
#pragma unroll
        for (int block = 0; block < Traits::kBlocksM; ++block) wgmma_tf32(b[block], moved(a, chunk * kStep), sums[block]);
      });
      start_copies();
      wgmma_wait_group<0>();
    } else {
      // The tensor cores truncate sums where float32 would round, and the error grows with K. So each step has its own accumulators, which
      // are added to the total with rounding.
      const MatrixDescriptor small_a = shared_lines(small_ + odd_ * Traits::kElementsA);
      Sums<Traits> step;
      each_chunk(stage, [&](int chunk, Fragments& b) __attribute__((always_inline)) {
        Fragments big, small;
        split(b, big, small);
        wgmma_fence();
#pragma unroll
        for (int block = 0; block < Traits::kBlocksM; ++block) {
          wgmma_tf32(small[block], moved(a, chunk * kStep), step[block], chunk > 0);
          wgmma_tf32(big[block], moved(small_a, chunk * kStep), step[block]);
          wgmma_tf32(big[block], moved(a, chunk * kStep), step[block]);
        }
      });
      start_copies();
      wgmma_wait_group<0>();
#pragma unroll
      for (int i = 0; i < Traits::kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < Traits::kBlocksN; ++j) {
#pragma unroll
          for (int n = 0; n < 4; ++n) sums[i][j][n] += step[i][j][n];
        }
      }
    }
  }

 private:
  static constexpr bool kSplits = Traits::kKind == Kind::tf32x3;
  static constexpr int kBytes = static_cast<int>(sizeof(T)), kStep = LinesA::kDepthStep * kBytes;
  using Fragments = uint32_t[Traits::kBlocksM][4];  // of a chunk of B

  __device__ static MatrixDescriptor shared_lines(const T* first) {
    return matrix_descriptor(first, LinesA::kOuterStep * kBytes, LinesA::kEightLines * kBytes);
  }

  // Issues the MMAs of each chunk, without waiting for earlier ones.
  template <class Action>
  __device__ __forceinline__ void each_chunk(const T* stage, const Action& action) const {
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
      Fragments b;
      load_halves<LinesB, 2 * Traits::kBlocksM, false>(stage + first_b_, chunk,
                                                       [&](int half, int deep, auto x) { b[half / 2][2 * deep + half % 2] = x; });
      action(chunk, b);
      wgmma_commit_group();
    }
  }

  T* small_;
  int first_b_;
  bool odd_ = false;
};

}  // namespace vbgemm
