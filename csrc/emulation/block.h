// A thread block of emulated GPU threads. One thread runs at a time, from barrier to barrier, in an order that is shuffled each time and
// lets some waves lag behind. So a result that depends on the order is wrong for some seed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vbgemm::emulation {

using Kernel = void (*)(const void* parameters);

struct Grid {
  int threads;  // in a block
  uint32_t blocks, block;
};

void seed(uint64_t value);

// Runs all blocks of a grid, in shuffled order.
void run_grid(Kernel kernel, const void* parameters, uint32_t blocks, int threads);

// The functions below are called by emulated threads.
const Grid& grid();
int thread_index();
void block_barrier();
int count_lanes(bool yes);  // a wave barrier, too

// The grids of a stream run one after another here. Nevertheless it is a mistake if a kernel does not wait for the previous one, or reads
// memory before it has.
void await_previous_kernel();
void require_awaited();

// Contributes a value, waits for the wave, and returns where lane 0 is among the values that all lanes contributed (64 bytes for each
// lane). The values stay valid until the wave's second next exchange.
constexpr int kExchangeBytes = 64;
const char* exchange(const void* value, size_t bytes);

// The values that the lanes of the wave have contributed.
template <class T>
class Lanes {
  static_assert(sizeof(T) <= kExchangeBytes);

 public:
  explicit Lanes(const T& mine) : first_(exchange(&mine, sizeof mine)) {}
  const T& operator[](int lane) const { return *reinterpret_cast<const T*>(first_ + lane * kExchangeBytes); }

 private:
  const char* first_;
};

// The block's shared memory, the same for all its threads; all of it is NaN initially.
void* shared_memory(size_t bytes);

// An asynchronous copy is made at a random moment: at once, or as late as when it is waited for.
struct Copy {
  void* to;
  const void* from;  // null: writes zeros
  int bytes;
};
void start_copy(const Copy& copy);
void load(void* to, const void* from, int bytes);  // at once
void require_aligned(const void* address, int bytes);
void commit_copies();
void wait_copies(int newest);

}  // namespace vbgemm::emulation
