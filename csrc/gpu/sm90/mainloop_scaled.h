// The mainloops of 8-bit operands. A scale applies to 128 K elements, which is one stage. The tensor cores accumulate one stage, and the
// result times the stage's scales is added to the float32 accumulators. This promotion also keeps the sums accurate: the tensor cores add
// products of 8-bit floats with about 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2), so they accumulate across stages only if the
// caller allows it.
#pragma once
#include <type_traits>

#include "gpu/sm90/mainloop.h"
#include "gpu/sm90/stage_scales.h"
#include "gpu/tile/arithmetic.h"
#include "ragged.h"

namespace vbgemm {

// A consumer thread's scales: two for its rows, then two for the halves of the tile's columns.
constexpr int kScaledRows = 2;
__device__ inline float scale_of(const StageScales& scales, int row, int half) { return scales[row] * scales[kScaledRows + half]; }

// Like multiply_stages, but always multiplies whole stages, which are zero after the last K element. It multiplies 128 columns at a time,
// because next to the tile's accumulators there are registers for one stage's sums of half of the columns only. A stage's int8 sums are
// below 2^22 and therefore exact in float32.
template <class Traits, class Shared, class OverlappedWork, class Release>
__device__ inline void multiply_scaled_stages(Shared& shared, int depth, int half, PipelineState<Traits::kStages>& stages,
                                              float (&sums)[Traits::kBlocks][4], StageScales& scales, const OverlappedWork& overlapped_work,
                                              const Release& release) {
  static_assert(Traits::kDepth == kScaledDepth && Traits::kStages > 1);  // the next stage is waited for before this one is released
  constexpr int kPart = 16, kParts = Traits::kBlocks / kPart;            // blocks of 8 columns in a part
  MatrixDescriptor a{}, b{};
  const auto await_stage = [&]() __attribute__((always_inline)) {
    mbarrier_wait(shared.full[stages.index], stages.parity);
    const unsigned char* const stage = shared.stage[stages.index];
    a = matrix_descriptor(stage + half * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
    b = matrix_descriptor(stage + Traits::kBoxesA * Traits::kBoxBytes, Traits::kBoxBytes, 1024);
  };
  await_stage();
  for (int k = 0; k < depth; k += Traits::kDepth) {
    const int stage = stages.index;
    const bool has_next = k + Traits::kDepth < depth;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      std::conditional_t<Traits::kKind == Kind::s8, int, float> products[kPart][4];
      wgmma_fence();
#pragma unroll
      for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
        const MatrixDescriptor of_part = moved(b, 2 * part * Traits::kBoxBytes + chunk * 32);
        wgmma_8bit<Traits::kKind>(moved(a, chunk * 32), of_part, products, chunk > 0);
      }
      wgmma_commit_group();
      // While these MMAs run, the next stage's scales are loaded and its barrier is waited for.
      if (part == 0) {
        overlapped_work();
        scales.load_next(has_next);
      }
      if (part == kParts - 1) {
        stages.advance();
        if (has_next) await_stage();
      }
      wgmma_wait_group<0>();
      if (part == kParts - 1) release(stage);
      // Scales of the part's first and second 64 columns; in a narrow gated tile these belong to the two halves.
      constexpr int kHalf = kPart / 2;                                                      // blocks of 8 columns with one scale
      const int first_half = kParts == 1 ? 0 : part, second_half = kParts == 1 ? 1 : part;  // indices of their scales
      const float scale[2][2] = {{scale_of(scales, 0, first_half), scale_of(scales, 1, first_half)},
                                 {scale_of(scales, 0, second_half), scale_of(scales, 1, second_half)}};
#pragma unroll
      for (int block = 0; block < kPart; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          keep_in_place(products[block][i]);
          float& sum = sums[part * kPart + block][i];
          sum = multiply_add(static_cast<float>(products[block][i]), scale[block / kHalf][i / 2], sum);
        }
      }
    }
    scales.advance();
  }
}

// The same for one scale along K: the tensor cores accumulate across all stages (int8 in int32, and therefore exactly).
template <class Traits, class Shared, class OverlappedWork, class Release>
__device__ inline void multiply_unpromoted_stages(Shared& shared, int depth, int half, PipelineState<Traits::kStages>& stages,
                                                  float (&sums)[Traits::kBlocks][4], const StageScales& scales,
                                                  const OverlappedWork& overlapped_work, const Release& release) {
  using Sum = std::conditional_t<Traits::kKind == Kind::s8, int, float>;
  Sum products[Traits::kBlocks][4];
  // Zeroed here instead of overwritten by the first MMA: the compiler would otherwise treat them as live between tiles and keep their
  // registers.
#pragma unroll
  for (auto& block : products) {
#pragma unroll
    for (Sum& x : block) keep_in_place(x = 0);
  }
  multiply_stages<Traits, false, false, true>(shared, depth, half, stages, products, [](int, int) {}, overlapped_work, release);
#pragma unroll
  for (int block = 0; block < Traits::kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[block][i] = static_cast<float>(products[block][i]) * scale_of(scales, i / 2, block / (Traits::kBlocks / 2));
    }
  }
}

}  // namespace vbgemm
