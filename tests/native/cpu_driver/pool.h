// A thread pool with the interface of XLA's, whose threads the kernel may use.
#pragma once
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vbgemm::driver {

inline void pin(pthread_t thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(thread, sizeof cores, &cores);
}

// With pinned = true its threads stay on core 1, while the caller is on core 0: the scheduler often wakes a thread on the core of the
// thread that woke it, and leaves it there for longer than a call takes.
class Pool {
 public:
  explicit Pool(int threads, bool pinned = false) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    for (std::thread& thread : threads_) {
      if (pinned) pin(thread.native_handle(), 1);
    }
    if (pinned) pin(pthread_self(), 0);
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t num_threads() const { return static_cast<int64_t>(threads_.size()); }
  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vbgemm::driver
