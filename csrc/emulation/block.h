// A block of emulated GPU threads. One runs at a time, from barrier to barrier, in an order that is shuffled anew each time and lets some
// waves lag behind: what depends on the order goes wrong for some seed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vbgemm::emulation {

using Kernel = void (*)(const void* parameters);

struct Grid {
  int threads;  // a block
  uint32_t blocks, block;
};

void seed(uint64_t value);

// Runs all blocks of a grid, in shuffled order.
void run_grid(Kernel kernel, const void* parameters, uint32_t blocks, int threads);

// What follows is called by emulated threads.
const Grid& grid();
int thread_index();
void block_barrier();
int count_lanes(bool yes);  // a wave barrier too

// The grids of a stream run one after another here; but a kernel that does not wait for the one ahead, or reads memory before, is a
// mistake.
void await_previous_kernel();
void require_awaited();

// Brings a value, waits for the wave, and gets its lane 0's place in what all lanes brought (64 bytes each). The values stay until the
// wave's next but one exchange.
constexpr int kExchangeBytes = 64;
const char* exchange(const void* value, size_t bytes);

// What the lanes of the wave have brought.
template <class T>
class Lanes {
  static_assert(sizeof(T) <= kExchangeBytes);

 public:
  explicit Lanes(const T& mine) : first_(exchange(&mine, sizeof mine)) {}
  const T& operator[](int lane) const { return *reinterpret_cast<const T*>(first_ + lane * kExchangeBytes); }

 private:
  const char* first_;
};

// The block's shared memory: the same for all its threads, all NaN at first.
void* shared_memory(size_t bytes);

// An asynchronous copy is made at a moment chosen at random: at once, or not before it is waited for.
struct Copy {
  void* to;
  const void* from;  // null: write zeros
  int bytes;
};
void start_copy(const Copy& copy);
void load(void* to, const void* from, int bytes);  // at once
void require_aligned(const void* address, int bytes);
void commit_copies();
void wait_copies(int newest);

}  // namespace vbgemm::emulation
