// The mainloop of products of 16-bit rows with weights of 8 or 4 bits, which stay narrow until they are in registers: such products are
// bound by the memory's rate, and mixtures of experts that answer few tokens read hardly anything but weights. The result is computed
// transposed, C^T = B^T A^T, because wgmma takes only its first factor from registers. The first factor's lines are then columns of
// weights, and its second one's are rows of A, of which a tile may have as few as a group has.
//
// The tensor cores sum the products of 128 steps of K, of which a stage of 4-bit weights has two; these are added to the tile's sums times
// the scales of the weights.
#pragma once
#include <type_traits>

#include "gpu/sm90/pipeline.h"
#include "gpu/sm90/stage_scales.h"
#include "gpu/tile/arithmetic.h"
#include "ragged.h"

namespace vbgemm {

inline constexpr int kFewRows = 8;  // tiles of so few rows copy and multiply no more

// Two adjacent narrow numbers as two of 16 bits, which represent all of them. Logic and conversions take twice as long as arithmetic, and
// limit these kernels.
template <Kind kKind, DType kWeights>
__device__ __forceinline__ uint32_t widened_pair(uint32_t bytes) {
  constexpr bool kBfloat16 = kKind == Kind::bf16;
  constexpr uint32_t kSigns = 0x00800080u;
  if constexpr (kWeights == DType::s8 && kBfloat16) {
    // Behind the exponent of 128, byte b >= 0 is 128 + b. A sign bit falls into the exponent, and b < 0 becomes 2 (b + 256).
    const uint32_t pair = byte_permute(bytes, 0x43434343u, 0x4140);
    return fma_pair<kKind>(pair, and_xor(pair, kSigns, 0x3f803f80u), and_or(pair, kSigns, 0xc300c300u));
  } else if constexpr (kWeights == DType::s8) {
    // Behind the exponent of 1024, and with the other sign bit, byte b is 1024 + 128 + b.
    return fma_pair<kKind>(byte_permute(bytes, 0x64646464u, 0x4140) ^ kSigns, 0x3c003c00u, 0xe480e480u);
  } else if constexpr (kWeights == DType::s4) {
    // Behind the exponent of 128 or 1024, and with the other sign bit, number x is that power + 8 + x.
    const uint32_t pair = and_xor(bytes * 0x1001u, 0x000f000fu, kBfloat16 ? 0x43084308u : 0x64086408u);
    return fma_pair<kKind>(pair, kBfloat16 ? 0x3f803f80u : 0x3c003c00u, kBfloat16 ? 0xc308c308u : 0xe408e408u);
  } else {
    static_assert(kWeights == DType::e4m3);
    const uint32_t half = widen_e4m3(static_cast<uint16_t>(bytes));
    if constexpr (!kBfloat16) return half;
    return narrow_pair<kKind>(widen(Float16{static_cast<uint16_t>(half)}), widen(Float16{static_cast<uint16_t>(half >> 16)}));
  }
}

// Starts the products of a step of a stage: of 128 of K, with the first rows of the tile, 8 a block. line: the first one of the lane's two.
template <class Traits, int kRowBlocks>
__device__ __forceinline__ void start_mixed_mma(const unsigned char* stage, int step, int half, int line, int lane,
                                                float (&products)[Traits::kParts][kRowBlocks][4]) {
  constexpr int kValuesPerByte = Traits::kValuesPerByte, kChunks = Traits::kStep / 16,
                kChunksPerBox = 64 / 16;  // of 16 of K: in a step, and in a box of A
  using Pair = std::conditional_t<kValuesPerByte == 1, uint16_t, uint8_t>;
  uint32_t weights[Traits::kParts][kChunks][4];
  // All loads come first, and a box's numbers are widened while the products of the other one run: no load passes a fence.
#pragma unroll
  for (int part = 0; part < Traits::kParts; ++part) {
    // The swizzle exchanges the 16-byte vectors of a line by the line's number, of which the lane's two lines have the same remainder by 8.
    // A vector has the weights of one chunk, or of two.
    const unsigned char* const from =
        stage + Traits::kBoxesA * Traits::kBoxBytesA + (half + 2 * part) * Traits::kBoxBytes + line * 128 + lane % 4 * (2 / kValuesPerByte);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int vector = ((step * kChunks + chunk) / kValuesPerByte) ^ (lane / 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned char* const two =
            from + vector * 16 + i % 2 * (8 * 128) + (chunk % kValuesPerByte * 2 + i / 2) * (8 / kValuesPerByte);
        weights[part][chunk][i] = *reinterpret_cast<const Pair*>(two);
      }
    }
  }
#pragma unroll
  for (int part = 0; part < Traits::kParts; ++part) {
#pragma unroll
    for (auto& chunk : weights[part]) {
#pragma unroll
      for (uint32_t& pair : chunk) pair = widened_pair<Traits::kKind, Traits::kWeights>(pair);
    }
    wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const unsigned char* const box = stage + (step * (kChunks / kChunksPerBox) + chunk / kChunksPerBox) * Traits::kBoxBytesA;
      const MatrixDescriptor rows = moved(matrix_descriptor(box, Traits::kBoxBytesA, 1024), chunk % kChunksPerBox * 32);
      wgmma_from_registers<Traits::kKind>(weights[part][chunk], rows, products[part], chunk > 0);
    }
    wgmma_commit_group();
  }
}

// kRowBlocks: blocks of 8 rows, as many as the tile may have.
template <class Traits, int kRowBlocks, class Shared, class Overlapped, class Release>
__device__ inline void multiply_mixed_stages(Shared& shared, int depth, int half, PipelineState<Traits::kStages>& stages,
                                             float (&sums)[Traits::kBlocks][4], StageScales& scales, const Overlapped& overlapped,
                                             const Release& release) {
  constexpr int kPart = Traits::kBlocks / Traits::kParts;
  const int lane = thread_index() % 32, line = thread_index() / 32 % 4 * 16 + lane / 4;
  for (int k = 0; k < depth; stages.advance()) {
    mbarrier_wait(shared.full[stages.index], stages.parity);
    const unsigned char* const stage = shared.stage[shfl(stages.index, 0)];
    bool last = false;
#pragma unroll 1
    for (int step = 0; !last; ++step) {
      k += Traits::kStep;
      last = step == Traits::kDepth / Traits::kStep - 1 || k >= depth;  // of the stage
      float products[Traits::kParts][kRowBlocks][4];
      start_mixed_mma<Traits>(stage, step, half, line, lane, products);
      overlapped();
      wgmma_wait_group<0>();
      if (last) release(stages.index);
#pragma unroll
      for (int part = 0; part < Traits::kParts; ++part) {
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            keep_in_place(products[part][block][i]);
            float& sum = sums[part * kPart + block][i];
            sum = multiply_add(products[part][block][i], scales[2 * part + i / 2], sum);
          }
        }
      }
      scales.load_next(k < depth);
      scales.advance();
    }
  }
}

}  // namespace vbgemm
