// The scales that a consumer thread applies to the products of its stages, which it loads while products run.
#pragma once
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

class StageScales {
 public:
  static constexpr int kCount = 4;

  // Where the scales of the first stage are, and the distances to those of the next one; 0 where all stages have the same. Null: 1.
  __device__ StageScales(const float* const (&first)[kCount], const int (&steps)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) at_[i] = first[i], step_[i] = steps[i], vary_ |= steps[i] != 0;
    load();
  }

  // Starts to load the scales of the next stage, if there is one. Nothing waits for them before that stage's products have ended; a copy of
  // them here would.
  __device__ void advance(bool more) {
    if (!more || !vary_) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) at_[i] += step_[i];
    load();
  }
  __device__ float operator[](int i) const { return scale_[i]; }

 private:
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scale_[i] = at_[i] ? *at_[i] : 1;
  }

  const float* at_[kCount];
  int step_[kCount];
  bool vary_ = false;
  float scale_[kCount];
};

}  // namespace vbgemm
