// Runs a plan on the CPU: the caller and helpers from a thread pool claim blocks until none is left.
#pragma once
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "catalogue.h"
#include "descriptor.h"

namespace vbgemm {

struct CpuCall {
  DType dtype;      // of the operands
  DType out_dtype;  // of the results: dtype, or f32 for a 16-bit dtype
  Descriptors plan;
  void* const* buffers;  // operands, then results
};

// "avx512", "avx2" or "portable": the kernels in use. The environment variable VBGEMM_CPU_ISA names others; what isn't known, or what
// this machine can't run, is ignored.
const char* isa();

void run_blocks(const CpuCall& call, int64_t begin, int64_t end);

// How many threads a call deserves: too little work to pay for waking another one stays in the caller.
int64_t useful_threads(const CpuCall& call, int64_t available);

inline constexpr int kMaxCores = 1024;

// What the threads of one call share. Helpers own it together with the caller, and one that comes late finds nothing to claim and leaves
// without a look at the call, whose plan and buffers may be gone by then. The caller waits for claimed blocks only: waiting for scheduled
// helpers to start would deadlock where concurrent calls hold all threads of the pool.
class SharedCall {
 public:
  SharedCall(const CpuCall& call, int64_t threads);
  void help(bool caller = false);  // claims and runs blocks until none is left
  void wait();                     // until all claimed blocks are done; to be called after help()

 private:
  bool claim(int64_t& begin, int64_t& end);

  const CpuCall call_;
  const int64_t blocks_, chunk_;
  std::fenv_t environment_;  // the caller's: helpers flush subnormals exactly if it does
  std::atomic<int64_t> next_{0}, done_{0};
  std::atomic<uint64_t> taken_[kMaxCores / 64] = {};  // by threads of this call
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// Returns when all blocks are done. Pool: anything with num_threads() and Schedule(f), such as XLA's FFI thread pool, or null.
template <class Pool>
void run(const CpuCall& call, Pool* pool) {
  const int64_t threads = pool ? useful_threads(call, pool->num_threads()) : 1;
  if (threads <= 1) return run_blocks(call, 0, call.plan.num_blocks);
  auto shared = std::make_shared<SharedCall>(call, threads);
  for (int64_t helper = 1; helper < threads; ++helper) pool->Schedule([shared] { shared->help(); });
  shared->help(/*caller=*/true);
  shared->wait();
}

}  // namespace vbgemm
