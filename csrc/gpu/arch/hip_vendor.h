// The HIP functions that kernels use on AMD's CDNA GPUs, with the names of cuda_vendor.h, including the matrix cores.
//
// There are no asynchronous copies here: a copy is complete at the thread block's next barrier, and the kernels rely on nothing more.
#pragma once
#ifdef __HIP__
#include <hip/hip_runtime.h>
#else
#include <hip/hip_runtime_api.h>
#endif

#include <cstddef>
#include <cstdint>

namespace vbgemm {

#define VBGEMM_WAVE_SIZE 64

using Error = hipError_t;
using Stream = hipStream_t;
inline constexpr Error kSuccess = hipSuccess, kInvalidValue = hipErrorInvalidValue;

// The number of waves that each of the four SIMDs of a compute unit must be able to hold, so that the compute unit holds `blocks` thread
// blocks.
constexpr int waves_a_simd(int threads, int blocks) { return blocks * threads > 256 ? blocks * threads / 256 : 1; }

// A kernel's limits: threads in a thread block, and thread blocks that a compute unit must be able to hold.
#define VBGEMM_LAUNCH_BOUNDS(threads, blocks) \
  __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(vbgemm::waves_a_simd(threads, blocks))))
// A kernel's parameter block, and how its threads read it in place, because the compiler would otherwise copy it to each thread's stack.
// VBGEMM_SHARED declares an object in the thread block's shared memory.
#define VBGEMM_PARAMETERS(Type, name) const Type
#define VBGEMM_READ_PARAMETERS(Type, name) \
  const Type& name = *(const Type*)__builtin_amdgcn_kernarg_segment_ptr() /* no C++ cast leaves the address space */
#define VBGEMM_SHARED(Type, name) __shared__ Type name
#define VBGEMM_DYNAMIC_SHARED VBGEMM_SHARED  // kernels declare all of their shared memory

inline const char* error_name(Error error) { return hipGetErrorString(error); }

// The maximum number of thread blocks of a launch: HIP requires fewer than 2^32 threads in total.
constexpr int64_t max_blocks(int threads) { return UINT32_MAX / threads; }

// shared_bytes: the dynamic shared memory.
inline Error launch_kernel(const void* kernel, uint32_t blocks, int threads, int shared_bytes, void* parameters, Stream stream, int = 1,
                           bool = true) {
  void* arguments[] = {parameters};
  return hipLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments, shared_bytes, stream);
}

// The number of compute units of the current device; 0 where that is unknown.
inline int multiprocessors() {
  int device = 0, units = 0;
  if (hipGetDevice(&device) != hipSuccess || hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device) != hipSuccess)
    return 0;
  return units;
}

// Loads a kernel's code onto the current device.
inline Error load_kernel(const void* kernel) {
  hipFuncAttributes attributes;
  return hipFuncGetAttributes(&attributes, kernel);
}

#ifdef __HIP__  // the rest is device code

// The index is read again at each call, so that values derived from it are computed for each tile and not held in registers for all tiles
// of a kernel.
__device__ inline int thread_index() {
  int index = __builtin_amdgcn_workitem_id_x();
  asm volatile("" : "+v"(index));
  __builtin_assume(index >= 0 && index < 1024);
  return index;
}
// Nothing to wait for: on HIP, a kernel starts after the previous one has ended.
__device__ inline void await_previous_kernel() {}
__device__ inline void let_next_kernel_start() {}
__device__ inline void leave_kernel() { __builtin_amdgcn_endpgm(); }

__device__ inline uint32_t block_index() { return blockIdx.x; }
__device__ inline void block_barrier() { __syncthreads(); }

// The lanes of a wave run in lockstep, and their accesses to shared memory are made in order. Only the compiler has to be kept from
// reordering them.
__device__ inline void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

// Returns the number of lanes of the wave for which `predicate` is true. All lanes of the wave call this together.
__device__ inline int popc_ballot(bool predicate) { return __builtin_popcountll(__builtin_amdgcn_ballot_w64(predicate)); }

// Exchanges values between lanes whose indices differ in the bit kDistance. All lanes of the wave call this together.
template <int kDistance, class Value>
__device__ inline void shfl_xor(Value& value) {
  int words[sizeof(Value) / 4];
  __builtin_memcpy(words, &value, sizeof(Value));
#pragma unroll
  for (int& word : words) word = __shfl_xor(word, kDistance, VBGEMM_WAVE_SIZE);
  __builtin_memcpy(&value, words, sizeof(Value));
}

template <class Value>
__device__ inline Value shfl(Value value, int lane) {
  return __shfl(value, lane, VBGEMM_WAVE_SIZE);
}

// A pointer that is known to address global memory, so that loads need not determine the address space at run time.
template <class T>
using Global = __attribute__((address_space(1))) T*;

// Kernels do not overlap, so these are ordinary loads.
template <class T>
__device__ inline T load_after_wait(const T* address) {
  return *address;
}
__device__ inline int32_t load_before_wait(const int32_t* address) { return *address; }
__device__ inline void prefetch_to_l2(const void*) {}  // CDNA has no such instruction

__device__ inline float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
__device__ inline uint32_t bits_of_float(float x) { return __builtin_bit_cast(uint32_t, x); }
// The compiler keeps such values in registers by itself.
template <class Value>
__device__ inline void keep_in_place(Value&) {}
__device__ inline float fast_divide(float x, float y) { return x * __builtin_amdgcn_rcpf(y); }
__device__ inline float fast_exp(float x) { return __builtin_amdgcn_exp2f(x * 1.4426950409f); }
__device__ inline float reciprocal(float x) { return 1 / x; }
__device__ inline uint32_t larger_halves(uint32_t x, uint32_t y) {
  using Halves = uint16_t __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_max(__builtin_bit_cast(Halves, x), __builtin_bit_cast(Halves, y)));
}
// Returns the bytes of high:low that the hexadecimal digits of `selector` select, lowest digit first.
__device__ inline uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint32_t digits = (selector & 0xf) | (selector & 0xf0) << 4 | (selector & 0xf00) << 8 | (selector & 0xf000) << 12;
  return __builtin_amdgcn_perm(high, low, digits);
}
// CDNA 2 has no instruction for 8-bit floats.
inline constexpr bool kNarrowsFloat8 = false;
template <bool>
__device__ inline uint32_t narrow_float8(float, float, float, float) {
  return 0;
}
__device__ inline float bfloat16_to_float(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
__device__ inline uint16_t float_to_bfloat16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), rounded = bits + 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>((x == x ? rounded : 0x7fffffff) >> 16);
}
__device__ inline float float16_to_float(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
__device__ inline uint16_t float_to_float16(float x) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x)); }
__device__ inline uint32_t floats_to_float16s(float low, float high) {
  return float_to_float16(low) | static_cast<uint32_t>(float_to_float16(high)) << 16;
}
__device__ inline uint32_t floats_to_bfloat16s(float low, float high) {
  return float_to_bfloat16(low) | static_cast<uint32_t>(float_to_bfloat16(high)) << 16;
}

// The type of a load or store of `kBytes` by one instruction, whatever the bytes mean.
template <int kBytes>
struct AccessType;
template <>
struct AccessType<1> {
  using type = uint8_t __attribute__((may_alias));
};
template <>
struct AccessType<2> {
  using type = uint16_t __attribute__((may_alias));
};
template <>
struct AccessType<4> {
  using type = uint32_t __attribute__((may_alias));
};
template <>
struct AccessType<8> {
  using type = uint32_t __attribute__((ext_vector_type(2), may_alias));
};
template <>
struct AccessType<16> {
  using type = uint32_t __attribute__((ext_vector_type(4), may_alias));
};

// Copies `kBytes` (1, 2, 4, 8 or 16) from global to shared memory, or writes zeros if `valid` is false. In that case the source address is
// not used; the load reads the kernel's parameters instead, because a load that depended on a branch would be waited for before the next
// load.
template <int kBytes, int kL2Prefetch = 128>
__device__ inline void cp_async(void* shared, const void* global, bool valid) {
  using Bytes = typename AccessType<kBytes>::type;
  const Bytes bytes =
      *(Global<const Bytes>)(valid ? (Global<const void>)global : (Global<const void>)__builtin_amdgcn_kernarg_segment_ptr());
  *static_cast<Bytes*>(shared) = valid ? bytes : Bytes{};
}
__device__ inline void cp_async_commit_group() {}
template <int kNewest>
__device__ inline void cp_async_wait_group() {}

// Loads from global memory to registers; the hardware waits at the first use of the registers.
template <int kBytes>
__device__ inline void load_bytes(void* registers, const void* global) {
  const auto bytes = *(Global<const typename AccessType<kBytes>::type>)global;
  __builtin_memcpy(registers, &bytes, kBytes);
}
template <int kBytes>
__device__ inline void load_bytes_before_wait(void* registers, const void* global) {
  load_bytes<kBytes>(registers, global);
}
template <int kBytes>
__device__ inline void load_streamed(void* registers, const void* global) {
  load_bytes<kBytes>(registers, global);
}
// Returns zeros if `valid` is false. As in cp_async, the load then reads the kernel's parameters.
template <int kBytes>
__device__ inline void load_bytes_if(bool valid, void* registers, const void* global) {
  using Bytes = typename AccessType<kBytes>::type;
  Bytes bytes = *(Global<const Bytes>)(valid ? (Global<const void>)global : (Global<const void>)__builtin_amdgcn_kernarg_segment_ptr());
  if (!valid) bytes = Bytes{};
  __builtin_memcpy(registers, &bytes, kBytes);
}
template <int kBytes>
__device__ inline void store_bytes(void* global, const void* registers) {
  typename AccessType<kBytes>::type bytes;
  __builtin_memcpy(&bytes, registers, kBytes);
  *(Global<typename AccessType<kBytes>::type>)global = bytes;
}
template <int kBytes>
__device__ inline void store_bytes_if(bool valid, void* global, const void* registers) {
  if (valid) store_bytes<kBytes>(global, registers);
}
template <int kBytes>
__device__ inline void store_streamed_if(bool valid, void* global, const void* registers) {
  store_bytes_if<kBytes>(valid, global, registers);
}

// Matrix cores: c += a b for 16 x 16 sums, by all lanes of a wave together. The layout of the fragments is that of AMD's "CDNA 2" and "CDNA
// 3 Instruction Set Architecture" guides, chapter "Matrix Arithmetic Instructions", as AMD's matrix instruction calculator prints it. With
// lane = 16 g + i, and E elements of K in each lane, a holds row i and b holds column i at depths E g to E g + E - 1. c holds column i of
// rows 4 g to 4 g + 3, or, in float64, of rows g, g + 4, g + 8 and g + 12.
using Sums32 = float __attribute__((ext_vector_type(4)));
using Sums64 = double __attribute__((ext_vector_type(4)));

#define VBGEMM_DEFINE_PRODUCT(name, Sum, Sums, Argument, Number, builtin)                                                           \
  __device__ inline void name(Argument a, Argument b, Sum(&c)[4]) {                                                                 \
    const Sums sums = builtin(__builtin_bit_cast(Number, a), __builtin_bit_cast(Number, b), Sums{c[0], c[1], c[2], c[3]}, 0, 0, 0); \
    c[0] = sums[0], c[1] = sums[1], c[2] = sums[2], c[3] = sums[3];                                                                 \
  }
using Number32x2 = float __attribute__((ext_vector_type(2)));
using BFloat16x4 = short __attribute__((ext_vector_type(4)));
using Float16x4 = _Float16 __attribute__((ext_vector_type(4)));
using Words = uint32_t __attribute__((ext_vector_type(2)));
VBGEMM_DEFINE_PRODUCT(mfma_float32, float, Sums32, float, float, __builtin_amdgcn_mfma_f32_16x16x4f32)
VBGEMM_DEFINE_PRODUCT(mfma_float64, double, Sums64, double, double, __builtin_amdgcn_mfma_f64_16x16x4f64)
VBGEMM_DEFINE_PRODUCT(mfma_bfloat16_words, float, Sums32, Words, BFloat16x4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
VBGEMM_DEFINE_PRODUCT(mfma_float16_words, float, Sums32, Words, Float16x4, __builtin_amdgcn_mfma_f32_16x16x16f16)
#ifdef __gfx942__
VBGEMM_DEFINE_PRODUCT(mfma_tf32_words, float, Sums32, Words, Number32x2, __builtin_amdgcn_mfma_f32_16x16x8_xf32)
#else
__device__ inline void mfma_tf32_words(Words a, Words b, float (&c)[4]) {
  for (int e = 0; e < 2; ++e) mfma_float32(__builtin_bit_cast(float, a[e]), __builtin_bit_cast(float, b[e]), c);
}
#endif
#undef VBGEMM_DEFINE_PRODUCT

__device__ inline void mfma_bfloat16(const uint32_t (&a)[2], const uint32_t (&b)[2], float (&c)[4]) {
  mfma_bfloat16_words(Words{a[0], a[1]}, Words{b[0], b[1]}, c);
}
__device__ inline void mfma_float16(const uint32_t (&a)[2], const uint32_t (&b)[2], float (&c)[4]) {
  mfma_float16_words(Words{a[0], a[1]}, Words{b[0], b[1]}, c);
}
__device__ inline void mfma_tf32(const uint32_t (&a)[2], const uint32_t (&b)[2], float (&c)[4]) {
  mfma_tf32_words(Words{a[0], a[1]}, Words{b[0], b[1]}, c);
}

#endif
}  // namespace vbgemm
