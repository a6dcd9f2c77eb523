// The implementation of parallel_for.h: claiming pieces, waiting, and moving threads to separate cores.
#include "cpu/parallel_for.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#define VBGEMM_PAUSE() __builtin_ia32_pause()
#define VBGEMM_END_STREAMS() __builtin_ia32_sfence()
#else
#define VBGEMM_PAUSE() static_cast<void>(0)
#define VBGEMM_END_STREAMS() static_cast<void>(0)
#endif

namespace vbgemm {
namespace {

constexpr int kSpinIterations = 200;  // iterations of waiting before the caller goes to sleep: about the time of a small block

}  // namespace

int64_t threads_for(double work, int64_t most) { return std::min(most, static_cast<int64_t>(work / kWorkPerThread)); }

void run_alone(const Work& work, int64_t pieces) {
  work(0, pieces);
  VBGEMM_END_STREAMS();
}

// A helper often wakes on the core of the thread that woke it, and waits there for longer than a call takes. So a thread whose core is
// taken moves to a free core that its affinity allows, if there is one.
bool take_core(std::atomic<uint64_t> (&taken)[kMaxCores / 64], int core) {
  return core < 0 || core >= kMaxCores || !(taken[core / 64].fetch_or(uint64_t{1} << core % 64) >> core % 64 & 1);
}
void find_core([[maybe_unused]] std::atomic<uint64_t> (&taken)[kMaxCores / 64]) {
#if defined(__linux__)
  if (take_core(taken, sched_getcpu())) return;
  cpu_set_t allowed, wanted;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  wanted = allowed;
  for (int core = 0; core < kMaxCores; ++core) {
    if (taken[core / 64] >> core % 64 & 1) CPU_CLR(core, &wanted);
  }
  if (CPU_COUNT(&wanted) == 0 || sched_setaffinity(0, sizeof wanted, &wanted)) return;
  take_core(taken, sched_getcpu());
  sched_setaffinity(0, sizeof allowed, &allowed);  // afterwards the scheduler may move the thread again
#endif
}

ParallelWork::ParallelWork(Work work, int64_t pieces, int64_t threads)
    : work_(std::move(work)), pieces_(pieces), chunk_(std::clamp<int64_t>(pieces / (32 * threads), 1, 64)) {
  std::fegetenv(&environment_);
  find_core(taken_);
}

bool ParallelWork::claim(int64_t& begin, int64_t& end) {
  begin = next_.fetch_add(chunk_);
  end = std::min(begin + chunk_, pieces_);
  return begin < pieces_;
}

void ParallelWork::help(bool caller) {
  int64_t begin, end;
  if (next_ >= pieces_) return;
  if (!caller) find_core(taken_);
  if (!claim(begin, end)) return;
  std::fenv_t own;
  std::fegetenv(&own);
  std::fesetenv(&environment_);
  do {
    work_(begin, end);
    // Streaming stores may become visible after later stores: fence them before another thread learns that the results are complete.
    VBGEMM_END_STREAMS();
    if (done_.fetch_add(end - begin) + end - begin == pieces_) {
      std::lock_guard<std::mutex> lock(mutex_);
      all_done_.notify_all();
    }
  } while (claim(begin, end));
  std::fesetenv(&own);
}

void ParallelWork::wait() {
  for (int i = 0; i < kSpinIterations && done_ != pieces_; ++i) VBGEMM_PAUSE();
  if (done_ == pieces_) return;
  std::unique_lock<std::mutex> lock(mutex_);
  all_done_.wait(lock, [this] { return done_ == pieces_; });
}

}  // namespace vbgemm
