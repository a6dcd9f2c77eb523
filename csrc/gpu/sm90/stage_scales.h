// The scales that a consumer thread applies to the products of its stages, which it loads while products run.
#pragma once
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

class StageScales {
 public:
  static constexpr int kCount = 4;

  // Where the scales of the first stage are, and whether the next stage's lie behind them; otherwise all stages have the same. Null: 1.
  __device__ StageScales(const float* const (&first)[kCount], const bool (&vary)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      at_[i] = first[i], vary_[i] = vary[i];
      scale_[i] = next_[i] = first[i] ? *first[i] : 1;
    }
  }

  // Starts to load the scales of the next stage, if there is one. They are apart from this stage's, because the compiler multiplies scales
  // before it starts the products that they belong to, which would then wait for the load.
  __device__ void load_next(bool more) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (more && vary_[i]) next_[i] = *++at_[i];
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
