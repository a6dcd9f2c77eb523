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
namespace {

// Reports a mistake of the kernel that its results would not show, and ends the program.
[[noreturn]] void fail(const char* what) {
  std::printf("FAIL emulation: %s\n", what);
  std::fflush(stdout);
  std::_Exit(3);
}

enum class State { running, at_wave_barrier, at_block_barrier, finished };

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
  void run(Kernel kernel, const void* parameters, const Grid& grid) {
    kernel_ = kernel;
    parameters_ = parameters;
    grid_ = grid;
    while (static_cast<int>(threads_.size()) < grid.threads) threads_.push_back(std::make_unique<Thread>());
    shared_.reset();
    order_.resize(grid.threads);
    std::iota(order_.begin(), order_.end(), 0);
    exchanged_.resize(2 * static_cast<size_t>(grid.threads));
    wave_votes_.assign((grid.threads + kWaveSize - 1) / kWaveSize, 0);
    barriers_.resize(2 * (wave_votes_.size() + 1));
    happens_before(this);
    for (int i = 0; i < grid.threads; ++i) {
      Thread& thread = *threads_[i];
      thread.state = State::running;
      thread.awaited = false;
      thread.committed = thread.exchanges = thread.wave_barriers = thread.block_barriers = 0;
      thread.fiber.begin(enter);
    }
    do {
      // Some waves sit a round out, so that others get far ahead of them.
      const uint64_t awake = random_();
      std::shuffle(order_.begin(), order_.end(), random_);
      for (int i : order_) {
        if (threads_[i]->state != State::running || !(awake >> i / kWaveSize & 1)) continue;
        current_ = i;
        threads_[i]->fiber.resume();
      }
    } while (release());
    happens_after(&order_);
  }

  void wait(State barrier) {
    Thread& thread = current();
    thread.state = barrier;
    const char* place = barrier_of(barrier);
    happens_before(place);
    thread.fiber.pause();
    happens_after(place);
  }

  void begins() { happens_after(this); }
  void ends() { happens_before(&order_); }

  void* shared(size_t bytes) {
    if (!shared_) {
      shared_bytes_ = bytes;
      shared_.reset(static_cast<char*>(std::aligned_alloc(1024, (bytes + 1023) / 1024 * 1024)));
      std::memset(shared_.get(), 0xFF, bytes);  // NaN in every floating-point format
      happens_before(&shared_);
    }
    happens_after(&shared_);
    if (bytes != shared_bytes_) fail("threads disagree on the size of shared memory");
    return shared_.get();
  }

  const char* exchange(const void* value, size_t bytes) {
    Thread& thread = current();
    // Two sets alternate, because the previous set is still being read.
    Brought* const all = &exchanged_[thread.exchanges++ % 2 * static_cast<size_t>(grid_.threads)];
    std::memcpy(all[current_].bytes, value, bytes);
    thread.vote = false;
    wait(State::at_wave_barrier);
    return all[current_ / kWaveSize * kWaveSize].bytes;
  }

  Thread& current() { return *threads_[current_]; }
  int current_index() const { return current_; }
  int votes() const { return wave_votes_[current_ / kWaveSize]; }
  const Grid& grid() const { return grid_; }
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

  // Resumes the threads that have all arrived at a barrier. Returns false when all threads have finished.
  bool release() {
    const auto all = [this](int first, int last, State state) {
      return std::all_of(threads_.begin() + first, threads_.begin() + last, [state](const auto& t) { return t->state == state; });
    };
    const auto go_on = [this](int first, int last) {
      for (int i = first; i < last; ++i) threads_[i]->state = State::running;
    };
    const int count = grid_.threads;
    bool any = std::any_of(threads_.begin(), threads_.begin() + count, [](const auto& t) { return t->state == State::running; });
    for (int first = 0; first < count; first += kWaveSize) {
      const int last = std::min(first + kWaveSize, count);
      if (!all(first, last, State::at_wave_barrier)) continue;
      wave_votes_[first / kWaveSize] =
          static_cast<int>(std::count_if(threads_.begin() + first, threads_.begin() + last, [](const auto& t) { return t->vote; }));
      go_on(first, last);
      any = true;
    }
    if (any) return true;
    if (all(0, count, State::finished)) return false;
    if (!all(0, count, State::at_block_barrier)) fail("a barrier that only some threads reach");
    go_on(0, count);
    return true;
  }

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  struct alignas(16) Brought {
    char bytes[kExchangeBytes];
  };

  Kernel kernel_;
  const void* parameters_;
  Grid grid_;
  std::vector<Brought> exchanged_;  // two for each thread
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<int> order_, wave_votes_;
  std::vector<char> barriers_;  // two for each wave and two for the block
  std::unique_ptr<char[], Free> shared_;
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
  the_block.wait(State::finished);
  fail("a finished thread runs again");
}

}  // namespace

void seed(uint64_t value) { the_block.random().seed(value); }

void run_grid(Kernel kernel, const void* parameters, uint32_t blocks, int threads) {
  // XLA runs independent calls concurrently, but there is only one emulated block.
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), the_block.random());
  for (uint32_t block : order) the_block.run(kernel, parameters, {threads, blocks, block});
}

const Grid& grid() { return the_block.grid(); }
int thread_index() { return the_block.current_index(); }
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

void wait_copies(int newest) {
  Thread& thread = the_block.current();
  while (!thread.copies.empty() && thread.copies.front().group < thread.committed - newest) {
    make(thread.copies.front().copy);
    thread.copies.pop_front();
  }
}

}  // namespace vbgemm::emulation
