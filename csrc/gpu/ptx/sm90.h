// Hopper's instructions as functions: TMA copies, the mbarriers that these copies complete, clusters of CTAs, the reallocation of registers
// between warpgroups, and (sm_90a only) warpgroup MMAs. PTX ISA, "cp.async.bulk.tensor", "mbarrier", "setmaxnreg", "Asynchronous Warpgroup
// Level Matrix Multiply-Accumulate Instructions".
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#ifdef VBGEMM_DEADLINE
#include <cstdio>
#endif

#include "catalogue.h"

namespace vbgemm {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasWgmma = true;
#else
inline constexpr bool kHasWgmma = false;  // nothing below is called then
#endif

#ifdef __CUDACC__

__device__ inline uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

// An mbarrier in shared memory. A phase completes when both its pending arrivals and its expected transaction bytes are zero.
struct alignas(8) Mbarrier {
  uint64_t bits;
};

__device__ inline void mbarrier_init(Mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes barriers that this thread has initialized visible to the cluster and to TMA. A barrier of the cluster must follow.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives once all copies that this thread has started by cp_async have completed. The barrier's count includes this arrival (.noinc).
__device__ inline void cp_async_mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives, and adds `bytes` to the phase's expected transaction bytes.
__device__ inline void mbarrier_arrive_expect_tx(Mbarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// Arrives at the same barrier of another CTA of the cluster. The instruction has no scope: with cluster scope it becomes a fence of all
// memory, which takes longer than the products of a K step (docs/design/ragged.md).
__device__ inline void mbarrier_arrive_remote(Mbarrier& barrier, int cta) {
  asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(
                   shared_address(&barrier)),
               "r"(cta)
               : "memory");
}

// Waits until the phase with this parity has completed. If VBGEMM_DEADLINE is defined (in clock cycles), a longer wait ends the kernel with
// an error, which helps to debug pipelines.
__device__ inline void mbarrier_wait(Mbarrier& barrier, uint32_t parity) {
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

// Writes a word into another CTA's shared memory, which completes 4 of the bytes that the barrier there expects.
__device__ inline void st_async(uint32_t* to, int cta, uint32_t value, Mbarrier& barrier) {
  asm volatile(
      "{.reg .b32 place, full; mapa.shared::cluster.u32 place, %0, %1; mapa.shared::cluster.u32 full, %2, %1;"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %3, [full];}" ::"r"(shared_address(to)),
      "r"(cta), "r"(shared_address(&barrier)), "r"(value)
      : "memory");
}

// Copies a box of a tensor to shared memory; elements outside the tensor become zero. One thread calls this.
__device__ inline void tma_load(void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
                   shared_address(shared)),
               "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
               : "memory");
}
// Like tma_load, but multicast: to the same shared memory offset, and completing the same barrier, in each CTA of the cluster whose bit is
// set in the mask.
__device__ inline void tma_load_multicast(uint16_t cta_mask, void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], "
      "%6;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)), "h"(cta_mask)
      : "memory");
}
// Copies a box from shared memory to a tensor, except for elements outside the tensor. The copy joins the group that the next
// cp_async_bulk_commit_group() commits. Threads that wrote the box must first have made their writes visible to TMA (fence_proxy_async()).
__device__ inline void tma_store(const CUtensorMap& map, int x, int y, int z, const void* shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x), "r"(y), "r"(z),
               "r"(shared_address(shared))
               : "memory");
}
// Like tma_store, but adds the float32 box to the tensor's elements.
__device__ inline void tma_reduce_add(const CUtensorMap& map, int x, int y, int z, const void* shared) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x), "r"(y),
               "r"(z), "r"(shared_address(shared))
               : "memory");
}
__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most this thread's newest `kNewest` groups of stores have yet to be read from shared memory. Below: until all have
// completed.
template <int kNewest = 0>
__device__ inline void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNewest) : "memory");
}
__device__ inline void cp_async_bulk_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Copies tensor maps from shared to global memory, for TMA copies by threads of this CTA that synchronize with this warp afterwards. The
// whole warp calls this.
template <int kMaps>
__device__ inline void publish_tensormaps(CUtensorMap* to, const CUtensorMap* maps) {
  constexpr int kVectors = kMaps * sizeof(CUtensorMap) / sizeof(uint4);
  static_assert(kVectors <= 32);
  const int lane = threadIdx.x % 32;
  if (lane < kVectors) reinterpret_cast<uint4*>(to)[lane] = reinterpret_cast<const uint4*>(maps)[lane];
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncwarp();
  if (lane < kMaps) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(to + lane) : "memory");
  __syncwarp();
}
// Replaces the address, size and line stride of a tensor map in shared memory. PTX ISA, "tensormap.replace".
__device__ inline void tensormap_replace(const CUtensorMap& map, const void* data, int items, int lines, int64_t line_bytes) {
  const uint32_t at = shared_address(&map);
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(at), "l"(data) : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(at), "r"(items) : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(at), "r"(lines) : "memory");
  asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(at), "l"(line_bytes) : "memory");
}
__device__ inline void prefetch_tensormap(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

__device__ inline int cluster_ctarank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A barrier of all threads of the cluster.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The named barrier `number` (1 to 15; 0 is that of block_barrier), for `threads` threads.
__device__ inline void bar_sync(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The counterpart of ldmatrix_x4: stores four matrices of 8 rows by 16 bytes to shared memory. Lane 8 i + r gives the address
// of row r of matrix i.
__device__ inline void stmatrix_x4(void* row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}
// Like stmatrix_x4, but the matrices are stored transposed: a lane gives the address of a column.
__device__ inline void stmatrix_x4_trans(void* column, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(column)), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// Rounds two values to 16 bits each.
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

// The bytes of a (0 to 3) and b (4 to 7) that the four digits of `select` select, lowest first.
__device__ inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t select) { return __byte_perm(a, b, select); }

// (a & b) | c and (a & b) ^ c, each in one instruction: with constants b and c the compiler would emit two.
__device__ inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  return bits;
}
__device__ inline uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  return bits;
}

// a b + c of two 16-bit values per word, with a single rounding.
template <Kind kKind>
__device__ inline uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t bits;
  if constexpr (kKind == Kind::bf16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  }
  return bits;
}

// Warpgroup MMAs (wgmma). The tensor cores read the operands from shared memory (A also from registers), asynchronously to the threads'
// instructions.

// A matrix in shared memory in the layout of SwizzledLines. next_items and next_lines are the distances in bytes from 128 bytes of a line
// to the next 128, and from 8 lines to the next 8. PTX ISA, "Matrix Descriptor Format".
struct MatrixDescriptor {
  uint64_t descriptor;
};
__device__ inline MatrixDescriptor matrix_descriptor(const void* first, int next_items, int next_lines) {
  constexpr uint64_t kSwizzled128 = uint64_t{1} << 62;
  const uint64_t address = static_cast<uint32_t>(__cvta_generic_to_shared(first));
  return {kSwizzled128 | static_cast<uint64_t>(next_lines >> 4) << 32 | static_cast<uint64_t>(next_items >> 4) << 16 |
          (address & 0x3ffff) >> 4};
}
__device__ inline MatrixDescriptor moved(MatrixDescriptor matrix, int bytes) { return {matrix.descriptor + (bytes >> 4)}; }

// Makes this thread's writes to shared memory visible to the async proxy (the tensor cores and TMA) from the CTA's next barrier on.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Required before the first wgmma of a group if other instructions wrote the accumulators or A's registers.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the newest `kNewest` groups are pending.
template <int kNewest>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
}

#define VBGEMM_SUM(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define VBGEMM_INTEGER_SUM(i) "+r"(sums[i][0]), "+r"(sums[i][1]), "+r"(sums[i][2]), "+r"(sums[i][3])
#define VBGEMM_SUMS(i) VBGEMM_SUM(i), VBGEMM_SUM(i + 1), VBGEMM_SUM(i + 2), VBGEMM_SUM(i + 3)
#define VBGEMM_INTEGER_SUMS(i) VBGEMM_INTEGER_SUM(i), VBGEMM_INTEGER_SUM(i + 1), VBGEMM_INTEGER_SUM(i + 2), VBGEMM_INTEGER_SUM(i + 3)
#define VBGEMM_16_SUMS "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define VBGEMM_32_SUMS VBGEMM_16_SUMS ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VBGEMM_64_SUMS                                                                                                              \
  VBGEMM_32_SUMS                                                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, " \
  "%57, %58, %59, %60, %61, %62, %63"
#define VBGEMM_128_SUMS                                                                                                        \
  VBGEMM_64_SUMS                                                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "   \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define VBGEMM_WARPGROUP_PRODUCT(shape_and_types, sums, factors, adds) \
  "{.reg .pred add; setp.ne.b32 add, " adds ", 0; wgmma.mma_async.sync.aligned." shape_and_types " {" sums "}, " factors ";}"

// sums += A B, m64n128k16. kMnMajorA: A is contiguous along M, not along K; kMnMajorB: B is contiguous along N. Warp w of the four has rows
// 16 w to 16 w + 15, and sums[j] has columns 8 j to 8 j + 7, distributed over the lanes as in mma_bfloat16.
template <Kind kKind, bool kMnMajorA, bool kMnMajorB>
__device__ inline void wgmma(MatrixDescriptor a, MatrixDescriptor b, float (&sums)[16][4]) {
  static_assert(kKind == Kind::bf16 || kKind == Kind::f16);
#define VBGEMM_16_BIT_PRODUCT(shape_and_types)                                                                 \
  asm volatile(VBGEMM_WARPGROUP_PRODUCT(shape_and_types, VBGEMM_64_SUMS, "%64, %65, add, 1, 1, %66, %67", "1") \
               : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12)                               \
               : "l"(a.descriptor), "l"(b.descriptor), "n"(kMnMajorA), "n"(kMnMajorB))
  if constexpr (kKind == Kind::bf16) {
    VBGEMM_16_BIT_PRODUCT("m64n128k16.f32.bf16.bf16");
  } else {
    VBGEMM_16_BIT_PRODUCT("m64n128k16.f32.f16.f16");
  }
#undef VBGEMM_16_BIT_PRODUCT
}

// The same for m64n128k16 or m64n256k16. If `adds` is false, the accumulators are overwritten.
template <Kind kKind, bool kMnMajorA, bool kMnMajorB, int kBlocks>
__device__ inline void wgmma(MatrixDescriptor a, MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds) {
  static_assert(kKind == Kind::bf16 || kKind == Kind::f16);
  static_assert(kBlocks == 16 || kBlocks == 32);
  const int add = adds;
#define VBGEMM_FACTORS "l"(a.descriptor), "l"(b.descriptor), "n"(kMnMajorA), "n"(kMnMajorB), "r"(add)
#define VBGEMM_16_BIT_PRODUCT(types)                                                                                                   \
  if constexpr (kBlocks == 16) {                                                                                                       \
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n128k16." types, VBGEMM_64_SUMS, "%64, %65, add, 1, 1, %66, %67", "%68")                 \
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12)                                                     \
                 : VBGEMM_FACTORS);                                                                                                    \
  } else {                                                                                                                             \
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n256k16." types, VBGEMM_128_SUMS, "%128, %129, add, 1, 1, %130, %131", "%132")           \
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12), VBGEMM_SUMS(16), VBGEMM_SUMS(20), VBGEMM_SUMS(24), \
                   VBGEMM_SUMS(28)                                                                                                     \
                 : VBGEMM_FACTORS);                                                                                                    \
  }
  if constexpr (kKind == Kind::bf16) {
    VBGEMM_16_BIT_PRODUCT("f32.bf16.bf16")
  } else {
    VBGEMM_16_BIT_PRODUCT("f32.f16.f16")
  }
#undef VBGEMM_16_BIT_PRODUCT
#undef VBGEMM_FACTORS
}

// The same for m64n32k16 or m64n8k16. A comes from registers, where each warp has 16 rows as in mma_bfloat16; B is K-major in shared
// memory.
template <Kind kKind, int kBlocks>
__device__ inline void wgmma_from_registers(const uint32_t (&a)[4], MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds) {
  static_assert(kBlocks == 4 || kBlocks == 1);
  const int add = adds;
#define VBGEMM_FACTORS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add)
#define VBGEMM_16_BIT_PRODUCT(types)                                                                                                \
  if constexpr (kBlocks == 4) {                                                                                                     \
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n32k16.f32." types, VBGEMM_16_SUMS, "{%16, %17, %18, %19}, %20, add, 1, 1, 0", "%21") \
                 : VBGEMM_SUMS(0)                                                                                                   \
                 : VBGEMM_FACTORS);                                                                                                 \
  } else {                                                                                                                          \
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n8k16.f32." types, "%0, %1, %2, %3", "{%4, %5, %6, %7}, %8, add, 1, 1, 0", "%9")      \
                 : VBGEMM_SUM(0)                                                                                                    \
                 : VBGEMM_FACTORS);                                                                                                 \
  }
  if constexpr (kKind == Kind::bf16) {
    VBGEMM_16_BIT_PRODUCT("bf16.bf16")
  } else {
    VBGEMM_16_BIT_PRODUCT("f16.f16")
  }
#undef VBGEMM_16_BIT_PRODUCT
#undef VBGEMM_FACTORS
}

// m64n128k32 or m64n256k32 for K-major 8-bit operands: here floats, below integers.
template <Kind kKind, int kBlocks>
__device__ inline void wgmma_8bit(MatrixDescriptor a, MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds) {
  static_assert(kBlocks == 16 || kBlocks == 32);
  const int add = adds;
#define VBGEMM_FACTORS "l"(a.descriptor), "l"(b.descriptor), "r"(add)
#define VBGEMM_BYTE_PRODUCT(types)                                                                                                     \
  if constexpr (kBlocks == 16) {                                                                                                       \
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n128k32.f32." types, VBGEMM_64_SUMS, "%64, %65, add, 1, 1", "%66")                       \
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12)                                                     \
                 : VBGEMM_FACTORS);                                                                                                    \
  } else {                                                                                                                             \
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n256k32.f32." types, VBGEMM_128_SUMS, "%128, %129, add, 1, 1", "%130")                   \
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12), VBGEMM_SUMS(16), VBGEMM_SUMS(20), VBGEMM_SUMS(24), \
                   VBGEMM_SUMS(28)                                                                                                     \
                 : VBGEMM_FACTORS);                                                                                                    \
  }
  if constexpr (kKind == Kind::e4m3) {
    VBGEMM_BYTE_PRODUCT("e4m3.e4m3")
  } else if constexpr (kKind == Kind::e5m2) {
    VBGEMM_BYTE_PRODUCT("e5m2.e5m2")
  } else if constexpr (kKind == Kind::e4m3_e5m2) {
    VBGEMM_BYTE_PRODUCT("e4m3.e5m2")
  } else {
    static_assert(kKind == Kind::e5m2_e4m3);
    VBGEMM_BYTE_PRODUCT("e5m2.e4m3")
  }
#undef VBGEMM_BYTE_PRODUCT
#undef VBGEMM_FACTORS
}
template <Kind kKind, int kBlocks>
__device__ inline void wgmma_8bit(MatrixDescriptor a, MatrixDescriptor b, int (&sums)[kBlocks][4], bool adds) {
  static_assert(kKind == Kind::s8 && (kBlocks == 16 || kBlocks == 32));
  const int add = adds;
  if constexpr (kBlocks == 16) {
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n128k32.s32.s8.s8", VBGEMM_64_SUMS, "%64, %65, add", "%66")
                 : VBGEMM_INTEGER_SUMS(0), VBGEMM_INTEGER_SUMS(4), VBGEMM_INTEGER_SUMS(8), VBGEMM_INTEGER_SUMS(12)
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add));
  } else {
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n256k32.s32.s8.s8", VBGEMM_128_SUMS, "%128, %129, add", "%130")
                 : VBGEMM_INTEGER_SUMS(0), VBGEMM_INTEGER_SUMS(4), VBGEMM_INTEGER_SUMS(8), VBGEMM_INTEGER_SUMS(12), VBGEMM_INTEGER_SUMS(16),
                   VBGEMM_INTEGER_SUMS(20), VBGEMM_INTEGER_SUMS(24), VBGEMM_INTEGER_SUMS(28)
                 : "l"(a.descriptor), "l"(b.descriptor), "r"(add));
  }
}

// The TF32 MMA, with k8. A comes from registers, where each warp has 16 rows as in mma_tf32; B is contiguous along K in shared memory. The
// tensor cores ignore the last 13 bits of each element. If `adds` is false, the accumulators are overwritten.
template <int kBlocks>
__device__ inline void wgmma_tf32(const uint32_t (&a)[4], MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds = true) {
  const int add = adds;
  static_assert(kBlocks == 4 || kBlocks == 8 || kBlocks == 16 || kBlocks == 32);
  if constexpr (kBlocks == 4) {
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n32k8.f32.tf32.tf32", VBGEMM_16_SUMS, "{%16, %17, %18, %19}, %20, add, 1, 1", "%21")
                 : VBGEMM_SUMS(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add));
  } else if constexpr (kBlocks == 8) {
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n64k8.f32.tf32.tf32", VBGEMM_32_SUMS, "{%32, %33, %34, %35}, %36, add, 1, 1", "%37")
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add));
  } else if constexpr (kBlocks == 16) {
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n128k8.f32.tf32.tf32", VBGEMM_64_SUMS, "{%64, %65, %66, %67}, %68, add, 1, 1", "%69")
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add));
  } else {
    asm volatile(VBGEMM_WARPGROUP_PRODUCT("m64n256k8.f32.tf32.tf32", VBGEMM_128_SUMS, "{%128, %129, %130, %131}, %132, add, 1, 1", "%133")
                 : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12), VBGEMM_SUMS(16), VBGEMM_SUMS(20), VBGEMM_SUMS(24),
                   VBGEMM_SUMS(28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"(add));
  }
}

#undef VBGEMM_16_SUMS
#undef VBGEMM_32_SUMS
#undef VBGEMM_64_SUMS
#undef VBGEMM_128_SUMS
#undef VBGEMM_SUM
#undef VBGEMM_SUMS
#undef VBGEMM_INTEGER_SUM
#undef VBGEMM_INTEGER_SUMS
#undef VBGEMM_WARPGROUP_PRODUCT

#endif

}  // namespace vbgemm
