// What the kernels need of a GPU, on the CPU: csrc/gpu/gpu_vendor.h includes this where VBGEMM_GPU_VENDOR_HEADER names it.
#pragma once
#include <cmath>
#include <cstring>

#include "block.h"

#ifndef VBGEMM_WAVE_SIZE
#define VBGEMM_WAVE_SIZE 32
#endif

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __global__ __attribute__((weak))  // an executable need not contain the kernels of every dtype
#define __launch_bounds__(...)
#define VBGEMM_PARAMETERS(Type, name) const Type& name
#define VBGEMM_SHARED(Type, name) Type& name = *static_cast<Type*>(vbgemm::emulation::shared_memory(sizeof(Type)))
#define VBGEMM_DYNAMIC_SHARED VBGEMM_SHARED

namespace vbgemm {

enum Error { kSuccess, kInvalidValue };
struct Stream {};
inline constexpr int kWaveSize = VBGEMM_WAVE_SIZE;

inline const char* error_name(Error error) { return error == kSuccess ? "success" : "invalid value"; }

inline Error launch_kernel(const void* kernel, uint32_t blocks, int threads, int, void* parameters, Stream) {
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

// Tensor cores: wave collectives over what every lane brings. The places of elements are those of the PTX ISA, "Matrix Fragments for
// mma.m16n8k8 / m16n8k16" and "ldmatrix"; lane = 4 g + t.

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline uint32_t shifted_word(uint32_t low, uint32_t high, int bits) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> bits);
}
// What compilers make of cvt.rna.tf32.f32: the last bits are not cleared.
inline uint32_t round_to_tf32(float x) { return std::fabs(x) < INFINITY ? bits_of_float(x) + 0x1000 : bits_of_float(x); }

inline void load_matrices(const void* row, uint32_t (&to)[4]) {
  const emulation::Lanes<const void*> rows(row);
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) std::memcpy(&to[i], static_cast<const char*>(rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
}
inline void load_matrices_transposed(const void* row, uint32_t (&to)[4]) {
  const emulation::Lanes<const void*> rows(row);
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const char* from = static_cast<const char*>(rows[8 * i + lane % 4 * 2 + half]) + lane / 4 * 2;
      std::memcpy(reinterpret_cast<char*>(&to[i]) + 2 * half, from, 2);
    }
  }
}

namespace emulation {
// c += A B for one 16 x 8 product, `value(register, n)` giving the n-th number in a lane's register. A register holds `kEach` neighbours in
// depth; register 2 h + r of A belongs to row g + 8 r, h to the half of the depth.
template <int kEach, class Register, class Sum, class Value>
void multiply_fragments(const Register (&a)[4], const Register (&b)[2], Sum (&c)[4], const Value& value) {
  struct Fragments {
    Register a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.b, b, sizeof b);
  const Lanes<Fragments> all(mine);
  const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row_half = i / 2, col = 2 * t + i % 2;
    double sum = c[i];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 4 * kEach; ++k) {
        const Fragments &left = all[4 * g + k / kEach], &right = all[4 * col + k / kEach];
        sum += static_cast<double>(value(left.a[2 * half + row_half], k % kEach)) * static_cast<double>(value(right.b[half], k % kEach));
      }
    }
    c[i] = static_cast<Sum>(sum);
    if (std::fabs(static_cast<double>(c[i])) > std::fabs(sum)) c[i] = std::nextafter(c[i], Sum{0});  // float32 is cut off, not rounded
  }
}
}  // namespace emulation

inline void multiply_tf32(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  emulation::multiply_fragments<1>(a, b, c, [](uint32_t x, int) { return float_of_bits(x & ~0x1fffu); });  // the unit ignores those bits
}
inline void multiply_bfloat16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  emulation::multiply_fragments<2>(a, b, c, [](uint32_t x, int n) { return bfloat16_to_float(static_cast<uint16_t>(x >> 16 * n)); });
}
inline void multiply_float16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  emulation::multiply_fragments<2>(a, b, c, [](uint32_t x, int n) { return float16_to_float(static_cast<uint16_t>(x >> 16 * n)); });
}
inline void multiply_float64(const double (&a)[4], const double (&b)[2], double (&c)[4]) {
  emulation::multiply_fragments<1>(a, b, c, [](double x, int) { return x; });
}

}  // namespace vbgemm
