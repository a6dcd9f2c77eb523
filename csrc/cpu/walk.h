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
  Kind kind;
  DType out_dtype;  // of the results: one that the arithmetic gives
  Descriptors plan;
  void* const* buffers;     // operands, then results
  const int64_t* elements;  // of each
  int32_t num_operands, num_buffers;
  void* sums;  // memory for the accumulators of split tiles
  int64_t num_sums;
  bool past_caches;  // results are written past the caches where that pays
};

// Are operands and results more than a cache holds, so that results won't be there when somebody reads them?
bool fills_caches(const CpuCall& call);

// "avx512", "avx2" or "portable": the kernels in use. The environment variable VBGEMM_CPU_ISA names others; what isn't known, or what
// this machine can't run, is ignored.
const char* isa();

// A range of a call's pieces of work: blocks of tiles and, when all of them are done, split tiles whose shares are added up.
using Work = void(const CpuCall& call, int64_t begin, int64_t end);
Work run_blocks, add_splits;

// How many threads the work deserves: too little to pay for waking another one stays in the caller.
int64_t threads_for_blocks(const CpuCall& call, int64_t available);
int64_t threads_for_splits(const CpuCall& call, int64_t available);

inline constexpr int kMaxCores = 1024;

// What the threads of one call share. Helpers own it together with the caller, and one that comes late finds nothing to claim and leaves
// without a look at the call, whose plan and buffers may be gone by then. The caller waits for claimed pieces only: waiting for scheduled
// helpers to start would deadlock where concurrent calls hold all threads of the pool.
class SharedWork {
 public:
  SharedWork(const CpuCall& call, Work* work, int64_t pieces, int64_t threads);
  void help(bool caller = false);  // claims and does pieces until none is left
  void wait();                     // until all claimed pieces are done; to be called after help()

 private:
  bool claim(int64_t& begin, int64_t& end);

  const CpuCall call_;
  Work* const work_;
  const int64_t pieces_, chunk_;
  std::fenv_t environment_;  // the caller's: helpers flush subnormals exactly if it does
  std::atomic<int64_t> next_{0}, done_{0};
  std::atomic<uint64_t> taken_[kMaxCores / 64] = {};  // by threads of this call
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// Returns when all pieces are done.
template <class Pool>
void share(const CpuCall& call, Work* work, int64_t pieces, int64_t threads, Pool* pool) {
  if (threads <= 1) return work(call, 0, pieces);
  auto shared = std::make_shared<SharedWork>(call, work, pieces, threads);
  for (int64_t helper = 1; helper < threads; ++helper) pool->Schedule([shared] { shared->help(); });
  shared->help(/*caller=*/true);
  shared->wait();
}

// Pool: anything with num_threads() and Schedule(f), such as XLA's FFI thread pool, or null.
template <class Pool>
void run(const CpuCall& call, Pool* pool) {
  const int64_t available = pool ? pool->num_threads() : 1;
  share(call, run_blocks, call.plan.num_blocks, threads_for_blocks(call, available), pool);
  if (call.plan.num_splits > 0) share(call, add_splits, call.plan.num_splits, threads_for_splits(call, available), pool);
}

}  // namespace vbgemm
