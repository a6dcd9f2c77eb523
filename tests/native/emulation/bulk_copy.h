// What the pipelined kernels need of Hopper (gpu/ptx/sm90.h), on the CPU: barriers that count arrivals and bytes, and a copy
// engine that does its work at random moments.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "emulation/gpu_vendor.h"

// A tensor of matrices with lines of items. The boxes are 128 bytes wide.
struct alignas(128) CUtensorMap {
  const char* data;
  int64_t items, lines, matrices;
  int64_t line_bytes, matrix_bytes;
  int32_t element_bytes, box_lines;
  char rest[72];
};
static_assert(sizeof(CUtensorMap) == 128);

namespace vbgemm {

using std::max, std::min;

inline uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(shared)); }

struct alignas(8) Mbarrier {
  int32_t expected, pending;  // arrivals in each phase, and those that are still to come
  int32_t bytes;              // that copies have yet to complete
  uint32_t phase;
};

namespace emulation {
inline void end_phase(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.expected;
  ++barrier.phase;
}
inline void complete(Mbarrier& barrier, int bytes) {
  barrier.bytes -= bytes;
  end_phase(barrier);
}
}  // namespace emulation

inline void mbarrier_init(Mbarrier& barrier, int arrivals) { barrier = {arrivals, arrivals, 0, 0}; }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(Mbarrier& barrier) {
  if (barrier.pending <= 0) emulation::fail("more arrivals at a barrier than it expects");
  --barrier.pending;
  emulation::end_phase(barrier);
}
inline void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  emulation::after_copies([&barrier] { mbarrier_arrive(barrier); });
}
inline void mbarrier_arrive_expect_tx(Mbarrier& barrier, int bytes) {
  barrier.bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_remote(Mbarrier& barrier, int cta) {
  mbarrier_arrive(*static_cast<Mbarrier*>(emulation::in_block(&barrier, cta)));
}
inline void st_async(uint32_t* to, int cta, uint32_t value, Mbarrier& barrier) {
  auto* const place = static_cast<uint32_t*>(emulation::in_block(to, cta));
  auto* const full = static_cast<Mbarrier*>(emulation::in_block(&barrier, cta));
  emulation::later([=] {
    *place = value;
    emulation::complete(*full, sizeof value);
  });
}
inline void mbarrier_wait(Mbarrier& barrier, uint32_t parity) {
  if ((barrier.phase & 1) == parity) emulation::wait_phase(&barrier.phase, parity);
}

namespace emulation {

// The place of byte `byte` of a box's line in shared memory: the hardware swizzles by the bits of addresses.
inline char* swizzled(void* box, int line, int byte) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(box) + line * 128 + byte;
  return reinterpret_cast<char*>(address ^ (address >> 7 & 7) << 4);
}
inline const char* element_of(const CUtensorMap& map, int64_t x, int64_t y, int64_t z) {
  const bool inside = x >= 0 && x < map.items && y >= 0 && y < map.lines && z >= 0 && z < map.matrices;
  return inside ? map.data + z * map.matrix_bytes + y * map.line_bytes + x * map.element_bytes : nullptr;
}
// The place at which a store writes an element. The hardware stores whole vectors of 16 bytes: of a vector of which the tensor has only the
// first elements, it also writes those that lie behind the tensor's line (seen on an H100).
inline char* stored_element(const CUtensorMap& map, int64_t x, int64_t y, int64_t z) {
  const int64_t begin = x - x % (16 / map.element_bytes);
  const char* const first = element_of(map, begin, y, z);
  return first ? const_cast<char*>(first) + (x - begin) * map.element_bytes : nullptr;
}
// Calls copy(x, y, z, place) for each element of a box and its place in shared memory.
template <class Copy>
void each_element(const CUtensorMap& map, int x, int y, int z, void* box, const Copy& copy) {
  if (x * map.element_bytes % 16 != 0) fail("a box that begins within 16 bytes of a line");
  for (int line = 0; line < map.box_lines; ++line) {
    for (int byte = 0; byte < 128; byte += map.element_bytes) {
      copy(x + byte / map.element_bytes, int64_t{y} + line, z, swizzled(box, line, byte));
    }
  }
}
inline void tma_load_later(void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  require_awaited();
  if (reinterpret_cast<uintptr_t>(shared) % 128 != 0) fail("a misaligned box");
  later([=, &map, &barrier] {
    each_element(map, x, y, z, shared, [&map](int64_t x, int64_t y, int64_t z, char* to) {
      const char* const element = element_of(map, x, y, z);
      if (element) std::memcpy(to, element, map.element_bytes);
      if (!element) std::memset(to, 0, map.element_bytes);
    });
    complete(barrier, map.box_lines * 128);
  });
}

}  // namespace emulation

inline void tma_load(void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  emulation::tma_load_later(shared, map, x, y, z, barrier);
}
inline void tma_load_multicast(uint16_t cta_mask, void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  for (int cta = 0; cta < emulation::kMaxCluster; ++cta) {
    if (!(cta_mask >> cta & 1)) continue;
    emulation::tma_load_later(emulation::in_block(shared, cta), map, x, y, z, *static_cast<Mbarrier*>(emulation::in_block(&barrier, cta)));
  }
}
inline void tma_store(const CUtensorMap& map, int x, int y, int z, const void* shared) {
  emulation::start_store([=, &map] {
    emulation::each_element(map, x, y, z, const_cast<void*>(shared), [&map](int64_t x, int64_t y, int64_t z, const char* from) {
      if (char* const to = emulation::stored_element(map, x, y, z)) std::memcpy(to, from, map.element_bytes);
    });
  });
}
inline void tma_reduce_add(const CUtensorMap& map, int x, int y, int z, const void* shared) {
  if (map.element_bytes != sizeof(float)) emulation::fail("a sum of boxes that are not of float32");
  emulation::start_store([=, &map] {
    emulation::each_element(map, x, y, z, const_cast<void*>(shared), [&map](int64_t x, int64_t y, int64_t z, const char* from) {
      char* const to = emulation::stored_element(map, x, y, z);
      if (!to) return;
      float sums[2];
      std::memcpy(&sums[0], to, sizeof(float)), std::memcpy(&sums[1], from, sizeof(float));
      sums[0] += sums[1];
      std::memcpy(to, &sums[0], sizeof(float));
    });
  });
}
inline void cp_async_bulk_commit_group() { emulation::commit_stores(); }
template <int kNewest = 0>
inline void cp_async_bulk_wait_group_read() {
  emulation::wait_stores(kNewest);
}
inline void cp_async_bulk_wait_group() { emulation::wait_stores(0); }

template <int kMaps>
inline void publish_tensormaps(CUtensorMap* to, const CUtensorMap* maps) {
  emulation::require_awaited();
  wave_barrier();
  if (thread_index() % VBGEMM_WAVE_SIZE == 0) std::copy(maps, maps + kMaps, to);
  wave_barrier();
}
inline void prefetch_tensormap(const CUtensorMap&) {}
inline void tensormap_replace(CUtensorMap& map, const void* data, int items, int lines, int64_t line_bytes) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || line_bytes % 16 != 0) emulation::fail("a tensor map of lines that are not aligned");
  map.data = static_cast<const char*>(data);
  map.items = items;
  map.lines = lines;
  map.line_bytes = line_bytes;
}

inline int cluster_ctarank() { return emulation::cluster_rank(); }
inline void cluster_sync() { emulation::cluster_barrier(); }
inline void bar_sync(int number, int threads) { emulation::named_barrier(number, threads); }
template <int>
inline void setmaxnreg_dec() {}
template <int>
inline void setmaxnreg_inc() {}

inline void stmatrix_x4(void* row, const uint32_t (&from)[4]) {
  struct Words {
    uint32_t word[4];
  } mine;
  std::memcpy(mine.word, from, sizeof from);
  const emulation::Lanes<Words> all(mine);
  // Each lane stores the row whose address it gives.
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) std::memcpy(static_cast<char*>(row) + 4 * i, &all[lane % 8 * 4 + i].word[lane / 8], 4);
}

inline void stmatrix_x4_trans(void* column, const uint32_t (&from)[4]) {
  struct Words {
    uint32_t word[4];
  } mine;
  std::memcpy(mine.word, from, sizeof from);
  const emulation::Lanes<Words> all(mine);
  // Each lane stores the column whose address it gives: its row r is half of a word of lane 4 r + column / 2.
  const int lane = thread_index() % 32, at = lane % 8;
  for (int row = 0; row < 8; ++row) {
    const uint32_t word = all[row * 4 + at / 2].word[lane / 8];
    const uint16_t value = static_cast<uint16_t>(word >> at % 2 * 16);
    std::memcpy(static_cast<char*>(column) + 2 * row, &value, sizeof value);
  }
}

template <Kind kKind>
inline uint32_t narrow_pair(float low, float high) {
  const auto bits = [](float x) { return uint32_t{kKind == Kind::bf16 ? float_to_bfloat16(x) : float_to_float16(x)}; };
  return bits(low) | bits(high) << 16;
}
inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (select >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
inline uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) { return (a & b) ^ c; }
template <Kind kKind>
inline uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  const auto number = [](uint32_t bits) {
    return kKind == Kind::bf16 ? bfloat16_to_float(static_cast<uint16_t>(bits)) : float16_to_float(static_cast<uint16_t>(bits));
  };
  const auto result = [&](int shift) { return std::fma(number(a >> shift), number(b >> shift), number(c >> shift)); };
  return narrow_pair<kKind>(result(0), result(16));
}
inline int grid_blocks() { return static_cast<int>(emulation::grid().blocks); }
inline uint32_t take_next(uint32_t* counter) { return (*counter)++; }
[[noreturn]] inline void trap() { emulation::fail("a kernel that is not there"); }

}  // namespace vbgemm
