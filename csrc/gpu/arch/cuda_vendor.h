// The CUDA functions that kernels use, which hip_vendor.h and the emulation also provide: launches, the threads of a kernel, and global
// memory; arithmetic is in cuda_numbers.h, asynchronous copies and tensor cores in ptx.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "gpu/arch/cuda_numbers.h"
#include "gpu/ptx/sm80.h"
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
// An object in dynamic shared memory, whose size the launch sets; more than 48 KB require dynamic shared memory. Its alignment is that of
// the type, because a larger one would also apply to the other kernels of the file.
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
  // Lets a launch use all of the shared memory. The attribute is set at each launch, because it belongs to a device and context, and
  // setting it costs a fraction of the launch.
  const int most = block_bytes - static_cast<int>(compiled.sharedSizeBytes);
  if (error == kSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  // Code compiled for an older architecture does not wait for the previous kernel, on any device.
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
// calls await_previous_kernel() may follow then: XLA's kernels have been seen to read results before they were written
// (docs/design/latency.md, L2).
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Ends this thread, which must have called await_previous_kernel(). On a machine that cannot end a thread, this does nothing.
__device__ inline void leave_kernel() { asm volatile("exit;"); }

// Loads data that a previous kernel may have written, after await_previous_kernel(). It does not use the read-only path (__ldg), whose
// cache may hold older data.
template <class T>
__device__ inline T load_after_wait(const T* address) {
  await_previous_kernel();
  return *address;
}

// The type of a load or store of `kBytes` by one instruction, whatever the bytes mean.
template <int kBytes>
struct AccessType;
template <>
struct AccessType<1> {
  using type = uint8_t;
};
template <>
struct AccessType<2> {
  using type = uint16_t;
};
template <>
struct AccessType<4> {
  using type = uint32_t;
};
template <>
struct AccessType<8> {
  using type = uint2;
};
template <>
struct AccessType<16> {
  using type = uint4;
};

// Loads data before await_previous_kernel() that no running kernel can have written. It reads from L2, because the multiprocessor's L1 may
// hold data from long before.
__device__ inline int32_t load_before_wait(const int32_t* address) { return __ldcg(address); }
template <int kBytes>
__device__ inline void load_bytes_before_wait(void* registers, const void* global) {
  // As one number of 64 bits: with two of 32, kernels of float64 need more registers.
  using Bytes = std::conditional_t<kBytes == 8, unsigned long long, typename AccessType<kBytes>::type>;
  const auto bytes = __ldcg(static_cast<const Bytes*>(global));
  memcpy(registers, &bytes, kBytes);
}

// Loads and stores between registers and global memory.
template <int kBytes>
__device__ inline void load_bytes(void* registers, const void* global) {
  __builtin_assume(__isGlobal(global));
  const auto bytes = *static_cast<const typename AccessType<kBytes>::type*>(global);
  memcpy(registers, &bytes, kBytes);
}
// A load of data that will not be read again, so that the caches may evict it first.
template <int kBytes>
__device__ inline void load_streamed(void* registers, const void* global) {
  __builtin_assume(__isGlobal(global));
  const auto bytes = __ldcs(static_cast<const typename AccessType<kBytes>::type*>(global));
  memcpy(registers, &bytes, kBytes);
}
// Loads 4 or 16 bytes, or zeros if `valid` is false; the address is not used then. It is predicated instead of branching, so that later
// loads need not wait for it.
template <int kBytes>
__device__ inline void load_bytes_if(bool valid, void* registers, const void* global) {
  static_assert(kBytes == 4 || kBytes == 16);
  typename AccessType<kBytes>::type bytes;
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
  typename AccessType<kBytes>::type bytes;
  memcpy(&bytes, registers, kBytes);
  __builtin_assume(__isGlobal(global));
  *static_cast<typename AccessType<kBytes>::type*>(global) = bytes;
}
// Stores nothing if `valid` is false. It is predicated and has no branch, since the compiler would move the computation of the value into a
// branch.
#define VBGEMM_STORE(type, values, ...)                                                                                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global" type " [%1], " values ";}" ::"r"(store), "l"(global), __VA_ARGS__ \
               : "memory")
template <int kBytes>
__device__ inline void store_bytes_if(bool valid, void* global, const void* registers) {
  typename AccessType<kBytes>::type bytes;
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
  typename AccessType<kBytes>::type bytes;
  memcpy(&bytes, registers, kBytes);
  const int store = valid;
  if constexpr (kBytes == 8) VBGEMM_STORE(".cs.v2.u32", "{%2, %3}", "r"(bytes.x), "r"(bytes.y));
  if constexpr (kBytes == 16) VBGEMM_STORE(".cs.v4.u32", "{%2, %3, %4, %5}", "r"(bytes.x), "r"(bytes.y), "r"(bytes.z), "r"(bytes.w));
}
#undef VBGEMM_STORE

// Returns the number of lanes of the warp for which `predicate` is true. All lanes of the warp call this together.
__device__ inline int popc_ballot(bool predicate) { return __popc(__ballot_sync(0xffffffffu, predicate)); }

// Exchanges values between lanes whose indices differ in the bit kDistance. All lanes of the warp call this together.
template <int kDistance, class Value>
__device__ inline void shfl_xor(Value& value) {
  uint32_t words[sizeof(Value) / 4];
  memcpy(words, &value, sizeof(Value));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_xor_sync(0xffffffffu, word, kDistance);
  memcpy(&value, words, sizeof(Value));
}

__device__ inline void prefetch_to_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

#endif
}  // namespace vbgemm
