// Products of warpgroups (wgmma), which only Hopper has (sm_90a). The tensor cores read the operands from shared memory, and A also from
// registers, asynchronously to the threads' instructions. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "catalogue.h"

namespace vbgemm {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kWarpgroupProducts = true;
#else
inline constexpr bool kWarpgroupProducts = false;  // nothing below is called then
#endif

#ifdef __CUDACC__

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

// Makes this thread's writes to shared memory visible to the tensor cores (and to TMA) from the thread block's next barrier on.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// To be called before the first of a series of products, of which other instructions may have touched the sums or A's registers.
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for the products committed so far, except for those of the newest `kNewest` groups.
template <int kNewest>
__device__ inline void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
}
__device__ inline void warpgroup_wait_all() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define VBGEMM_SUM(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define VBGEMM_SUMS(i) VBGEMM_SUM(i), VBGEMM_SUM(i + 1), VBGEMM_SUM(i + 2), VBGEMM_SUM(i + 3)
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

// sums += A B for 64 x 128 sums and 16 steps of K. kAcrossA: A is contiguous along its rows' dimension (M), not along K; kAcrossB: B is
// contiguous along N. Wave w of the four has rows 16 w to 16 w + 15, and sums[j] has columns 8 j to 8 j + 7, distributed over the lanes as
// in multiply_bfloat16.
template <Kind kKind, bool kAcrossA, bool kAcrossB>
__device__ inline void multiply_warpgroup(MatrixDescriptor a, MatrixDescriptor b, float (&sums)[16][4]) {
  static_assert(kKind == Kind::bf16 || kKind == Kind::f16);
#define VBGEMM_16_BIT_PRODUCT(shape_and_types)                                                                 \
  asm volatile(VBGEMM_WARPGROUP_PRODUCT(shape_and_types, VBGEMM_64_SUMS, "%64, %65, add, 1, 1, %66, %67", "1") \
               : VBGEMM_SUMS(0), VBGEMM_SUMS(4), VBGEMM_SUMS(8), VBGEMM_SUMS(12)                               \
               : "l"(a.descriptor), "l"(b.descriptor), "n"(kAcrossA), "n"(kAcrossB))
  if constexpr (kKind == Kind::bf16) {
    VBGEMM_16_BIT_PRODUCT("m64n128k16.f32.bf16.bf16");
  } else {
    VBGEMM_16_BIT_PRODUCT("m64n128k16.f32.f16.f16");
  }
#undef VBGEMM_16_BIT_PRODUCT
}

// As above, for 64 x 128 or 64 x 256 sums. If `adds` is false, the previous values of the sums are ignored.
template <Kind kKind, bool kAcrossA, bool kAcrossB, int kBlocks>
__device__ inline void multiply_warpgroup(MatrixDescriptor a, MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds) {
  static_assert(kKind == Kind::bf16 || kKind == Kind::f16);
  static_assert(kBlocks == 16 || kBlocks == 32);
  const int add = adds;
#define VBGEMM_FACTORS "l"(a.descriptor), "l"(b.descriptor), "n"(kAcrossA), "n"(kAcrossB), "r"(add)
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

// The TF32 product, with 8 steps of K. A comes from registers, where each warp has 16 rows as in multiply_tf32; B is contiguous along K in
// shared memory. The tensor cores ignore the last 13 bits of each element. If `adds` is false, the previous values of the sums are ignored.
template <int kBlocks>
__device__ inline void multiply_warpgroup_tf32(const uint32_t (&a)[4], MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds = true) {
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
#undef VBGEMM_WARPGROUP_PRODUCT
#endif

}  // namespace vbgemm
