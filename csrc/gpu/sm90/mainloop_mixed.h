// The mainloop of products of 16-bit rows with 8-bit weights, which stay 8-bit until they are in registers: such products are bound by the
// memory's rate, and mixtures of experts that answer few tokens read hardly anything but weights. The result is computed transposed, C^T =
// B^T A^T, because wgmma takes only its first factor from registers. The first factor's lines are then columns of weights, and its second
// one's are rows of A, of which a tile may have as few as a group has.
//
// The tensor cores sum the products of 128 steps of K, those of a stage; these are added to the tile's sums times the scales of the
// weights.
#pragma once
#include "gpu/sm90/pipeline.h"
#include "gpu/tile/arithmetic.h"
#include "ragged.h"

namespace vbgemm {

// The scales of the columns of weights that a consumer thread has, two in each of its two boxes, for one stage after another.
class WeightScales {
 public:
  static constexpr int kColumns = 4;

  // Where the scales of the first stage are, and the distance to those of the next one; 0 where all stages have the same. Null: 1.
  __device__ WeightScales(const float* const (&column)[kColumns], int step) : step_(step) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) column_[i] = column[i];
    load();
  }

  // Starts to load the scales of the next stage, if there is one. Nothing waits for them before the end of that stage: a copy of them here
  // would.
  __device__ void advance(bool more) {
    if (!more || step_ == 0) return;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) column_[i] += step_;
    load();
  }
  __device__ float of(int column) const { return scale_[column]; }

 private:
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) scale_[i] = column_[i] ? *column_[i] : 1;
  }

  const float* column_[kColumns];
  int step_;
  float scale_[kColumns];
};

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

// Multiplies a tile's stages, of which each has one or more steps of 128 of K. kRowBlocks: of 8 rows, as many as the tile may have.
template <class Cut, int kRowBlocks, class Shared, class Overlapped, class Release>
__device__ inline void multiply_mixed_stages(Shared& shared, int depth, int half, PipelineState<Cut::kStages>& stages,
                                             float (&sums)[Cut::kBlocks][4], WeightScales& scales, const Overlapped& overlapped,
                                             const Release& release) {
  constexpr int kParts = 2, kPart = Cut::kBlocks / kParts;           // boxes of weights, and blocks of 8 rows of each
  constexpr int kStep = 128, kChunks = kStep / 16, kChunksOfBox = 64 / 16;  // of 16 of K: in a step, and in a box of A
  constexpr int kPerByte = Cut::kPerByte;                                   // weights
  using Pair = std::conditional_t<kPerByte == 1, uint16_t, uint8_t>;
  const int lane = thread_index() % 32, line = thread_index() / 32 % 4 * 16 + lane / 4;
  for (int k = 0; k < depth; k += Cut::kDepth, stages.advance()) {
    mbarrier_wait(shared.full[stages.index], stages.parity);
    const unsigned char* const stage = shared.stage[shfl(stages.index, 0)];
#pragma unroll 1
    for (int step = 0; step < kPerByte; ++step) {
      const int next = k + (step + 1) * kStep;
      const bool last = step == kPerByte - 1 || next >= depth;  // of the stage
      float products[kParts][kRowBlocks][4];
      uint32_t weights[kParts][kChunks][4];
      // All loads come first, and a box's numbers are widened while the products of the other one run: no load passes a fence.
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        // The swizzle exchanges the 16-byte vectors of a line by the line's number, of which the lane's two lines have the same remainder by
        // 8. A vector has the weights of one or two chunks.
        const unsigned char* const from =
            stage + Cut::kBoxesA * Cut::kBoxBytesA + (half + 2 * part) * Cut::kBoxBytes + line * 128 + lane % 4 * (2 / kPerByte);
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int vector = (step * kChunks + chunk) / kPerByte ^ lane / 4;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const unsigned char* const two = from + vector * 16 + i % 2 * (8 * 128) + (chunk % kPerByte * 2 + i / 2) * (8 / kPerByte);
            weights[part][chunk][i] = *reinterpret_cast<const Pair*>(two);
          }
        }
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (auto& chunk : weights[part]) {
#pragma unroll
          for (uint32_t& pair : chunk) pair = widened_pair<Cut::kKind, Cut::kWeights>(pair);
        }
        wgmma_fence();
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const unsigned char* const box = stage + (step * 2 + chunk / kChunksOfBox) * Cut::kBoxBytesA;
          const MatrixDescriptor rows = matrix_descriptor(box, Cut::kBoxBytesA, Cut::kBoxesAlongK * Cut::kBoxBytesA);
          wgmma_from_registers<Cut::kKind>(weights[part][chunk], moved(rows, chunk % kChunksOfBox * 32), products[part], chunk > 0);
        }
        wgmma_commit_group();
      }
      if (step == 0) overlapped();
      wgmma_wait_group<0>();
      if (last) release(stages.index);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            keep_in_place(products[part][block][i]);
            float& sum = sums[part * kPart + block][i];
            sum = multiply_add(products[part][block][i], scales.of(2 * part + i / 2), sum);
          }
        }
      }
      scales.advance(next < depth);
      if (last) break;
    }
  }
}

}  // namespace vbgemm
