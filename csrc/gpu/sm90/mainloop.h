// What the consumers do with the stages of a tile: warpgroup products, which run asynchronously while the next stages arrive.
#pragma once
#include <type_traits>

#include "gpu/sm90/pipeline.h"

namespace vbgemm {

// For measurements: a build without products shows how fast the remaining parts are alone.
#ifndef VBGEMM_PIPELINE_PRODUCTS
#define VBGEMM_PIPELINE_PRODUCTS 1
#endif

// The products of a consumer warpgroup (`half`: 0 or 1) with a stage. Each form has multiply<kChunks>(stage, half, sums, adds), which
// starts those of the stage's first chunks and returns when all products with the stage before have ended. If `adds` is false, the previous
// values of the sums are ignored.
//
// 16-bit types: the tensor cores read both operands from shared memory. kMnMajorA, kMnMajorB: whether the operand is MN-major, that is
// contiguous along M or N, and not K-major.
template <class Traits, bool kMnMajorA, bool kMnMajorB, Kind kKind = Traits::kKind>
class StageMma {
 public:
  template <int kChunks>
  __device__ __forceinline__ void multiply(const unsigned char* stage, int half, float (&sums)[Traits::kBlocks][4], bool adds) const {
    // Byte offsets of a chunk of K: two 16-byte vectors in each line of a K-major operand, 16 lines of an MN-major one.
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

// TF32: A comes from registers, where it is rounded, and the tensor cores truncate B (a NaN in B whose payload has only its low
// 13 bits set becomes Inf). Both are K-major. There is one wgmma group per chunk, so that each chunk of A is loaded while three products
// run.
template <class Traits>
class StageMma<Traits, false, false, Kind::tf32> {
 public:
  template <int kChunks>
  __device__ __forceinline__ void multiply(const unsigned char* stage, int half, float (&sums)[Traits::kBlocks][4], bool adds) {
    static_assert(kChunks == Traits::kChunks);
    const MatrixDescriptor b = matrix_descriptor(stage + Traits::kBoxesA * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    // The swizzle exchanges the 16-byte vectors of a line by the line's number, of which the lane's two lines have the same remainder by 8.
    const int lane = thread_index() % 32, line = thread_index() / 32 % 4 * 16 + lane / 4;
    const unsigned char* const from = stage + half * Traits::kBoxBytes + line * 128 + lane % 4 * 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      wgmma_wait_group<kChunks - 1>();  // the products that read these registers in the stage before have ended
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

// 8 bits, K-major, added to sums that begin at zero.
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

// Multiplies `depth` steps of K, which arrive in the ring's stages, for the 64 rows of a consumer warpgroup. clear(stage, begin) may change
// a last stage of less than kDepth steps before it is multiplied. If kWholeStages, all of that stage is multiplied, otherwise its chunks
// with steps of K. release(stage) is called when products no longer read a stage, and after it overlapped(), while the products of the next
// stage run.
template <class Traits, bool kMnMajorA, bool kMnMajorB, bool kWholeStages, class Shared, class Sum, class Clear, class Overlapped,
          class Release>
__device__ inline void multiply_stages(Shared& shared, int depth, int half, PipelineState<Traits::kStages>& stages,
                                       Sum (&sums)[Traits::kBlocks][4], const Clear& clear, const Overlapped& overlapped,
                                       const Release& release) {
  std::conditional_t<Traits::kIs8Bit, StageMma8Bit<Traits>, StageMma<Traits, kMnMajorA, kMnMajorB>> products;
  int before = -1;  // the stage that products in flight may still be reading
  for (int k = 0; k < depth; k += Traits::kDepth, stages.advance()) {
    mbarrier_wait(shared.full[stages.index], stages.parity);
    if (Traits::kGathers) fence_proxy_async();
    const int left = depth - k;
    if (left < Traits::kDepth) clear(stages.index, left);
    if (VBGEMM_PIPELINE_PRODUCTS) {
      // The same for all lanes, and the compiler has to know it: otherwise it computes matrix descriptors in ordinary registers and moves
      // each to uniform ones between the products of a step, which takes up to 12% longer (docs/design/ragged.md).
      const unsigned char* const stage = shared.stage[shfl(stages.index, 0)];
      // Each number of chunks has code of its own: with a branch between products, the compiler lets them wait for each other.
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
    overlapped();
  }
  wgmma_wait_group<0>();
  // The code below reads the sums; this keeps the compiler from moving it above the wait.
#pragma unroll
  for (auto& block : sums) {
#pragma unroll
    for (Sum& x : block) keep_in_place(x);
  }
  release(before);
}

}  // namespace vbgemm
