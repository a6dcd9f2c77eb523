// The scheduler of a block of emulated threads (block.h): barriers, exchanges between lanes, asynchronous copies, and the mistakes it
// reports.
#include "emulation/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "emulation/fiber.h"
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm::emulation {

// Reports a mistake of the kernel that its results would not show, and ends the program.
void fail(const char* what) {
  std::printf("FAIL emulation: %s\n", what);
  std::fflush(stdout);
  std::_Exit(3);
}

namespace {

enum class State { running, at_wave_barrier, at_block_barrier, at_named_barrier, at_cluster_barrier, at_phase, finished };

struct Thread {
  Fiber fiber;
  State state;
  bool vote;
  bool awaited;   // has waited for the previous kernel in the stream
  int committed;  // groups of copies
  int exchanges;
  int wave_barriers, block_barriers;  // barriers passed
  struct Pending {
    Copy copy;
    int group;
  };
  std::deque<Pending> copies;
  int named, named_threads;  // the named barrier at which the thread is
  const uint32_t* phase;     // it waits for the end of the phase of this parity
  uint32_t parity;
  struct Store {
    std::function<void()> store;
    int group;
  };
  std::deque<Store> stores;
  int committed_stores;
};

void make(const Copy& copy) {
  if (copy.from) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
}

class Block {
 public:
  void run(Kernel kernel, const void* parameters, const Grid& grid, int cluster) {
    kernel_ = kernel;
    parameters_ = parameters;
    cluster_ = cluster;
    for (int rank = 0; rank < cluster; ++rank) {
      grids_[rank] = grid;
      grids_[rank].block += rank;
      shared_[rank].reset();
    }
    count_ = grid.threads * cluster;
    while (static_cast<int>(threads_.size()) < count_) threads_.push_back(std::make_unique<Thread>());
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), 0);
    exchanged_.resize(2 * static_cast<size_t>(count_));
    wave_votes_.assign((count_ + kWaveSize - 1) / kWaveSize, 0);
    barriers_.resize(2 * (wave_votes_.size() + 1));
    happens_before(this);
    for (int i = 0; i < count_; ++i) {
      Thread& thread = *threads_[i];
      thread.state = State::running;
      thread.awaited = false;
      thread.committed = thread.exchanges = thread.wave_barriers = thread.block_barriers = thread.committed_stores = 0;
      thread.fiber.begin(enter);
    }
    do {
      act();
      // Some waves sit a round out, so that others get far ahead of them.
      const uint64_t awake = random_();
      std::shuffle(order_.begin(), order_.end(), random_);
      for (int i : order_) {
        if (!(awake >> i / kWaveSize & 1) || !runs(*threads_[i])) continue;
        threads_[i]->state = State::running;
        current_ = i;
        threads_[i]->fiber.resume();
      }
    } while (release());
    happens_after(&order_);
    if (!actions_.empty()) fail("a copy of the copy engine is still in flight at the kernel's end");
  }

  void wait(State barrier) {
    Thread& thread = current();
    thread.state = barrier;
    const char* place = barrier_of(barrier);
    happens_before(place);
    thread.fiber.pause();
    happens_after(place);
  }

  void wait_phase(const uint32_t* phase, uint32_t parity) {
    current().phase = phase;
    current().parity = parity;
    current().state = State::at_phase;
    current().fiber.pause();
  }
  void later(std::function<void()> action) { actions_.push_back(std::move(action)); }

  int rank() const { return current_ / grids_[0].threads; }
  int thread_index() const { return current_ % grids_[0].threads; }
  void* in_block(void* shared, int rank) { return shared_[rank].get() + (static_cast<char*>(shared) - shared_[this->rank()].get()); }
  void named_barrier(int number, int threads) {
    current().named = number;
    current().named_threads = threads;
    current().state = State::at_named_barrier;
    current().fiber.pause();
  }
  void cluster_barrier() {
    current().state = State::at_cluster_barrier;
    current().fiber.pause();
  }

  void begins() { happens_after(this); }
  void ends() { happens_before(&order_); }

  void* shared(size_t bytes) {
    auto& mine = shared_[rank()];
    if (!mine) {
      shared_bytes_ = bytes;
      mine.reset(static_cast<char*>(std::aligned_alloc(1024, (bytes + 1023) / 1024 * 1024)));
      std::memset(mine.get(), 0xFF, bytes);  // NaN in every floating-point format
      happens_before(&mine);
    }
    happens_after(&mine);
    if (bytes != shared_bytes_) fail("threads disagree on the size of shared memory");
    return mine.get();
  }

  const char* exchange(const void* value, size_t bytes) {
    Thread& thread = current();
    // Two sets alternate, because the previous set is still being read.
    Brought* const all = &exchanged_[thread.exchanges++ % 2 * static_cast<size_t>(count_)];
    std::memcpy(all[current_].bytes, value, bytes);
    thread.vote = false;
    wait(State::at_wave_barrier);
    return all[current_ / kWaveSize * kWaveSize].bytes;
  }

  Thread& current() { return *threads_[current_]; }
  int current_index() const { return current_; }
  int votes() const { return wave_votes_[current_ / kWaveSize]; }
  const Grid& grid() const { return grids_[rank()]; }
  std::mt19937_64& random() { return random_; }

 private:
  static void enter();

  // The address by which the race detector knows a thread's next barrier. Two addresses alternate, because a thread may arrive at the next
  // barrier before another thread has left this one.
  const char* barrier_of(State barrier) {
    Thread& thread = current();
    const bool wave = barrier == State::at_wave_barrier;
    const int turn = (wave ? thread.wave_barriers : thread.block_barriers)++ % 2;
    return &barriers_[2 * (wave ? current_ / kWaveSize : wave_votes_.size()) + turn];
  }

  // As on the device, a thread that waits for a phase only sees the phase of the moment when it looks.
  static bool runs(const Thread& thread) {
    return thread.state == State::running || (thread.state == State::at_phase && (*thread.phase & 1) != thread.parity);
  }

  // Resumes the threads that have all arrived at a barrier. Returns false when all threads have finished.
  bool release() {
    const auto all = [this](int first, int last, State state) {
      return std::all_of(threads_.begin() + first, threads_.begin() + last, [state](const auto& t) { return t->state == state; });
    };
    const auto go_on = [this](int first, int last) {
      for (int i = first; i < last; ++i) threads_[i]->state = State::running;
    };
    const int count = count_, block = grids_[0].threads;
    bool any = !actions_.empty() || std::any_of(threads_.begin(), threads_.begin() + count, [](const auto& t) { return runs(*t); });
    for (int first = 0; first < count; first += kWaveSize) {
      const int last = std::min(first + kWaveSize, count);
      if (!all(first, last, State::at_wave_barrier)) continue;
      wave_votes_[first / kWaveSize] =
          static_cast<int>(std::count_if(threads_.begin() + first, threads_.begin() + last, [](const auto& t) { return t->vote; }));
      go_on(first, last);
      any = true;
    }
    any |= release_named();
    for (int first = 0; cluster_ > 1 && first < count; first += block) {
      if (!all(first, first + block, State::at_block_barrier)) continue;
      go_on(first, first + block);
      any = true;
    }
    if (any) return true;
    if (std::any_of(threads_.begin(), threads_.begin() + count, [](const auto& t) { return t->state == State::at_phase; }))
      fail("a wait that never ends");
    if (all(0, count, State::finished)) return false;
    if (!all(0, count, State::at_block_barrier) && !all(0, count, State::at_cluster_barrier))
      fail("a barrier that only some threads reach");
    go_on(0, count);
    return true;
  }

  bool release_named() {
    bool any = false;
    for (int i = 0; i < count_; ++i) {
      Thread& first = *threads_[i];
      if (first.state != State::at_named_barrier) continue;
      const int begin = i / grids_[0].threads * grids_[0].threads, end = begin + grids_[0].threads;
      const auto there = [&first](const Thread& t) { return t.state == State::at_named_barrier && t.named == first.named; };
      const int named = first.named, wanted = first.named_threads;
      int arrived = 0;
      for (int other = begin; other < end; ++other) arrived += there(*threads_[other]);
      if (arrived < wanted) continue;
      for (int other = begin; other < end; ++other) {
        Thread& t = *threads_[other];
        if (t.state == State::at_named_barrier && t.named == named) t.state = State::running;
      }
      any = true;
    }
    return any;
  }

  // Some of what the copy engine has yet to do.
  void act() {
    std::vector<std::function<void()>> actions;
    actions.swap(actions_);
    for (auto& action : actions) {
      if (random_() & 1) {
        action();
      } else {
        actions_.push_back(std::move(action));
      }
    }
  }

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  struct alignas(16) Brought {
    char bytes[kExchangeBytes];
  };

  Kernel kernel_;
  const void* parameters_;
  Grid grids_[kMaxCluster];      // as each block of the cluster sees it
  int cluster_ = 1, count_ = 0;  // blocks and threads that run together
  std::vector<std::function<void()>> actions_;
  std::vector<Brought> exchanged_;  // two for each thread
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<int> order_, wave_votes_;
  std::vector<char> barriers_;  // two for each wave and two for the block
  std::unique_ptr<char[], Free> shared_[kMaxCluster];
  size_t shared_bytes_ = 0;
  int current_ = 0;
  std::mt19937_64 random_;
};

Block the_block;

void Block::enter() {
  the_block.begins();
  the_block.kernel_(the_block.parameters_);
  the_block.ends();
  if (!the_block.current().awaited) fail("a thread ends without having waited for the previous kernel");
  if (!the_block.current().copies.empty()) fail("a copy is still in flight at the kernel's end");
  if (!the_block.current().stores.empty()) fail("a store is still in flight at the kernel's end");
  the_block.wait(State::finished);
  fail("a finished thread runs again");
}

}  // namespace

void seed(uint64_t value) { the_block.random().seed(value); }

void run_grid(Kernel kernel, const void* parameters, uint32_t blocks, int threads, int cluster) {
  // XLA runs independent calls concurrently, but there is only one emulated block.
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  if (blocks % cluster != 0) fail("a grid that is not a multiple of its clusters");
  std::vector<uint32_t> order(blocks / cluster);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), the_block.random());
  for (uint32_t first : order) the_block.run(kernel, parameters, {threads, blocks, first * cluster}, cluster);
}

const Grid& grid() { return the_block.grid(); }
int thread_index() { return the_block.thread_index(); }
int cluster_rank() { return the_block.rank(); }
void* in_block(void* shared, int rank) { return the_block.in_block(shared, rank); }
void cluster_barrier() { the_block.cluster_barrier(); }
void named_barrier(int number, int threads) { the_block.named_barrier(number, threads); }
void wait_phase(const uint32_t* phase, uint32_t parity) { the_block.wait_phase(phase, parity); }
void later(std::function<void()> action) { the_block.later(std::move(action)); }

void start_store(std::function<void()> store) {
  Thread& thread = the_block.current();
  if (the_block.random()() & 1) {
    store();
  } else {
    thread.stores.push_back({std::move(store), thread.committed_stores});
  }
}
void commit_stores() { ++the_block.current().committed_stores; }
void wait_stores(int newest) {
  Thread& thread = the_block.current();
  while (!thread.stores.empty() && thread.stores.front().group < thread.committed_stores - newest) {
    thread.stores.front().store();
    thread.stores.pop_front();
  }
}

void block_barrier() { the_block.wait(State::at_block_barrier); }

int count_lanes(bool yes) {
  the_block.current().vote = yes;
  the_block.wait(State::at_wave_barrier);
  return the_block.votes();
}

const char* exchange(const void* value, size_t bytes) { return the_block.exchange(value, bytes); }

void* shared_memory(size_t bytes) { return the_block.shared(bytes); }

void await_previous_kernel() { the_block.current().awaited = true; }

void require_awaited() {
  if (!the_block.current().awaited) fail("memory is read before the previous kernel has been waited for");
}

void require_aligned(const void* address, int bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) fail("a misaligned load or store");
}

void load(void* to, const void* from, int bytes) {
  require_awaited();
  require_aligned(from, bytes);
  make({to, from, bytes});
}

void start_copy(const Copy& copy) {
  require_awaited();
  const auto misaligned = [&copy](const void* address) { return reinterpret_cast<uintptr_t>(address) % copy.bytes != 0; };
  if (misaligned(copy.to) || misaligned(copy.from)) fail("a misaligned copy");
  Thread& thread = the_block.current();
  if (the_block.random()() & 1) {
    make(copy);
  } else {
    thread.copies.push_back({copy, thread.committed});
  }
}

void commit_copies() { ++the_block.current().committed; }

void after_copies(std::function<void()> action) {
  std::vector<Copy> copies;
  for (const auto& pending : the_block.current().copies) copies.push_back(pending.copy);
  the_block.current().copies.clear();
  later([copies = std::move(copies), action = std::move(action)] {
    for (const Copy& copy : copies) make(copy);
    action();
  });
}

void wait_copies(int newest) {
  Thread& thread = the_block.current();
  while (!thread.copies.empty() && thread.copies.front().group < thread.committed - newest) {
    make(thread.copies.front().copy);
    thread.copies.pop_front();
  }
}

}  // namespace vbgemm::emulation
