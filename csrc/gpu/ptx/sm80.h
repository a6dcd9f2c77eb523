// Ampere's instructions as functions: asynchronous copies from global to shared memory, MMAs, and loads of their fragments. PTX ISA,
// "cp.async", "ldmatrix", "mma".
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#ifdef __CUDACC__

namespace vbgemm {

// Starts an asynchronous copy of `kBytes` (1, 2, 4, 8 or 16) from global to shared memory, or writes zeros if `valid` is false; the source
// address is not used then. The predicate is free: it becomes an operand of the copy instruction. For 1 or 2 bytes there is no asynchronous
// copy, and a load and a store replace it. kL2Prefetch: L2 prefetch size in bytes, a hint.
template <int kBytes, int kL2Prefetch = 128>
__device__ inline void cp_async(void* shared, const void* global, bool valid) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int ignore = !valid;
  if constexpr (kBytes == 1) {
    asm volatile(
        "{.reg .pred p; .reg .u16 x; setp.eq.b32 p, %2, 0; mov.u16 x, 0; @p ld.global.u8 x, [%1]; st.shared.u8 [%0], x;}" ::"r"(to),
        "l"(global), "r"(ignore)
        : "memory");
  } else if constexpr (kBytes == 2) {
    asm volatile(
        "{.reg .pred p; .reg .u16 x; setp.eq.b32 p, %2, 0; mov.u16 x, 0; @p ld.global.u16 x, [%1]; st.shared.u16 [%0], x;}" ::"r"(to),
        "l"(global), "r"(ignore)
        : "memory");
  } else if constexpr (kBytes == 16) {
#define VBGEMM_COPY(ahead)                                                                                                                 \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; cp.async.cg.shared.global.L2::" ahead "B [%0], [%1], 16, p;}" ::"r"(to), "l"(global), \
               "r"(ignore)                                                                                                                 \
               : "memory")
    if constexpr (kL2Prefetch == 256) {
      VBGEMM_COPY("256");
    } else {
      VBGEMM_COPY("128");
    }
#undef VBGEMM_COPY
  } else {
    static_assert(kBytes == 4 || kBytes == 8);
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; cp.async.ca.shared.global.L2::128B [%0], [%1], %3, p;}" ::"r"(to), "l"(global),
                 "r"(ignore), "n"(kBytes)
                 : "memory");
  }
}

// Copies the first `count` of four bytes, which are `stride` bytes apart in global memory, to adjacent bytes of shared memory, and zeroes
// the others. The copy is not asynchronous. `shared` is a multiple of 4.
__device__ inline void gather_four_bytes(void* shared, const void* global, uint32_t stride, int count) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{.reg .pred p, q, r, s; .reg .u64 at, next; .reg .u32 x, y, z, w;\n"
      "setp.gt.s32 p, %3, 0; setp.gt.s32 q, %3, 1; setp.gt.s32 r, %3, 2; setp.gt.s32 s, %3, 3;\n"
      "mov.u32 x, 0; mov.u32 y, 0; mov.u32 z, 0; mov.u32 w, 0; cvt.u64.u32 next, %2;\n"
      "@p ld.global.u8 x, [%1]; add.u64 at, %1, next; @q ld.global.u8 y, [at];\n"
      "add.u64 at, at, next; @r ld.global.u8 z, [at]; add.u64 at, at, next; @s ld.global.u8 w, [at];\n"
      "prmt.b32 x, x, y, 0x0040; prmt.b32 z, z, w, 0x0040; prmt.b32 x, x, z, 0x5410; st.shared.u32 [%0], x;}" ::"r"(to),
      "l"(global), "r"(stride), "r"(count)
      : "memory");
}

// Closes the group of copies started since the last call; the group may be empty.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all of this thread's groups have arrived, except the newest `kNewest`.
template <int kNewest>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// Tensor cores. Fragments are laid out as in the PTX ISA's chapter on mma. With lane = 4 g + t, a lane of a 16 x k product holds: A's rows
// g and g + 8 (inner index) at depths t and t + 4 (outer index), or at the pairs of depths 2t, 2t + 1 and 2t + 8, 2t + 9 where two elements
// share a register; B's column g at the same depths; and C's columns 2t and 2t + 1 of row g, then of row g + 8. All lanes of a warp call
// these functions together.

// Loads four matrices of 8 rows by 16 bytes from shared memory (ldmatrix). Lane 8 i + r gives the address of row r of matrix i; register i
// receives word t of row g.
__device__ inline void ldmatrix_x4(const void* row, uint32_t (&to)[4]) {
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
// As ldmatrix_x4, but transposed by 2-byte elements: register i receives the elements of column g in rows 2t and 2t + 1.
__device__ inline void ldmatrix_x4_trans(const void* row, uint32_t (&to)[4]) {
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

#define VBGEMM_DEFINE_PRODUCT(name, shape_and_types)                                                           \
  __device__ inline void name(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {                 \
    asm("mma.sync.aligned." shape_and_types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                   \
  }
VBGEMM_DEFINE_PRODUCT(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
VBGEMM_DEFINE_PRODUCT(mma_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
VBGEMM_DEFINE_PRODUCT(mma_float16, "m16n8k16.row.col.f32.f16.f16.f32")
#undef VBGEMM_DEFINE_PRODUCT

// m16n8k32. A register holds four values that are adjacent along K, where 2-byte types have two. Sums wrap around on overflow.
__device__ inline void mma_int8(const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// m16n8k8 for float64, by one instruction if the architecture has it.
__device__ inline void mma_float64(const double (&a)[4], const double (&b)[2], double (&c)[4]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i % 2;  // half of the rows
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
        : "d"(a[i]), "d"(b[i / 2]));
  }
#endif
}

}  // namespace vbgemm

#endif
