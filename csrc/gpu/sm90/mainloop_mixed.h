// The mainloop for 16-bit rows times 8-bit or 4-bit weights. The weights stay narrow until they are in registers: these products are
// memory-bound, and a mixture of experts with few tokens reads hardly anything but weights. The kernel computes the transpose, C^T = B^T
// A^T, because wgmma takes only its first operand from registers. The first operand's lines are then columns of weights, the second
// operand's lines are rows of A, and a tile can have as few rows as a group. The tensor cores accumulate 128 K elements (a step) at a time;
// a stage of 4-bit weights holds two steps. Each step's result is multiplied by the weights' scales and added to the tile's accumulators.
#pragma once
#include <type_traits>

#include "gpu/sm90/pipeline.h"
#include "gpu/sm90/stage_scales.h"
#include "gpu/tile/arithmetic.h"
#include "ragged.h"

namespace vbgemm {

inline constexpr int kFewRows = 8;  // tiles with at most this many rows copy and multiply only this many

// Widens two adjacent narrow values to 16 bits, exactly. Logic and conversion instructions run at half the rate of arithmetic and limit
// these kernels.
template <Kind kKind, DType kWeights>
__device__ __forceinline__ uint32_t widened_pair(uint32_t bytes) {
  constexpr bool kBfloat16 = kKind == Kind::bf16;
  constexpr uint32_t kSigns = 0x00800080u;
  if constexpr (kWeights == DType::s8 && kBfloat16) {
    // With the exponent of 128 in front, a byte b >= 0 reads as 128 + b. For b < 0 the sign bit falls into the exponent, and it reads as 2
    // (b + 256).
    const uint32_t pair = byte_permute(bytes, 0x43434343u, 0x4140);
    return fma_pair<kKind>(pair, and_xor(pair, kSigns, 0x3f803f80u), and_or(pair, kSigns, 0xc300c300u));
  } else if constexpr (kWeights == DType::s8) {
    // With the exponent of 1024 in front and its sign bit flipped, byte b reads as 1024 + 128 + b.
    return fma_pair<kKind>(byte_permute(bytes, 0x64646464u, 0x4140) ^ kSigns, 0x3c003c00u, 0xe480e480u);
  } else if constexpr (kWeights == DType::s4) {
    // With the exponent of p = 128 or 1024 in front and its sign bit flipped, value x reads as p + 8 + x.
    const uint32_t pair = and_xor(bytes * 0x1001u, 0x000f000fu, kBfloat16 ? 0x43084308u : 0x64086408u);
    return fma_pair<kKind>(pair, kBfloat16 ? 0x3f803f80u : 0x3c003c00u, kBfloat16 ? 0xc308c308u : 0xe408e408u);
  } else {
    static_assert(kWeights == DType::e4m3);
    const uint32_t half = widen_e4m3(static_cast<uint16_t>(bytes));
    if constexpr (!kBfloat16) return half;
    return narrow_pair<kKind>(widen(Float16{static_cast<uint16_t>(half)}), widen(Float16{static_cast<uint16_t>(half >> 16)}));
  }
}

// Issues the MMAs of one step (128 K elements) of a stage, for the tile's first kRowBlocks blocks of 8 rows. line: the first of the lane's
// two lines.
template <class Traits, int kRowBlocks>
__device__ __forceinline__ void start_mixed_mma(const unsigned char* stage, int step, int half, int line, int lane,
                                                float (&products)[Traits::kParts][kRowBlocks][4]) {
  constexpr int kValuesPerByte = Traits::kValuesPerByte, kChunks = Traits::kStep / 16,
                kChunksPerBox = 64 / 16;  // chunks of 16 K elements: in a step, and in a box of A
  using Pair = std::conditional_t<kValuesPerByte == 1, uint16_t, uint8_t>;
  uint32_t weights[Traits::kParts][kChunks][4];
  // All loads come first, because no load can move past a fence. One box's weights are widened while the other box's MMAs run.
#pragma unroll
  for (int part = 0; part < Traits::kParts; ++part) {
    // The swizzle XORs the vector index with the line index modulo 8, which is equal for the lane's two lines. A vector holds the weights
    // of one chunk (8-bit) or two chunks (4-bit).
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

// kRowBlocks: the number of 8-row blocks that are computed.
template <class Traits, int kRowBlocks, class Shared, class OverlappedWork, class Release>
__device__ inline void multiply_mixed_stages(Shared& shared, int depth, int half, PipelineState<Traits::kStages>& stages,
                                             float (&sums)[Traits::kBlocks][4], StageScales& scales, const OverlappedWork& overlapped_work,
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
      overlapped_work();
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
