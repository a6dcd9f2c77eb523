// Shares the pieces of a call among the caller and helpers from a thread pool, who claim some after the others until none is left.
#pragma once
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace vbgemm {

// Does a range of a call's pieces.
using Work = std::function<void(int64_t begin, int64_t end)>;

inline constexpr double kWorkWorthAThread = 5e5;     // multiply-adds: what a core does while another one wakes up
inline constexpr double kWorkOfAMove = 8;            // moving an element takes as long as a few multiply-adds
inline constexpr int64_t kBytesOfCaches = 24 << 20;  // most of a last-level cache

// How many threads so many multiply-adds deserve: too little to pay for waking another one stays in the caller.
int64_t threads_for(double work, int64_t most);

inline constexpr int kMaxCores = 1024;

// What the threads of one call share. Helpers own it together with the caller, and one that comes late finds nothing to claim and leaves
// without a call of `work`, whose plan and buffers may be gone by then. The caller waits for claimed pieces only: waiting for scheduled
// helpers to start would deadlock where concurrent calls hold all threads of the pool.
class SharedWork {
 public:
  SharedWork(Work work, int64_t pieces, int64_t threads);
  void help(bool caller = false);  // claims and does pieces until none is left
  void wait();                     // until all claimed pieces are done; to be called after help()

 private:
  bool claim(int64_t& begin, int64_t& end);

  const Work work_;
  const int64_t pieces_, chunk_;
  std::fenv_t environment_;  // the caller's: helpers flush subnormals exactly if it does
  std::atomic<int64_t> next_{0}, done_{0};
  std::atomic<uint64_t> taken_[kMaxCores / 64] = {};  // by threads of this call
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// Does all pieces in this thread.
void run_alone(const Work& work, int64_t pieces);

// Returns when all pieces are done. Pool: anything with Schedule(f), such as XLA's FFI thread pool.
template <class Pool>
void share(const Work& work, int64_t pieces, int64_t threads, Pool* pool) {
  if (threads <= 1) return run_alone(work, pieces);
  auto shared = std::make_shared<SharedWork>(work, pieces, threads);
  for (int64_t helper = 1; helper < threads; ++helper) pool->Schedule([shared] { shared->help(); });
  shared->help(/*caller=*/true);
  shared->wait();
}

}  // namespace vbgemm
