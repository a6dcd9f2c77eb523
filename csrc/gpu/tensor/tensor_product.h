// A warp's MMAs (mma.sync): loading fragments from shared memory, and the MMA of each arithmetic.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tensor/tensor_traits.h"
#include "gpu/tensor/widen_float8.h"

namespace vbgemm {

// A warp's position in its thread block: its rectangle of the tile, and its K slice of each step.
template <class Traits>
struct WarpPosition {
  int row, col, slice;

  __device__ explicit WarpPosition(int wave)
      : row(wave / Traits::kWavesN % Traits::kWavesM * Traits::kWaveRows),
        col(wave % Traits::kWavesN * Traits::kWaveCols),
        slice(Traits::kSplit == 1 ? 0 : wave / (Traits::kWavesN * Traits::kWavesM)) {}
};

// One fragment register: one value, two 2-byte values, or four 1-byte values.
template <class T>
using Register = std::conditional_t<sizeof(T) == 8, double, uint32_t>;

// Which fragment registers receive the four matrices of 8 rows by 16 bytes that one ldmatrix loads. The registers of an instruction are
// adjacent: in A the two 8-row blocks of one K half come first, in B (kKHalvesFirst) the two K halves of a block.
template <bool kKHalvesFirst>
constexpr __host__ __device__ int m8_block_of(int matrix) {
  return kKHalvesFirst ? matrix / 2 : matrix % 2;
}
template <bool kKHalvesFirst>
constexpr __host__ __device__ int k_half_of(int matrix) {
  return kKHalvesFirst ? matrix % 2 : matrix / 2;
}

// The offset of this lane's first fragment in an operand's part of a step; all other fragments are at constant distances. `from`: the
// warp's first row (column). `chunk`: its first K chunk.
template <class T, class Lines, bool kKHalvesFirst>
__device__ inline int first_fragment(int from, int chunk) {
  const int lane = thread_index() % kLanes, g = lane / 4, t = lane % 4, matrix = lane / 8, row = lane % 8;
  constexpr int kPitch = Lines::kPitch, kVectorItems = kVectorBytes / static_cast<int>(sizeof(T));
  if constexpr (sizeof(T) == 8) {
    return Lines::kKMajor ? (from + g) * kPitch + 8 * chunk + t : (8 * chunk + t) * kPitch + from + g;
  } else if constexpr (Lines::kKMajor) {
    return (from + 8 * m8_block_of<kKHalvesFirst>(matrix) + row) * kPitch + (2 * chunk + k_half_of<kKHalvesFirst>(matrix)) * kVectorItems;
  } else if constexpr (sizeof(T) == 1) {
    return (32 * chunk + lane) * kPitch + from;
  } else if constexpr (sizeof(T) == 2) {
    return (16 * chunk + 8 * k_half_of<kKHalvesFirst>(matrix) + row) * kPitch + from + 8 * m8_block_of<kKHalvesFirst>(matrix);
  } else {
    return (8 * chunk + t) * kPitch + from + Lines::kInterleave * g;
  }
}

// Loads the mma fragments of the warp's K chunk number `chunk`: calls put(m8_block, k_half, register) for each of kHalves blocks of 8 rows
// (or columns, of B) and both halves of the chunk's K.
template <class Lines, int kHalves, bool kKHalvesFirst, class T, class Put>
__device__ inline void load_halves(const T* first, int chunk, const Put& put) {
  constexpr int kPitch = Lines::kPitch;
  if constexpr (sizeof(T) == 8) {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      const int half = i / 2, k_half = i % 2, outer = 8 * half, depth = 8 * chunk + 4 * k_half;
      put(half, k_half, first[Lines::kKMajor ? outer * kPitch + depth : depth * kPitch + outer]);
    }
  } else if constexpr (!Lines::kKMajor && sizeof(T) == 1) {
    static_assert(Lines::kInterleave == 2);
#pragma unroll
    for (int half = 0; half < kHalves; half += 2) {
      uint32_t words[4];  // each with two rows of two K elements
      ldmatrix_x4_trans(first + 32 * chunk * kPitch + 8 * half, words);
#pragma unroll
      for (int k_half = 0; k_half < 2; ++k_half) {
        put(half, k_half, select_bytes(words[2 * k_half], words[2 * k_half + 1], 0x6420));
        put(half + 1, k_half, select_bytes(words[2 * k_half], words[2 * k_half + 1], 0x7531));
      }
    }
  } else if constexpr (Lines::kKMajor || sizeof(T) == 2) {
    constexpr int kVectorItems = kVectorBytes / static_cast<int>(sizeof(T));
#pragma unroll
    for (int half = 0; half < kHalves; half += 2) {
      uint32_t words[4];
      if constexpr (Lines::kKMajor) {
        ldmatrix_x4(first + 8 * half * kPitch + 2 * chunk * kVectorItems, words);
      } else {
        ldmatrix_x4_trans(first + 16 * chunk * kPitch + 8 * half, words);
      }
      const auto put_word = [&](int i) { put(half + m8_block_of<kKHalvesFirst>(i), k_half_of<kKHalvesFirst>(i), words[i]); };
      put_word(0), put_word(1), put_word(2), put_word(3);
    }
  } else {
    constexpr int kVectorWidth = Lines::kInterleave;
#pragma unroll
    for (int half = 0; half < kHalves; half += kVectorWidth) {
#pragma unroll
      for (int k_half = 0; k_half < 2; ++k_half) {
        const T* const at = first + (8 * chunk + 4 * k_half) * kPitch + 8 * half;
        const auto numbers = *reinterpret_cast<const Vector<uint32_t, kVectorWidth>*>(at);
#pragma unroll
        for (int j = 0; j < kVectorWidth; ++j) put(half + j, k_half, numbers.element[j]);
      }
    }
  }
}

inline constexpr uint32_t kSignBit = 0x80000000u, kInfinityBits = 0x7f800000u, kOneBits = 0x3f800000u, kTf32Mask = 0xffffe000u;

// Keeps a NaN a NaN although the tensor cores ignore its low bits; otherwise it might read as an infinity.
__device__ inline uint32_t special_small(uint32_t bits) {
  const float x = float_of_bits(bits);
  return x == x ? bits : bits | 0x400000u;
}

// A sum of values too small to overflow: it is finite unless one of them is infinite or NaN.
template <int kCount>
__device__ inline float sum_of(const float (&numbers)[kCount]) {
  constexpr int kChains = 4;
  static_assert(kCount >= kChains);
  float sum[kChains] = {numbers[0], numbers[1], numbers[2], numbers[3]};
#pragma unroll
  for (int i = kChains; i < kCount; ++i) sum[i % kChains] += numbers[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
__device__ inline bool is_finite(float x) { return std::fabs(x) < static_cast<float>(INFINITY); }

// Splits x = big + small into two TF32 values, accurate to slightly less than float32 (the tensor cores ignore the last bits of `small`).
// Where rounding would make `big` infinite, it is truncated instead. If x is infinite or NaN, `small` is x and `big` is 1. Then only
// `small` times the other factor's `big` involves x, which gives the same result as float32, and no other product is infinite or NaN. The
// exception is an other factor below the smallest TF32 value: its `big` is 0, and infinity times 0 is NaN.
template <int kRows, int kCols>
__device__ inline void split(const uint32_t (&bits)[kRows][kCols], uint32_t (&big)[kRows][kCols], uint32_t (&small)[kRows][kCols]) {
  float rest[kRows * kCols];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const float x = float_of_bits(bits[i][j]);
      big[i][j] = round_to_tf32(x) & kTf32Mask;
      rest[i * kCols + j] = x - float_of_bits(big[i][j]);
      small[i][j] = bits_of_float(rest[i * kCols + j]);
    }
  }
  if (is_finite(sum_of(rest))) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const uint32_t x = bits[i][j];
      if (is_finite(float_of_bits(big[i][j]))) continue;
      const bool finite = (x & ~kSignBit) < kInfinityBits;
      big[i][j] = finite ? x & kTf32Mask : (x & kSignBit) | kOneBits;
      small[i][j] = finite ? bits_of_float(float_of_bits(x) - float_of_bits(big[i][j])) : special_small(x);
    }
  }
}

// Returns the small part of x, if the tensor cores read x itself as the big part. For an infinity or NaN the result is NaN, which
// see_special() corrects.
__device__ inline float tf32_remainder(float x) { return x - float_of_bits(bits_of_float(x) & kTf32Mask); }
__device__ inline void see_special(float& x, float& small) {
  const uint32_t bits = bits_of_float(x);
  if (is_finite(x)) return;
  small = float_of_bits(special_small(bits));
  x = float_of_bits((bits & kSignBit) | kOneBits);
}

template <class Traits>
using Sums = typename Traits::Sum[Traits::kBlocksM][Traits::kBlocksN][4];

// sums += a b over one K chunk, as two float16 MMAs, since 8-bit floats widen to float16 exactly. The first half of each register serves as
// the first K half of a float16 MMA, for both operands alike.
template <class Traits>
__device__ inline void multiply_float8(const uint32_t (&a)[Traits::kBlocksM][4], const uint32_t (&b)[Traits::kBlocksN][2],
                                       Sums<Traits>& sums) {
#pragma unroll
  for (int k_half = 0; k_half < 2; ++k_half) {
    uint32_t wide_a[Traits::kBlocksM][4];
#pragma unroll
    for (int n = 0; n < 2 * Traits::kBlocksM; ++n) {
      const int block = n / 2, half = n % 2;
      widen_float8<typename Traits::T>(a[block][2 * k_half + half], wide_a[block][half], wide_a[block][2 + half]);
    }
#pragma unroll
    for (int j = 0; j < Traits::kBlocksN; ++j) {
      uint32_t wide_b[2];
      widen_float8<typename Traits::Right>(b[j][k_half], wide_b[0], wide_b[1]);
#pragma unroll
      for (int i = 0; i < Traits::kBlocksM; ++i) mma_float16(wide_a[i], wide_b, sums[i][j]);
    }
  }
}

// sums += a b over one K chunk.
template <class Traits, class R>
__device__ inline void multiply_chunk(R (&a)[Traits::kBlocksM][4], R (&b)[Traits::kBlocksN][2], Sums<Traits>& sums) {
  const auto each = [&](const auto& multiply) {
#pragma unroll
    for (int n = 0; n < Traits::kBlocksM * Traits::kBlocksN; ++n) multiply(n / Traits::kBlocksN, n % Traits::kBlocksN);
  };
  if constexpr (kIs8Bit<Traits::kKind>) {
    if constexpr (std::is_integral_v<typename Traits::T>) {
      each([&](int i, int j) { mma_int8(a[i], b[j], sums[i][j]); });
    } else {
      multiply_float8<Traits>(a, b, sums);
    }
  } else if constexpr (Traits::kKind == Kind::f64) {
    each([&](int i, int j) { mma_float64(a[i], b[j], sums[i][j]); });
  } else if constexpr (Traits::kKind == Kind::bf16) {
    each([&](int i, int j) { mma_bfloat16(a[i], b[j], sums[i][j]); });
  } else if constexpr (Traits::kKind == Kind::f16) {
    each([&](int i, int j) { mma_float16(a[i], b[j], sums[i][j]); });
  } else if constexpr (Traits::kKind == Kind::tf32) {
#pragma unroll
    for (auto& block : a) {
#pragma unroll
      for (uint32_t& x : block) x = round_to_tf32(float_of_bits(x));
    }
#pragma unroll
    for (auto& block : b) {
#pragma unroll
      for (uint32_t& x : block) x = round_to_tf32(float_of_bits(x));
    }
    each([&](int i, int j) { mma_tf32(a[i], b[j], sums[i][j]); });
  } else {
    static_assert(Traits::kKind == Kind::tf32x3);
    uint32_t big_a[Traits::kBlocksM][4], small_a[Traits::kBlocksM][4], big_b[Traits::kBlocksN][2], small_b[Traits::kBlocksN][2];
    split(a, big_a, small_a);
    split(b, big_b, small_b);
    // The tensor cores truncate sums where float32 would round, and the error grows with K. So each chunk has its own accumulators, which
    // are added to the total with rounding.
#pragma unroll
    for (int i = 0; i < Traits::kBlocksM; ++i) {
      float chunk[Traits::kBlocksN][4] = {};
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) mma_tf32(small_a[i], big_b[j], chunk[j]);
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) mma_tf32(big_a[i], small_b[j], chunk[j]);
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) mma_tf32(big_a[i], big_b[j], chunk[j]);
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) {
#pragma unroll
        for (int n = 0; n < 4; ++n) sums[i][j][n] += chunk[j][n];
      }
    }
  }
}

}  // namespace vbgemm
