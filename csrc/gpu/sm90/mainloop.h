// The consumers' mainloop: asynchronous warpgroup MMAs (wgmma) on each stage, while later stages arrive.
#pragma once
#include <type_traits>

#include "gpu/sm90/pipeline.h"

namespace vbgemm {

// For profiling: a build without MMAs times the remaining parts.
#ifndef VBGEMM_PIPELINE_PRODUCTS
#define VBGEMM_PIPELINE_PRODUCTS 1
#endif

// The MMAs of consumer warpgroup `half` (0 or 1) on one stage. Each variant has multiply<kChunks>(stage, half, sums, adds), which issues
// the MMAs of the stage's first kChunks chunks and returns once all MMAs on the previous stage have completed. If `adds` is false, the
// accumulators are overwritten.
//
// 16-bit types: the tensor cores read both operands from shared memory. kMnMajorA, kMnMajorB: whether the operand is MN-major (contiguous
// along M or N) instead of K-major.
template <class Traits, bool kMnMajorA, bool kMnMajorB, Kind kKind = Traits::kKind>
class StageMma {
 public:
  template <int kChunks>
  __device__ __forceinline__ void multiply(const unsigned char* stage, int half, float (&sums)[Traits::kBlocks][4], bool adds) const {
    // Byte offset from one K chunk to the next: two 16-byte vectors within each line if K-major, 16 lines if MN-major.
    constexpr int kChunkA = kMnMajorA ? Traits::kChunk * 128 : 32, kChunkB = kMnMajorB ? Traits::kChunk * 128 : 32;
    const MatrixDescriptor a = matrix_descriptor(stage + half * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    const MatrixDescriptor b = matrix_descriptor(stage + Traits::kBoxesA * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      wgmma<Traits::kKind, kMnMajorA, kMnMajorB>(moved(a, chunk * kChunkA), moved(b, chunk * kChunkB), sums, adds || chunk > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<1>();
  }
};

// TF32: A comes from registers, where it is rounded, and the tensor cores truncate B (a NaN in B whose payload has only its low 13 bits set
// becomes Inf). Both are K-major. There is one wgmma group per chunk, so that each chunk of A is loaded while three MMAs run.
template <class Traits>
class StageMma<Traits, false, false, Kind::tf32> {
 public:
  template <int kChunks>
  __device__ __forceinline__ void multiply(const unsigned char* stage, int half, float (&sums)[Traits::kBlocks][4], bool adds) {
    static_assert(kChunks == Traits::kChunks);
    const MatrixDescriptor b = matrix_descriptor(stage + Traits::kBoxesA * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    // The swizzle XORs the vector index with the line index modulo 8, which is equal for the lane's two lines.
    const int lane = thread_index() % 32, line = thread_index() / 32 % 4 * 16 + lane / 4;
    const unsigned char* const from = stage + half * Traits::kBoxBytes + line * 128 + lane % 4 * 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      wgmma_wait_group<kChunks - 1>();  // the previous stage's MMA that read these registers has completed
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int vector = (2 * chunk + i / 2) ^ (lane / 4);
        a_[chunk][i] = round_to_tf32(*reinterpret_cast<const float*>(from + i % 2 * (8 * 128) + vector * 16));
      }
      wgmma_fence();
      wgmma_tf32(a_[chunk], moved(b, chunk * 32), sums, adds || chunk > 0);
      wgmma_commit_group();
    }
  }

 private:
  uint32_t a_[Traits::kChunks][4];
};

// 8-bit operands, K-major; always accumulates, into accumulators that start at zero.
template <class Traits>
class StageMma8Bit {
 public:
  template <int kChunks, class Sum>
  __device__ __forceinline__ void multiply(const unsigned char* stage, int half, Sum (&sums)[Traits::kBlocks][4], bool) const {
    const MatrixDescriptor a = matrix_descriptor(stage + half * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    const MatrixDescriptor b = matrix_descriptor(stage + Traits::kBoxesA * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) wgmma_8bit<Traits::kKind>(moved(a, chunk * 32), moved(b, chunk * 32), sums, true);
    wgmma_commit_group();
    wgmma_wait_group<1>();
  }
};

// Multiplies `depth` K elements, which arrive in the ring's stages, for the 64 rows of a consumer warpgroup. clear(stage, begin) may zero
// the end of a last stage with fewer than kDepth K elements before it is multiplied. With kWholeStages the whole last stage is multiplied,
// otherwise only its chunks that hold K elements. release(stage) is called once no MMA reads the stage any more; then overlapped_work()
// runs, during the MMAs of the next stage.
template <class Traits, bool kMnMajorA, bool kMnMajorB, bool kWholeStages, class Shared, class Sum, class Clear, class OverlappedWork,
          class Release>
__device__ inline void multiply_stages(Shared& shared, int depth, int half, PipelineState<Traits::kStages>& stages,
                                       Sum (&sums)[Traits::kBlocks][4], const Clear& clear, const OverlappedWork& overlapped_work,
                                       const Release& release) {
  std::conditional_t<Traits::kIs8Bit, StageMma8Bit<Traits>, StageMma<Traits, kMnMajorA, kMnMajorB>> products;
  int before = -1;  // the stage that MMAs in flight may still read
  for (int k = 0; k < depth; k += Traits::kDepth, stages.advance()) {
    mbarrier_wait(shared.full[stages.index], stages.parity);
    if (Traits::kGathers) fence_proxy_async();
    const int left = depth - k;
    if (left < Traits::kDepth) clear(stages.index, left);
    if (VBGEMM_PIPELINE_PRODUCTS) {
      // shfl tells the compiler that the index is warp-uniform. Otherwise it computes matrix descriptors in ordinary registers and moves
      // each to a uniform register between the MMAs of a step, which takes up to 12% longer (docs/design/ragged.md).
      const unsigned char* const stage = shared.stage[shfl(stages.index, 0)];
      // Each chunk count has its own code: with a branch between MMAs, the compiler would make them wait for each other.
      static_assert(Traits::kChunks == 4);
      if constexpr (kWholeStages) {
        products.template multiply<4>(stage, half, sums, k > 0);
      } else if (left > 3 * Traits::kChunk) {
        products.template multiply<4>(stage, half, sums, k > 0);
      } else if (left > 2 * Traits::kChunk) {
        products.template multiply<3>(stage, half, sums, k > 0);
      } else if (left > Traits::kChunk) {
        products.template multiply<2>(stage, half, sums, k > 0);
      } else {
        products.template multiply<1>(stage, half, sums, k > 0);
      }
    }
    if (before >= 0) release(before);
    before = stages.index;
    overlapped_work();
  }
  wgmma_wait_group<0>();
  // Keeps the compiler from moving later reads of the accumulators above the wait.
#pragma unroll
  for (auto& block : sums) {
#pragma unroll
    for (Sum& x : block) keep_in_place(x);
  }
  release(before);
}

}  // namespace vbgemm
