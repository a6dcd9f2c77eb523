// A thread block of emulated GPU threads. One thread runs at a time, from barrier to barrier, in an order that is shuffled each time and
// lets some waves lag behind. So a result that depends on the order is wrong for some seed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace vbgemm::emulation {

using Kernel = void (*)(const void* parameters);

struct Grid {
  int threads;  // in a block
  uint32_t blocks, block;
};

constexpr int kMaxCluster = 2;

void seed(uint64_t value);

// Runs all blocks of a grid, in shuffled order. The blocks of a cluster run together.
void run_grid(Kernel kernel, const void* parameters, uint32_t blocks, int threads, int cluster = 1);

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

// Of the pipelined kernels (bulk_copy.h): the block's number in its cluster, the same place in another block's shared memory, barriers, and
// the wait until the parity of *phase is no longer `parity`. It is a mistake if that never happens.
int cluster_rank();
void* in_block(void* shared, int rank);
void cluster_barrier();
void named_barrier(int number, int threads);
void wait_phase(const uint32_t* phase, uint32_t parity);

// Does something at a random later moment, as the copy engine does.
void later(std::function<void()> action);

// Stores of the copy engine: each is made at a random moment, at the latest when its group is waited for.
void start_store(std::function<void()> store);
void commit_stores();
void wait_stores(int newest);
[[noreturn]] void fail(const char* what);

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
void after_copies(std::function<void()> action);  // when the copies that the thread has started have been made

}  // namespace vbgemm::emulation
