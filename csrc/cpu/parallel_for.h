// Distributes the pieces of work of a call over the calling thread and helpers from a thread pool. Each thread claims pieces until none is
// left.
#pragma once
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace vbgemm {

// Executes the pieces [begin, end) of a call's work.
using Work = std::function<void(int64_t begin, int64_t end)>;

// In multiply-adds: the work of a core in the time that another core takes to wake up (about 10 us), and the cost of moving one element.
// Both are estimates that were not measured separately.
inline constexpr double kWorkPerThread = 5e5;
inline constexpr double kWorkPerMove = 8;
// In bytes: operands and results of this size do not fit a last-level cache. Measured on two Zen 5 cores with 32 MiB of it (2026-11-23,
// docs/design/cpu.md, P6); two Xeon cores with more cache would do better with a larger number (P9).
inline constexpr int64_t kCacheBytes = 24 << 20;

// The number of threads that pay off for an amount of work in multiply-adds. Work that does not pay for waking another thread stays in the
// caller.
int64_t threads_for(double work, int64_t most);

inline constexpr int kMaxCores = 1024;

// The state that the threads of one call share. The helpers and the caller own it together: a helper that starts late finds nothing to
// claim, and leaves without calling `work`, whose plan and buffers may no longer exist. The caller waits for claimed pieces only. Waiting
// for scheduled helpers to start would deadlock if concurrent calls occupied all threads of the pool.
class ParallelWork {
 public:
  ParallelWork(Work work, int64_t pieces, int64_t threads);
  void help(bool caller = false);  // claims and executes pieces until none is left
  void wait();                     // waits until all claimed pieces are done; to be called after help()

 private:
  bool claim(int64_t& begin, int64_t& end);

  const Work work_;
  const int64_t pieces_, chunk_;
  std::fenv_t environment_;  // the floating-point environment of the caller: helpers flush subnormals exactly if it does
  std::atomic<int64_t> next_{0}, done_{0};
  std::atomic<uint64_t> taken_[kMaxCores / 64] = {};  // bit set of the cores that threads of this call run on
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// Executes all pieces in the calling thread.
void run_alone(const Work& work, int64_t pieces);

// Executes all pieces on up to `threads` threads and returns when they are done. Pool: any type with Schedule(f), such as XLA's FFI thread
// pool.
template <class Pool>
void parallel_for(const Work& work, int64_t pieces, int64_t threads, Pool* pool) {
  if (threads <= 1) return run_alone(work, pieces);
  auto shared = std::make_shared<ParallelWork>(work, pieces, threads);
  for (int64_t helper = 1; helper < threads; ++helper) pool->Schedule([shared] { shared->help(); });
  shared->help(/*caller=*/true);
  shared->wait();
}

}  // namespace vbgemm
