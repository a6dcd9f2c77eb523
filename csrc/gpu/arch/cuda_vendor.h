// What the kernels need of CUDA, as plain functions that hip_vendor.h and the emulation also provide.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "gpu/ptx/sm90.h"

// Older GPUs have neither the asynchronous copies nor the tensor-core products that the kernels use.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "jax_vbgemm's kernels need compute capability 8.0 or newer: compile for sm_80 at least"
#endif

namespace vbgemm {

#define VBGEMM_WAVE_SIZE 32
#define VBGEMM_HAS_PIPELINE 1  // the kernels of gpu/sm90

using Error = cudaError_t;
using Stream = cudaStream_t;
inline constexpr Error kSuccess = cudaSuccess, kInvalidValue = cudaErrorInvalidValue;

// A kernel's limits: threads in a thread block, and thread blocks that a multiprocessor must be able to hold.
#define VBGEMM_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
// A kernel's parameter block, which all threads read in place, and an object in the thread block's shared memory.
#define VBGEMM_PARAMETERS(Type, name) const __grid_constant__ Type name
#define VBGEMM_READ_PARAMETERS(Type, name)
#define VBGEMM_SHARED(Type, name) __shared__ Type name
// An object in dynamic shared memory, whose size the launch gives; more than 48 KB require that. Its alignment is that of the type, because
// a larger one would also apply to the other kernels of the file.
#define VBGEMM_DYNAMIC_SHARED(Type, name)                                    \
  extern __shared__ __align__(alignof(Type)) unsigned char vbgemm_dynamic[]; \
  Type& name = *reinterpret_cast<Type*>(vbgemm_dynamic)

inline const char* error_name(Error error) { return cudaGetErrorString(error); }

// The maximum number of thread blocks of a launch.
constexpr int64_t max_blocks(int) { return INT32_MAX; }

// shared_bytes: the dynamic shared memory. cluster: thread blocks in a cluster. may_start_early: the kernel may start before the previous
// kernel in the stream has ended, so that it has to call await_previous_kernel().
inline Error launch_kernel(const void* kernel, uint32_t blocks, int threads, int shared_bytes, void* parameters, Stream stream,
                           int cluster = 1, bool may_start_early = true) {
  int device = 0, block_bytes = 0;
  cudaFuncAttributes compiled{};
  Error error = cudaFuncGetAttributes(&compiled, kernel);
  if (error == kSuccess) error = cudaGetDevice(&device);
  if (error == kSuccess) error = cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  // A launch may use all the shared memory there is. The attribute is set at each launch, because it belongs to a device and context, and
  // setting it costs a fraction of the launch.
  const int most = block_bytes - static_cast<int>(compiled.sharedSizeBytes);
  if (error == kSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  // Code that was compiled for an older architecture does not wait for the previous kernel, whatever device runs it.
  const bool early = may_start_early && compiled.ptxVersion >= 90;
  if (error != kSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !early ? 0 : cluster > 1 ? 2 : 1;
  void* arguments[] = {parameters};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

inline Error clear_memory(void* memory, size_t bytes, Stream stream) { return cudaMemsetAsync(memory, 0, bytes, stream); }

// The number of multiprocessors of the current device; 0 where that is unknown.
inline int multiprocessors() {
  int device = 0, units = 0;
  if (cudaGetDevice(&device) != kSuccess || cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) != kSuccess) return 0;
  return units;
}

// Loads a kernel's code onto the current device.
inline Error load_kernel(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

#ifdef __CUDACC__  // the rest is device code

// Keeps the compiler from moving reads of x across this place.
__device__ inline void keep_in_place(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ inline void keep_in_place(int& x) { asm volatile("" : "+r"(x)::"memory"); }
__device__ inline void keep_in_place(uint64_t& x) { asm volatile("" : "+l"(x)::"memory"); }

template <class Value>
__device__ inline Value shfl(Value value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
__device__ inline int grid_blocks() { return static_cast<int>(gridDim.x); }
// Returns the counter's value and increments it, as one step.
__device__ inline uint32_t take_next(uint32_t* counter) { return atomicAdd(counter, 1u); }
// Divisions and powers with subnormal numbers as zeros, so that each is one instruction and a multiplication: for y up to 2^126, and with
// an error of about 2 + |x| units in the last place (CUDA C++ Programming Guide, "Intrinsic Functions").
__device__ inline float fast_divide(float x, float y) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  return x * inverse;
}
__device__ inline float fast_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950409f));
  return power;
}
// 1 / x rounded to nearest, for x from 2^-126 to 2^126; a division has a branch for other numbers.
__device__ inline float reciprocal(float x) {
  const float near = fast_divide(1, x);
  return __fmaf_rn(near, -__fmaf_rn(near, x, -1), near);
}
__device__ inline void trap() { asm volatile("trap;"); }

// Volatile, so that values derived from the index are computed for each tile and not held in registers for all tiles of a kernel.
__device__ inline int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index >= 0 && index < 1024);  // so that a division by a power of two becomes a shift
  return index;
}
__device__ inline uint32_t block_index() { return blockIdx.x; }
__device__ inline void block_barrier() { __syncthreads(); }

__device__ inline void wave_barrier() { __syncwarp(); }

// Waits until the previous kernels in the stream have ended and their writes are visible. Before this call a kernel must touch nothing that
// they wrote or may still read. The work before it, which includes the launch itself, overlaps the end of the previous kernel.
__device__ inline void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets thread blocks of the next kernel in the stream start as soon as all of this kernel have called this or ended. Only a kernel that
// calls await_previous_kernel() may follow then: XLA's have been seen to read results before they were written (docs/design/latency.md,
// L2).
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Ends this thread, which must have called await_previous_kernel(). On a machine that cannot end a thread, this does nothing.
__device__ inline void leave_kernel() { asm volatile("exit;"); }

// Loads what a previous kernel may have written. It does not use the read-only path (__ldg), whose cache may hold older data.
template <class T>
__device__ inline T load_awaited(const T* address) {
  await_previous_kernel();
  return *address;
}

// Loads, before await_previous_kernel(), what no kernel that is still running may have written. It reads from L2, because the
// multiprocessor's L1 may hold data from long before.
__device__ inline uint64_t load_early(const uint64_t* address) { return __ldcg(reinterpret_cast<const unsigned long long*>(address)); }
__device__ inline int32_t load_early(const int32_t* address) { return __ldcg(address); }

// A type of N bytes, which one instruction moves, whatever the bytes mean.
template <int kBytes>
struct Piece;
template <>
struct Piece<1> {
  using type = uint8_t;
};
template <>
struct Piece<2> {
  using type = uint16_t;
};
template <>
struct Piece<4> {
  using type = uint32_t;
};
template <>
struct Piece<8> {
  using type = uint2;
};
template <>
struct Piece<16> {
  using type = uint4;
};

// Loads and stores between registers and global memory.
template <int kBytes>
__device__ inline void load_bytes(void* registers, const void* global) {
  __builtin_assume(__isGlobal(global));
  const auto bytes = *static_cast<const typename Piece<kBytes>::type*>(global);
  memcpy(registers, &bytes, kBytes);
}
// A load of data that will not be read again, so that the caches may evict it first.
template <int kBytes>
__device__ inline void load_streamed(void* registers, const void* global) {
  __builtin_assume(__isGlobal(global));
  const auto bytes = __ldcs(static_cast<const typename Piece<kBytes>::type*>(global));
  memcpy(registers, &bytes, kBytes);
}
// Loads 4 or 16 bytes, or zeros if `valid` is false; the address is not used then. It is predicated and has no branch, so that loads behind
// it need not wait for it.
template <int kBytes>
__device__ inline void load_bytes_if(bool valid, void* registers, const void* global) {
  static_assert(kBytes == 4 || kBytes == 16);
  typename Piece<kBytes>::type bytes;
  const int load = valid;
  if constexpr (kBytes == 4) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; mov.u32 %0, 0; @p ld.global.u32 %0, [%2];}"
                 : "=&r"(bytes)
                 : "r"(load), "l"(global)
                 : "memory");
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %4, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
        "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%5];}"
        : "=&r"(bytes.x), "=&r"(bytes.y), "=&r"(bytes.z), "=&r"(bytes.w)
        : "r"(load), "l"(global)
        : "memory");
  }
  memcpy(registers, &bytes, kBytes);
}
template <int kBytes>
__device__ inline void store_bytes(void* global, const void* registers) {
  typename Piece<kBytes>::type bytes;
  memcpy(&bytes, registers, kBytes);
  __builtin_assume(__isGlobal(global));
  *static_cast<typename Piece<kBytes>::type*>(global) = bytes;
}
// Stores nothing if `valid` is false. It is predicated and has no branch, since the compiler would move the computation of the value into a
// branch.
#define VBGEMM_STORE(type, values, ...)                                                                                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global" type " [%1], " values ";}" ::"r"(store), "l"(global), __VA_ARGS__ \
               : "memory")
template <int kBytes>
__device__ inline void store_bytes_if(bool valid, void* global, const void* registers) {
  typename Piece<kBytes>::type bytes;
  memcpy(&bytes, registers, kBytes);
  const int store = valid;
  if constexpr (kBytes == 1) VBGEMM_STORE(".u8", "%2", "h"(uint16_t{bytes}));
  if constexpr (kBytes == 2) VBGEMM_STORE(".u16", "%2", "h"(bytes));
  if constexpr (kBytes == 4) VBGEMM_STORE(".u32", "%2", "r"(bytes));
  if constexpr (kBytes == 8) VBGEMM_STORE(".v2.u32", "{%2, %3}", "r"(bytes.x), "r"(bytes.y));
  if constexpr (kBytes == 16) VBGEMM_STORE(".v4.u32", "{%2, %3, %4, %5}", "r"(bytes.x), "r"(bytes.y), "r"(bytes.z), "r"(bytes.w));
}
// A store of 8 or 16 bytes that the caches may evict first, before data that will be read again.
template <int kBytes>
__device__ inline void store_streamed_if(bool valid, void* global, const void* registers) {
  static_assert(kBytes == 8 || kBytes == 16);
  typename Piece<kBytes>::type bytes;
  memcpy(&bytes, registers, kBytes);
  const int store = valid;
  if constexpr (kBytes == 8) VBGEMM_STORE(".cs.v2.u32", "{%2, %3}", "r"(bytes.x), "r"(bytes.y));
  if constexpr (kBytes == 16) VBGEMM_STORE(".cs.v4.u32", "{%2, %3, %4, %5}", "r"(bytes.x), "r"(bytes.y), "r"(bytes.z), "r"(bytes.w));
}
#undef VBGEMM_STORE

// Returns for how many lanes of the warp `yes` is true. All lanes of the warp call this together.
__device__ inline int popc_ballot(bool yes) { return __popc(__ballot_sync(0xffffffffu, yes)); }

// Exchanges values between lanes whose numbers differ in the bit kDistance. All lanes of the warp call this together.
template <int kDistance, class Value>
__device__ inline void shfl_xor(Value& value) {
  uint32_t words[sizeof(Value) / 4];
  memcpy(words, &value, sizeof(Value));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_xor_sync(0xffffffffu, word, kDistance);
  memcpy(&value, words, sizeof(Value));
}

__device__ inline void prefetch_to_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

__device__ inline float bfloat16_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
__device__ inline float float16_to_float(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ inline uint16_t float_to_float16(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ inline uint16_t float_to_bfloat16(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// Two numbers in a word, the first one in its lower half.
__device__ inline uint32_t floats_to_float16s(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ inline uint32_t floats_to_bfloat16s(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// Starts an asynchronous copy of `kBytes` (1, 2, 4, 8 or 16) from global to shared memory, or writes zeros if `valid` is false; the source
// address is not used then. The predicate is free: it becomes an operand of the copy instruction. For 1 or 2 bytes there is no asynchronous
// copy, and a load and a store replace it. kAhead: how many bytes around the source L2 fetches together, as a hint.
template <int kBytes, int kAhead = 128>
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
    if constexpr (kAhead == 256) {
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

// Copies the first `count` of four bytes that lie `stride` bytes apart in global memory to adjacent bytes of shared memory, and makes the
// others zero. The copy is not asynchronous. `shared` is a multiple of 4.
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

// Rounds to the nearest tf32 number; may overflow to infinity. The last 13 bits of the result, which the tensor cores ignore, are
// arbitrary. This is one instruction from sm_90 on, and three before.
__device__ inline uint32_t round_to_tf32(float x) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
  return bits;
}
__device__ inline float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ inline uint32_t bits_of_float(float x) { return __float_as_uint(x); }

// Returns the 32 bits of high:low that begin at bit `bits` (0 to 31).
__device__ inline uint32_t shifted_word(uint32_t low, uint32_t high, int bits) { return __funnelshift_r(low, high, bits); }

// Returns the bytes of high:low, numbered from 0 on, that the hexadecimal digits of `selector` name, the lowest digit first.
__device__ inline uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }

// Returns x y, and x y + z, for two float16 numbers in each word. Neither flushes subnormal numbers.
__device__ inline uint32_t multiply_float16s(uint32_t x, uint32_t y) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}
__device__ inline uint32_t multiply_add_float16s(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}

// Whether one instruction widens two float8_e4m3fn numbers to float16, and that instruction.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kWidensE4m3 = true;
#else
inline constexpr bool kWidensE4m3 = false;
#endif
__device__ inline uint32_t widen_e4m3(uint16_t two) {
  uint32_t wide = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(two));
#endif
  return wide;
}

// Whether instructions narrow float32 numbers to 8 bits, and four numbers by them: to float8_e4m3fn, or to float8_e5m2. The first number's
// byte is the lowest one. A number that is too large becomes the largest one, and NaN is NaN.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kNarrowsFloat8 = true;
#else
inline constexpr bool kNarrowsFloat8 = false;
#endif
template <bool kE4m3>
__device__ inline uint32_t narrow_float8(float x, float y, float z, float w) {
  uint32_t four = 0;
#if __CUDA_ARCH__ >= 890
#define VBGEMM_NARROW(type)                                                                     \
  asm("{.reg .b16 low, high; cvt.rn.satfinite." type ".f32 low, %2, %1; cvt.rn.satfinite." type \
      ".f32 high, %4, %3;\n"                                                                    \
      "mov.b32 %0, {low, high};}"                                                               \
      : "=r"(four)                                                                              \
      : "f"(x), "f"(y), "f"(z), "f"(w))
  if constexpr (kE4m3) {
    VBGEMM_NARROW("e4m3x2");
  } else {
    VBGEMM_NARROW("e5m2x2");
  }
#undef VBGEMM_NARROW
#endif
  return four;
}

// The larger one of each pair of 16-bit halves, without signs.
__device__ inline uint32_t larger_halves(uint32_t x, uint32_t y) { return __vmaxu2(x, y); }

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

// A product of 16 x 8 x 32. A register holds four numbers that are adjacent along K, as of two-byte elements it holds two. The sums wrap
// around on overflow.
__device__ inline void mma_int8(const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A product of 16 x 8 x 8, in one instruction where the architecture has one.
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

#endif
}  // namespace vbgemm
