// What the kernels need of a GPU, implemented on the CPU. csrc/gpu/arch/gpu_vendor.h includes this if VBGEMM_GPU_VENDOR_HEADER names it.
#pragma once
#include <cassert>
#include <cmath>
#include <cstring>

#include "catalogue.h"
#include "emulation/block.h"

#ifndef VBGEMM_WAVE_SIZE
#define VBGEMM_WAVE_SIZE 32
#endif
#if VBGEMM_WAVE_SIZE == 32
#define VBGEMM_HAS_PIPELINE 1
#endif

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __global__ __attribute__((weak))  // an executable need not contain the kernels of every dtype
#define VBGEMM_LAUNCH_BOUNDS(...)
#define VBGEMM_PARAMETERS(Type, name) const Type& name
#define VBGEMM_READ_PARAMETERS(Type, name)
#define VBGEMM_SHARED(Type, name) Type& name = *static_cast<Type*>(vbgemm::emulation::shared_memory(sizeof(Type)))
#define VBGEMM_DYNAMIC_SHARED VBGEMM_SHARED

namespace vbgemm {

enum Error { kSuccess, kInvalidValue };
struct Stream {};

inline const char* error_name(Error error) { return error == kSuccess ? "success" : "invalid value"; }

// Few, so that the plans of the checks take several launches. (The chunks of an array whose squares are summed need one launch for all.)
constexpr int64_t max_blocks(int) { return 300; }

inline Error launch_kernel(const void* kernel, uint32_t blocks, int threads, int, void* parameters, Stream, int cluster = 1, bool = true) {
  emulation::run_grid(reinterpret_cast<emulation::Kernel>(reinterpret_cast<uintptr_t>(kernel)), parameters, blocks, threads, cluster);
  return kSuccess;
}

inline Error clear_memory(void* memory, size_t bytes, Stream) {
  std::memset(memory, 0, bytes);
  return kSuccess;
}

inline Error load_kernel(const void*) { return kSuccess; }

// Few, so that a CTA of a pipelined kernel computes several blocks of the plan.
inline int multiprocessors() { return 4; }

inline int thread_index() { return emulation::thread_index(); }
inline uint32_t block_index() { return emulation::grid().block; }
inline void block_barrier() { emulation::block_barrier(); }
inline void wave_barrier() { emulation::count_lanes(false); }
inline int popc_ballot(bool yes) { return emulation::count_lanes(yes); }
template <int kDistance, class Value>
inline void shfl_xor(Value& value) {
  const emulation::Lanes<Value> all(value);
  value = all[thread_index() % VBGEMM_WAVE_SIZE ^ kDistance];
}
template <class Value>
inline Value shfl(Value value, int lane) {
  return emulation::Lanes<Value>(value)[lane];
}
template <class Value>
inline void keep_in_place(Value&) {}

inline float fast_divide(float x, float y) { return x / y; }
inline float fast_exp(float x) { return std::exp(x); }
inline float reciprocal(float x) { return 1 / x; }

inline void await_previous_kernel() { emulation::await_previous_kernel(); }
inline void let_next_kernel_start() {}
inline void leave_kernel() {}

template <class T>
T load_after_wait(const T* address) {
  await_previous_kernel();
  return *address;
}
template <int kBytes>
inline void load_bytes_before_wait(void* registers, const void* global) {
  assert(reinterpret_cast<uintptr_t>(global) % kBytes == 0);
  std::memcpy(registers, global, kBytes);
}
inline int32_t load_before_wait(const int32_t* address) { return *address; }
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

inline uint32_t floats_to_float16s(float low, float high) {
  return float_to_float16(low) | static_cast<uint32_t>(float_to_float16(high)) << 16;
}
inline uint32_t floats_to_bfloat16s(float low, float high) {
  return float_to_bfloat16(low) | static_cast<uint32_t>(float_to_bfloat16(high)) << 16;
}

template <int kBytes>
inline void load_bytes(void* registers, const void* global) {
  emulation::load(registers, global, kBytes);
}
template <int kBytes>
inline void load_streamed(void* registers, const void* global) {
  load_bytes<kBytes>(registers, global);
}
template <int kBytes>
inline void load_bytes_if(bool valid, void* registers, const void* global) {
  std::memset(registers, 0, kBytes);
  if (valid) load_bytes<kBytes>(registers, global);
}
template <int kBytes>
inline void store_bytes(void* global, const void* registers) {
  emulation::require_aligned(global, kBytes);
  std::memcpy(global, registers, kBytes);  // here, where the race detector sees it
}
template <int kBytes>
inline void store_bytes_if(bool valid, void* global, const void* registers) {
  if (valid) store_bytes<kBytes>(global, registers);
}
template <int kBytes>
inline void store_streamed_if(bool valid, void* global, const void* registers) {
  store_bytes_if<kBytes>(valid, global, registers);
}

template <int kBytes, int kL2Prefetch = 128>
inline void cp_async(void* shared, const void* global, bool valid) {
  emulation::start_copy({shared, valid ? global : nullptr, kBytes});
}
inline void gather_four_bytes(void* shared, const void* global, uint32_t stride, int count) {
  emulation::require_aligned(shared, 4);
  for (int i = 0; i < 4; ++i) {
    uint8_t byte = 0;
    if (i < count) load_bytes<1>(&byte, static_cast<const uint8_t*>(global) + i * uint64_t{stride});
    static_cast<uint8_t*>(shared)[i] = byte;  // here, where the race detector sees it
  }
}
inline void cp_async_commit_group() { emulation::commit_copies(); }
template <int kNewest>
inline void cp_async_wait_group() {
  emulation::wait_copies(kNewest);
}

// Tensor cores, as collectives of a warp on the values that every lane contributes. The places of elements are those of the PTX ISA,
// "Matrix Fragments for mma.m16n8k8 / m16n8k16" and "ldmatrix"; lane = 4 g + t.

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
// As compilers implement cvt.rna.tf32.f32: the last bits are not cleared.
inline uint32_t round_to_tf32(float x) { return std::fabs(x) < INFINITY ? bits_of_float(x) + 0x1000 : bits_of_float(x); }

inline uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t selected = 0;
  for (int i = 0; i < 4; ++i) selected |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return selected;
}

// The products of float16 numbers and their sums with a third one are exact in float64, if not rounded to a nearby number there.
inline uint32_t multiply_add_float16s(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sums = 0;
  for (int i = 0; i < 32; i += 16) {
    const auto number = [i](uint32_t pair) { return static_cast<double>(float16_to_float(static_cast<uint16_t>(pair >> i))); };
    const _Float16 sum = static_cast<_Float16>(number(x) * number(y) + number(z));
    uint16_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    sums |= static_cast<uint32_t>(bits) << i;
  }
  return sums;
}
inline uint32_t multiply_float16s(uint32_t x, uint32_t y) { return multiply_add_float16s(x, y, 0x80008000u); }

// As on a GPU without the instructions, whose code the check then sees; but kernels of GPUs that have one may call it.
inline constexpr bool kWidensE4m3 = false;
inline uint32_t widen_e4m3(uint16_t two) {
  const auto wide = [](uint32_t byte) -> uint32_t {
    if ((byte & 0x7f) == 0x7f) return 0x7fff;
    // The exponent and fraction at the wider ones' places are the number divided by 2^8.
    return float_to_float16(256 * float16_to_float(static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7)));
  };
  return wide(two & 0xff) | wide(two >> 8) << 16;
}
inline constexpr bool kNarrowsFloat8 = false;
template <bool>
inline uint32_t narrow_float8(float, float, float, float) {
  return 0;
}
inline uint32_t larger_halves(uint32_t x, uint32_t y) {
  const auto larger = [](uint32_t x, uint32_t y) { return x < y ? y : x; };
  return larger(x & 0xffff, y & 0xffff) | larger(x >> 16, y >> 16) << 16;
}

inline void ldmatrix_x4(const void* row, uint32_t (&to)[4]) {
  const emulation::Lanes<const void*> rows(row);
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) std::memcpy(&to[i], static_cast<const char*>(rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
}
inline void ldmatrix_x4_trans(const void* row, uint32_t (&to)[4]) {
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
// As the hardware does: float32 is truncated, not rounded.
template <class Sum>
Sum cut_off(double x) {
  if constexpr (std::is_integral_v<Sum>) return static_cast<Sum>(static_cast<int64_t>(x));  // wraps around
  const Sum rounded = static_cast<Sum>(x);
  return std::fabs(static_cast<double>(rounded)) > std::fabs(x) ? std::nextafter(rounded, Sum{0}) : rounded;
}

// c += A B for one 16 x 8 product. `value(register, n)` returns the n-th number in a lane's register. A register holds `kEach` numbers that
// are adjacent along K. Register 2 h + r of A belongs to row g + 8 r; h is the half of the K range.
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
    double sum = static_cast<double>(c[i]);
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 4 * kEach; ++k) {
        const Fragments &left = all[4 * g + k / kEach], &right = all[4 * col + k / kEach];
        sum += static_cast<double>(value(left.a[2 * half + row_half], k % kEach)) * static_cast<double>(value(right.b[half], k % kEach));
      }
    }
    c[i] = cut_off<Sum>(sum);
  }
}
}  // namespace emulation

inline void mma_tf32(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  // The hardware ignores these bits.
  emulation::multiply_fragments<1>(a, b, c, [](uint32_t x, int) { return float_of_bits(x & ~0x1fffu); });
}
inline void mma_bfloat16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  emulation::multiply_fragments<2>(a, b, c, [](uint32_t x, int n) { return bfloat16_to_float(static_cast<uint16_t>(x >> 16 * n)); });
}
inline void mma_float16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  emulation::multiply_fragments<2>(a, b, c, [](uint32_t x, int n) { return float16_to_float(static_cast<uint16_t>(x >> 16 * n)); });
}
inline void mma_int8(const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t (&c)[4]) {
  emulation::multiply_fragments<4>(a, b, c, [](uint32_t x, int n) { return static_cast<int8_t>(x >> 8 * n); });
}
inline void mma_float64(const double (&a)[4], const double (&b)[2], double (&c)[4]) {
  emulation::multiply_fragments<1>(a, b, c, [](double x, int) { return x; });
}

// Products of warpgroups: each thread reads the operands of its sums from shared memory, in the layout that gpu/ptx/sm90.h describes. The
// matrix's base is a multiple of 1024.
inline constexpr bool kHasWgmma = true;

struct MatrixDescriptor {
  const char* first;
  int next_items, next_lines;

  // Element (row, k) of A, or (column, k) of B. `mn_major`: the lines are K elements. The hardware swizzles by the bits of addresses.
  template <class Bits>
  Bits at(bool mn_major, int outer, int k) const {
    constexpr int kBytes = static_cast<int>(sizeof(Bits)), kRow = 128 / kBytes;
    const int line = mn_major ? k : outer, item = mn_major ? outer : k;
    const char* const from = first + item / kRow * next_items + line / 8 * next_lines + line % 8 * 128 + item % kRow * kBytes;
    const uintptr_t address = reinterpret_cast<uintptr_t>(from);
    Bits bits;
    std::memcpy(&bits, reinterpret_cast<const char*>(address ^ (address >> 7 & 7) << 4), sizeof bits);
    return bits;
  }
};
inline MatrixDescriptor matrix_descriptor(const void* first, int next_items, int next_lines) {
  return {static_cast<const char*>(first), next_items, next_lines};
}
inline MatrixDescriptor moved(MatrixDescriptor matrix, int bytes) { return {matrix.first + bytes, matrix.next_items, matrix.next_lines}; }
inline void fence_proxy_async() {}
inline void wgmma_fence() {}
inline void wgmma_commit_group() {}
// Here each lane has formed its products when it gets here; the hardware's wait is one of the whole warp.
template <int>
inline void wgmma_wait_group() {
  wave_barrier();
}

namespace emulation {

// The number that 16 bits are in an arithmetic.
template <Kind kKind>
double short_number(uint32_t bits) {
  return kKind == Kind::bf16 ? bfloat16_to_float(static_cast<uint16_t>(bits)) : float16_to_float(static_cast<uint16_t>(bits));
}

// Adds kDepth K elements, or sets the sums to them. factor(row, col, k) is the product of an element of A and one of B; rows are those of a
// warpgroup.
template <int kDepth, class Sum, int kBlocks, class Factor>
void add_products(Sum (&sums)[kBlocks][4], bool adds, const Factor& factor) {
  const int thread = thread_index() % 128, lane = thread % 32, first_row = thread / 32 * 16 + lane / 4;
  for (int block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i / 2 * 8, col = 8 * block + lane % 4 * 2 + i % 2;
      double sum = adds ? sums[block][i] : 0;
      for (int k = 0; k < kDepth; ++k) sum += factor(row, col, k);
      sums[block][i] = cut_off<Sum>(sum);
    }
  }
}

// What all lanes of a warp have of A in registers: lane 4 r + q of rows r and r + 8.
struct FragmentOfA {
  uint32_t a[4];
};
inline Lanes<FragmentOfA> fragments_of(const uint32_t (&a)[4]) {
  FragmentOfA mine;
  std::memcpy(mine.a, a, sizeof a);
  return Lanes<FragmentOfA>(mine);
}

}  // namespace emulation

template <Kind kKind, bool kMnMajorA, bool kMnMajorB, int kBlocks>
inline void wgmma(MatrixDescriptor a, MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds = true) {
  emulation::add_products<16>(sums, adds, [&](int row, int col, int k) {
    return emulation::short_number<kKind>(a.at<uint16_t>(kMnMajorA, row, k)) *
           emulation::short_number<kKind>(b.at<uint16_t>(kMnMajorB, col, k));
  });
}

template <Kind kKind, int kBlocks>
inline void wgmma_from_registers(const uint32_t (&a)[4], MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds) {
  const auto all = emulation::fragments_of(a);
  emulation::add_products<16>(sums, adds, [&](int row, int col, int k) {
    const uint32_t pair = all[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row % 16 / 8];
    return emulation::short_number<kKind>(pair >> k % 2 * 16) * emulation::short_number<kKind>(b.at<uint16_t>(false, col, k));
  });
}

template <Kind kKind, class Sum, int kBlocks>
inline void wgmma_8bit(MatrixDescriptor a, MatrixDescriptor b, Sum (&sums)[kBlocks][4], bool adds) {
  using A = Element<arithmetic_of(kKind).lhs>;
  using B = Element<arithmetic_of(kKind).rhs>;
  const auto number = [](auto x) {
    if constexpr (std::is_integral_v<decltype(x)>) {
      return static_cast<double>(x);
    } else {
      return double{widen(x)};
    }
  };
  emulation::add_products<32>(sums, adds,
                              [&](int row, int col, int k) { return number(a.at<A>(false, row, k)) * number(b.at<B>(false, col, k)); });
}

template <int kBlocks>
inline void wgmma_tf32(const uint32_t (&a)[4], MatrixDescriptor b, float (&sums)[kBlocks][4], bool adds = true) {
  const auto number = [](uint32_t bits) { return static_cast<double>(float_of_bits(bits & ~0x1fffu)); };
  const auto all = emulation::fragments_of(a);
  emulation::add_products<8>(sums, adds, [&](int row, int col, int k) {
    return number(all[row % 8 * 4 + k % 4].a[k / 4 * 2 + row % 16 / 8]) * number(b.at<uint32_t>(false, col, k));
  });
}

// CDNA's matrix cores, as collectives of 64 lanes. The places of elements are those of AMD's "CDNA 2" and "CDNA 3 Instruction Set
// Architecture" guides, chapter "Matrix Arithmetic Instructions", v_mfma_*_16x16x*. tools/rocm/check_lanes.py compares them with the output
// of AMD's matrix instruction calculator.

namespace emulation {

// c += A B for 16 x 16 sums and 4 kEach K elements. `value(register, n)` returns the n-th number of what a lane contributes.
template <int kEach, class Brought, class Sum, class Value>
void multiply_blocks(const Brought& a, const Brought& b, Sum (&c)[4], const Value& value) {
  struct Fragments {
    Brought a, b;
  };
  const Lanes<Fragments> all({a, b});
  const int lane = thread_index() % 64, col = lane % 16;
  for (int i = 0; i < 4; ++i) {
    const int row = sizeof(Sum) == 8 ? 4 * i + lane / 16 : 4 * (lane / 16) + i;
    double sum = c[i];
    for (int k = 0; k < 4 * kEach; ++k) {
      const int group = k / kEach * 16;
      sum += static_cast<double>(value(all[group + row].a, k % kEach)) * static_cast<double>(value(all[group + col].b, k % kEach));
    }
    c[i] = static_cast<Sum>(sum);
  }
}
struct Words {
  uint32_t word[2];
  uint16_t half(int n) const { return static_cast<uint16_t>(word[n / 2] >> 16 * (n % 2)); }
};
}  // namespace emulation

inline void mfma_float32(float a, float b, float (&c)[4]) {
  emulation::multiply_blocks<1>(a, b, c, [](float x, int) { return x; });
}
inline void mfma_float64(double a, double b, double (&c)[4]) {
  emulation::multiply_blocks<1>(a, b, c, [](double x, int) { return x; });
}
inline void mfma_bfloat16(const uint32_t (&a)[2], const uint32_t (&b)[2], float (&c)[4]) {
  using emulation::Words;
  emulation::multiply_blocks<4>(Words{{a[0], a[1]}}, Words{{b[0], b[1]}}, c, [](Words x, int n) { return bfloat16_to_float(x.half(n)); });
}
inline void mfma_float16(const uint32_t (&a)[2], const uint32_t (&b)[2], float (&c)[4]) {
  using emulation::Words;
  emulation::multiply_blocks<4>(Words{{a[0], a[1]}}, Words{{b[0], b[1]}}, c, [](Words x, int n) { return float16_to_float(x.half(n)); });
}
// As CDNA 3's xf32 instructions do: rounds to the nearest tf32 number.
inline void mfma_tf32(const uint32_t (&a)[2], const uint32_t (&b)[2], float (&c)[4]) {
  using emulation::Words;
  emulation::multiply_blocks<2>(Words{{a[0], a[1]}}, Words{{b[0], b[1]}}, c,
                                [](Words x, int n) { return float_of_bits(round_to_tf32(float_of_bits(x.word[n])) & ~0x1fffu); });
}

}  // namespace vbgemm

#ifdef VBGEMM_HAS_PIPELINE
#include "emulation/bulk_copy.h"
#endif
