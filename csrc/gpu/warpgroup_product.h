// A block's products on tensor cores that take their operands from shared memory by themselves, four waves together.
#pragma once
#include "gpu_vendor.h"
#include "tensor_product.h"

namespace vbgemm {

// sums += A B over a step of K, the counterpart of WaveProducts.
template <class Cut, class LinesA, class LinesB>
class WarpgroupProducts {
 public:
  using T = typename Cut::T;

  __device__ WarpgroupProducts() : first_a_(thread_index() / 128 * LinesA::kOuterStep) {}

  __device__ static void show_operands() { show_to_products(); }

  // `meanwhile` is called while they run.
  template <class Meanwhile>
  __device__ void multiply(const T* stage, Sums<Cut>& sums, const Meanwhile& meanwhile) const {
    const SharedMatrix a = shared_matrix(stage + first_a_, LinesA::kOuterStep * kBytes, LinesA::kEightLines * kBytes);
    const SharedMatrix b = shared_matrix(stage + Cut::kElementsA, LinesB::kOuterStep * kBytes, LinesB::kEightLines * kBytes);
    begin_products();
#pragma unroll
    for (int chunk = 0; chunk < Cut::kChunks; ++chunk) {
      multiply_warpgroup<Cut::kKind, !LinesA::kDepthItems, !LinesB::kDepthItems>(moved(a, chunk * LinesA::kDepthStep * kBytes),
                                                                                 moved(b, chunk * LinesB::kDepthStep * kBytes), sums[0]);
    }
    end_products();
    meanwhile();
    wait_products();
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T));

  int first_a_;  // of this warpgroup's 64 rows
};

}  // namespace vbgemm
