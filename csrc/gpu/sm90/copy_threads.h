// The producer of operands that TMA cannot copy because their rows are unaligned. Two warps copy them, which is slow, and store them
// K-major in the layout of TMA boxes.
#pragma once
#include "gpu/sm90/source_plan.h"

namespace vbgemm {

template <class Source>
class ThreadCopier {
  using Traits = typename Source::Traits;
  using Tile = typename Source::Tile;
  static constexpr int kThreads = 64;

 public:
  static constexpr int kWarps = kThreads / 32, kArrivals = 0;
  static constexpr bool kCopiesAlone = true;

  // `thread` counts from 0.
  __device__ ThreadCopier(const PlanParameters&, typename Source::Shared& shared, int thread) : shared_(shared), thread_(thread) {}

  // The two producers synchronize at every tile. Otherwise the producer that has nothing to copy for a tile could run more than one phase
  // of a stage ahead and mistake an earlier phase for a later one, since a wait only tests the phase's parity.
  static __device__ void sync_with_tma_producer() { bar_sync(kProducerBarrier, 32 + kThreads); }

  __device__ void run() const {
    each_tile<Traits>(shared_, [&](const Tile& tile, int slot, PipelineState<Traits::kStages>& stages) {
      const int depth = tile.depth, cluster_depth = tile.cluster_depth();
      for (int k = 0; k < cluster_depth; k += Traits::kDepth, stages.advance()) {
        if (tile.by_tma) continue;
        mbarrier_wait(shared_.empty[stages.index], stages.parity ^ 1);
        unsigned char* const stage = shared_.stage[stages.index];
        const MatrixView &a = tile.matrix[kA], &b = tile.matrix[kB];
        if (k < depth) copy_lines(stage, a.first, a.row_stride, a.col_stride, tile.rows, k, depth);
        if (k < depth) copy_lines(stage + Traits::kBoxesA * Traits::kBoxBytes, b.first, b.col_stride, b.row_stride, tile.cols, k, depth);
        fence_proxy_async();
        bar_sync(kCopierBarrier, kThreads);
        if (thread_ == 0) mbarrier_arrive(shared_.full[stages.index]);
      }
      release_tile(shared_, slot, thread_ % 32);
      sync_with_tma_producer();
    });
  }

 private:
  // Copies kDepth K elements of up to four boxes of lines; each thread copies one K element of every line.
  __device__ void copy_lines(unsigned char* to, const void* from, int64_t line_stride, int64_t step_stride, int lines, int k,
                             int depth) const {
    constexpr int kInFlight = 8;
    static_assert(kThreads == Traits::kDepth && sizeof(typename Traits::T) == 2);
    const uint16_t* const first = static_cast<const uint16_t*>(from) + (k + thread_) * step_stride;
    const bool exists = k + thread_ < depth;
    for (int begin = 0; begin < lines; begin += kInFlight) {
      uint16_t x[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) x[i] = exists && begin + i < lines ? load_after_wait(first + (begin + i) * line_stride) : 0;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int line = begin + i;
        *reinterpret_cast<uint16_t*>(to + line * 128 + ((thread_ / 8 ^ (line & 7)) * 16) + thread_ % 8 * 2) = x[i];
      }
    }
  }

  typename Source::Shared& shared_;
  int thread_;
};

}  // namespace vbgemm
