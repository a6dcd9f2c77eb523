// The scales that a consumer thread applies to each stage's sums. It loads them while MMAs run.
#pragma once
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

class StageScales {
 public:
  static constexpr int kCount = 4;

  // The addresses of the first stage's scales, and whether the next stage's follow them; otherwise all stages share one. Null: 1.
  __device__ StageScales(const float* const (&first)[kCount], const bool (&vary)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      at_[i] = first[i], vary_[i] = vary[i];
      scale_[i] = next_[i] = first[i] ? *first[i] : 1;
    }
  }

  // Starts loading the next stage's scales, if there is a next stage. They have registers of their own: the compiler multiplies scales
  // before it issues the MMAs that they belong to, and those would wait for the load.
  __device__ void load_next(bool has_next) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has_next && vary_[i]) next_[i] = *++at_[i];
    }
  }
  __device__ void advance() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scale_[i] = next_[i];
  }
  __device__ float operator[](int i) const { return scale_[i]; }

 private:
  const float* at_[kCount];
  bool vary_[kCount];
  float scale_[kCount], next_[kCount];
};

}  // namespace vbgemm
