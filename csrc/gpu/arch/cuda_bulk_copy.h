// Hopper's instructions as plain functions: TMA copies, the mbarriers that these copies complete, clusters of thread blocks, and the
// reallocation of registers between warpgroups. PTX ISA, "cp.async.bulk.tensor", "mbarrier", "setmaxnreg".
#pragma once
#include <cuda.h>

#include <cstdint>
#ifdef VBGEMM_DEADLINE
#include <cstdio>
#endif

#include "gpu/arch/cuda_vendor.h"

namespace vbgemm {

#ifdef __CUDACC__
#define VBGEMM_DEVICE_CODE 1

__device__ inline uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

// An mbarrier in shared memory. A phase ends when as many arrivals as the barrier was initialized for have come, and all announced bytes.
struct alignas(8) SharedBarrier {
  uint64_t bits;
};

__device__ inline void init_barrier(SharedBarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes barriers that this thread has initialized visible to the cluster and to TMA, before the cluster's next barrier.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(SharedBarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives when all copies that this thread has started by copy_async have landed.
__device__ inline void arrive_after_copies(SharedBarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives, and announces bytes that copies will complete in the same phase.
__device__ inline void arrive_expecting(SharedBarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// Arrives at the barrier at the same place in the shared memory of another thread block of the cluster. The instruction has no scope: with
// cluster scope it becomes a fence of all memory, which takes longer than the products of a K step (docs/design/ragged.md).
__device__ inline void arrive_at(SharedBarrier& barrier, int block) {
  asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(
                   shared_address(&barrier)),
               "r"(block)
               : "memory");
}

// Waits until the phase with this parity has ended. If VBGEMM_DEADLINE is defined, as a number of clock cycles, a longer wait ends the
// kernel with an error: an aid for the development of pipelines.
__device__ inline void wait_phase(SharedBarrier& barrier, uint32_t parity) {
  const uint32_t address = shared_address(&barrier);
#ifdef VBGEMM_DEADLINE
  const long long begin = clock64();
#endif
  while (true) {
    uint32_t done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(address), "r"(parity)
                 : "memory");
    if (done) return;
#ifdef VBGEMM_DEADLINE
    if (clock64() - begin > VBGEMM_DEADLINE) {
      printf("block %d thread %d waits at %u for parity %u\n", blockIdx.x, threadIdx.x, address, parity);
      __trap();
    }
#endif
  }
}

// Writes a number into another thread block's shared memory; it counts as 4 of the bytes that the barrier there expects.
__device__ inline void send(uint32_t* to, int block, uint32_t value, SharedBarrier& barrier) {
  asm volatile(
      "{.reg .b32 place, full; mapa.shared::cluster.u32 place, %0, %1; mapa.shared::cluster.u32 full, %2, %1;"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %3, [full];}" ::"r"(shared_address(to)),
      "r"(block), "r"(shared_address(&barrier)), "r"(value)
      : "memory");
}

// Copies a box of a tensor to shared memory; elements outside the tensor become zero. One thread calls this.
__device__ inline void copy_box(void* shared, const CUtensorMap& map, int x, int y, int z, SharedBarrier& barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
                   shared_address(shared)),
               "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
               : "memory");
}
// As copy_box, by multicast: to the same place, and completing the same barrier, in each thread block of the cluster whose bit is set.
__device__ inline void copy_box_to(uint16_t blocks, void* shared, const CUtensorMap& map, int x, int y, int z, SharedBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], "
      "%6;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)), "h"(blocks)
      : "memory");
}
// Copies a box from shared memory to a tensor, except for elements outside the tensor. The copy joins the group that the next
// commit_stores() closes. Threads that wrote the box must first have made their writes visible to TMA (fence_async_proxy()).
__device__ inline void store_box(const CUtensorMap& map, int x, int y, int z, const void* shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x), "r"(y), "r"(z),
               "r"(shared_address(shared))
               : "memory");
}
// As store_box, but adds the box, of float32, to the tensor's elements.
__device__ inline void add_box(const CUtensorMap& map, int x, int y, int z, const void* shared) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x), "r"(y),
               "r"(z), "r"(shared_address(shared))
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until TMA has read this thread's stores from shared memory (below: until the stores have completed), except for those of the newest
// `kNewest` groups.
template <int kNewest = 0>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNewest) : "memory");
}
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Writes maps from shared to global memory, for copies by threads of this block that meet this warp afterwards. The whole warp calls this.
template <int kMaps>
__device__ inline void publish_maps(CUtensorMap* to, const CUtensorMap* maps) {
  constexpr int kVectors = kMaps * sizeof(CUtensorMap) / sizeof(uint4);
  static_assert(kVectors <= 32);
  const int lane = threadIdx.x % 32;
  if (lane < kVectors) reinterpret_cast<uint4*>(to)[lane] = reinterpret_cast<const uint4*>(maps)[lane];
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncwarp();
  if (lane < kMaps) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(to + lane) : "memory");
  __syncwarp();
}
// Replaces a map's address, size and distance of lines; the map is in shared memory. PTX ISA, "tensormap.replace".
__device__ inline void replace_tensor(const CUtensorMap& map, const void* data, int items, int lines, int64_t line_bytes) {
  const uint32_t at = shared_address(&map);
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(at), "l"(data) : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(at), "r"(items) : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(at), "r"(lines) : "memory");
  asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(at), "l"(line_bytes) : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A barrier of all threads of the cluster.
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A barrier of `threads` threads, which name it by a number from 1 to 15.
__device__ inline void named_barrier(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The counterpart of load_matrices (stmatrix): stores four matrices of 8 rows by 16 bytes to shared memory. Lane 8 i + r gives the address
// of row r of matrix i.
__device__ inline void store_matrices(void* row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}

// Two numbers rounded to 16 bits each.
template <Kind kKind>
__device__ inline uint32_t narrow_pair(float low, float high) {
  uint32_t bits;
  if constexpr (kKind == Kind::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

// Keeps the compiler from moving reads of x across this place.
__device__ inline void keep_in_place(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ inline void keep_in_place(int& x) { asm volatile("" : "+r"(x)::"memory"); }
__device__ inline void keep_in_place(uint64_t& x) { asm volatile("" : "+l"(x)::"memory"); }

template <class Value>
__device__ inline Value value_of_lane(Value value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
__device__ inline int grid_blocks() { return static_cast<int>(gridDim.x); }
// Returns the counter's value and increments it, as one step.
__device__ inline uint32_t take_next(uint32_t* counter) { return atomicAdd(counter, 1u); }
// For y up to 2^126, and with an error of about 2 + |x| units in the last place (CUDA C++ Programming Guide, "Intrinsic Functions").
__device__ inline float fast_divide(float x, float y) { return __fdividef(x, y); }
__device__ inline float fast_exp(float x) { return __expf(x); }
__device__ inline void trap() { asm volatile("trap;"); }

#endif

}  // namespace vbgemm
