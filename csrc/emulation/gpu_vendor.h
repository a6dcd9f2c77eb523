// What the kernels need of a GPU, on the CPU: csrc/gpu/gpu_vendor.h includes this where VBGEMM_GPU_VENDOR_HEADER names it.
#pragma once
#include <cstring>

#include "block.h"

#ifndef VBGEMM_WAVE_SIZE
#define VBGEMM_WAVE_SIZE 32
#endif

#define __device__
#define __host__
#define __global__ __attribute__((weak))  // an executable need not contain the kernels of every dtype
#define __launch_bounds__(...)
#define VBGEMM_PARAMETERS(Type, name) const Type& name
#define VBGEMM_SHARED(Type, name) Type& name = *static_cast<Type*>(vbgemm::emulation::shared_memory(sizeof(Type)))

namespace vbgemm {

enum Error { kSuccess, kInvalidValue };
struct Stream {};
inline constexpr int kWaveSize = VBGEMM_WAVE_SIZE;

inline const char* error_name(Error error) { return error == kSuccess ? "success" : "invalid value"; }

inline Error launch_kernel(const void* kernel, uint32_t blocks, int threads, void* parameters, Stream) {
  emulation::run_grid(reinterpret_cast<emulation::Kernel>(reinterpret_cast<uintptr_t>(kernel)), parameters, blocks, threads);
  return kSuccess;
}

inline Error load_kernel(const void*) { return kSuccess; }

inline int thread_index() { return emulation::thread_index(); }
inline uint32_t block_index() { return emulation::grid().block; }
inline uint32_t grid_size() { return emulation::grid().blocks; }
inline void block_barrier() { emulation::block_barrier(); }
inline void wave_barrier() { emulation::count_lanes(false); }
inline int count_lanes(bool yes) { return emulation::count_lanes(yes); }

inline uint64_t load_readonly(const uint64_t* address) { return *address; }
inline void prefetch_to_l2(const void*) {}

inline float bfloat16_to_float(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}
inline uint16_t float_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((x == x ? bits + 0x7fff + (bits >> 16 & 1) : 0x7fffffff) >> 16);
}
inline float float16_to_float(uint16_t bits) {
  _Float16 x;
  std::memcpy(&x, &bits, sizeof x);
  return static_cast<float>(x);
}
inline uint16_t float_to_float16(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

template <int kBytes>
inline void copy_async(void* shared, const void* global, bool valid) {
  emulation::start_copy({shared, valid ? global : nullptr, kBytes});
}
inline void commit_copies() { emulation::commit_copies(); }
template <int kNewest>
inline void wait_copies() {
  emulation::wait_copies(kNewest);
}

}  // namespace vbgemm
