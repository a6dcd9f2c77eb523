// The only file that names a vendor: what the kernels need of CUDA (HIP later), as plain functions.
//
// The asynchronous copies exist from sm_80 on; elsewhere they are plain copies, complete when the block's next barrier is passed, which is
// all that the kernels rely on. A build that runs kernels on the CPU (csrc/emulation) names its own header in VBGEMM_GPU_VENDOR_HEADER.
#pragma once
#include <cstdint>

#ifdef VBGEMM_GPU_VENDOR_HEADER
#include VBGEMM_GPU_VENDOR_HEADER
#else
#include <cuda_runtime.h>

namespace vbgemm {

using Error = cudaError_t;
using Stream = cudaStream_t;
inline constexpr Error kSuccess = cudaSuccess, kInvalidValue = cudaErrorInvalidValue;
inline constexpr int kWaveSize = 32;

// A kernel's parameter block, read in place by all threads, and an object in the block's shared memory.
#define VBGEMM_PARAMETERS(Type, name) const __grid_constant__ Type name
#define VBGEMM_SHARED(Type, name) __shared__ Type name

inline const char* error_name(Error error) { return cudaGetErrorString(error); }

inline Error launch_kernel(const void* kernel, uint32_t blocks, int threads, void* parameters, Stream stream) {
  void* arguments[] = {parameters};
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments, 0, stream);
}

// Brings a kernel's code onto the current device.
inline Error load_kernel(const void* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

#ifdef __CUDACC__  // the rest is device code

// Volatile, so that what one tile derives from it is computed for that tile and not kept in registers for all the tiles of a kernel.
__device__ inline int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  __builtin_assume(index >= 0 && index < 1024);  // so that dividing it is a shift
  return index;
}
__device__ inline uint32_t block_index() { return blockIdx.x; }
__device__ inline uint32_t grid_size() { return gridDim.x; }
__device__ inline void block_barrier() { __syncthreads(); }

__device__ inline void wave_barrier() { __syncwarp(); }

// How many lanes of the wave say yes; every lane of it must call.
__device__ inline int count_lanes(bool yes) { return __popc(__ballot_sync(0xffffffffu, yes)); }

__device__ inline uint64_t load_readonly(const uint64_t* address) { return __ldg(reinterpret_cast<const unsigned long long*>(address)); }

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

#if __CUDA_ARCH__ >= 800
__device__ inline uint16_t float_to_bfloat16(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// Starts copying `kBytes` (2, 4, 8 or 16) from global to shared memory, or writes zeros there where `valid` is false; then the source
// address is not used. The predicate costs nothing: it becomes an operand of the copy instruction. There is none for 2 bytes.
template <int kBytes>
__device__ inline void copy_async(void* shared, const void* global, bool valid) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int ignore = !valid;
  if constexpr (kBytes == 2) {
    *static_cast<unsigned short*>(shared) = valid ? __ldg(static_cast<const unsigned short*>(global)) : 0;
  } else if constexpr (kBytes == 16) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p;}" ::"r"(to), "l"(global),
                 "r"(ignore)
                 : "memory");
  } else {
    static_assert(kBytes == 4 || kBytes == 8);
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; cp.async.ca.shared.global.L2::128B [%0], [%1], %3, p;}" ::"r"(to), "l"(global),
                 "r"(ignore), "n"(kBytes)
                 : "memory");
  }
}

// Closes the group of copies started since the last call; it may be empty.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all of this thread's groups but the newest `kNewest` have arrived.
template <int kNewest>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}
#else
__device__ inline uint16_t float_to_bfloat16(float x) {
  const uint32_t bits = __float_as_uint(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>((x == x ? rounded : 0x7fffffff) >> 16);
}

template <int kBytes>
__device__ inline void copy_async(void* shared, const void* global, bool valid) {
  struct alignas(kBytes) Piece {
    unsigned char bytes[kBytes];
  };
  *static_cast<Piece*>(shared) = valid ? *static_cast<const Piece*>(global) : Piece{};
}
__device__ inline void commit_copies() {}
template <int kNewest>
__device__ inline void wait_copies() {}
#endif

#endif
}  // namespace vbgemm
#endif
