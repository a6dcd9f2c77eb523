// From numbers of 16 or 32 bits to 8-bit floats with scales, in one pass: a CTA reads a block of 128 x 128 into registers, finds the
// largest magnitude of each row or of the whole block, and writes the scaled numbers, the transposed ones, or both. 8-bit wgmma reads its
// operands along K alone, so that a factor is needed transposed wherever K is its other dimension, as in a gradient.
#pragma once
#include "gpu/host/quantize_launch.h"
#include "gpu/tile/arithmetic.h"
#include "gpu/tile/tile_cut.h"

namespace vbgemm {

template <class T>
class Quantize {
  // A thread holds 8 x 8 elements: 16 threads span the block's columns, and 16 its rows.
  static constexpr int kSide = kQuantizeBlock, kEach = 8, kAcross = kSide / kEach;
  static_assert(kAcross * kAcross == kQuantizeThreads);

 public:
  struct Shared {
    uint32_t magnitude[kAcross];
    uint64_t transposed[kSide][kAcross];  // of a column of the block, 8 rows in a word
  };

  __device__ Quantize(const QuantizeParameters& parameters, Shared& shared) : p_(parameters), shared_(shared) {
    const int row_blocks = (p_.rows + kSide - 1) / kSide, col_blocks = (p_.cols + kSide - 1) / kSide;
    const int64_t block = block_index(), down = block / col_blocks;
    col_block_ = static_cast<int>(block - down * col_blocks);
    matrix_ = down / row_blocks;
    row_block_ = static_cast<int>(down - matrix_ * row_blocks);
    across_ = thread_index() % kAcross, down_ = thread_index() / kAcross;
    row_ = row_block_ * kSide + down_ * kEach, col_ = col_block_ * kSide + across_ * kEach;
  }

  __device__ __forceinline__ void run() {
    await_previous_kernel();
    float x[kEach][kEach], factor[kEach];  // factor: the reciprocal of each row's scale
    read(x);
    find_scales(x, factor);
    if (p_.values) write_rows(x, factor);
    if (p_.transposed) write_columns(x, factor[0]);
  }

 private:
  __device__ void read(float (&x)[kEach][kEach]) const {
    constexpr int kVectors = kEach * static_cast<int>(sizeof(T)) / kVectorLoadBytes, kElements = kEach / kVectors;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = row_ + i;
      const bool exists = row < p_.rows && col_ < p_.cols;
      const int source = exists && p_.index ? p_.index[row] : row;
      Vector<T, kElements> vector[kVectors] = {};
      if (exists && static_cast<uint32_t>(source) < static_cast<uint32_t>(p_.source_rows)) {
        const T* const from = static_cast<const T*>(p_.x) + (matrix_ * p_.source_rows + source) * p_.cols + col_;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) load_bytes<kVectorLoadBytes>(&vector[v], from + v * kElements);
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) x[i][j] = widen(vector[j / kElements].element[j % kElements]);
    }
  }

  // Stores the block's scales, and sets the factor of each of the thread's rows.
  __device__ void find_scales(const float (&x)[kEach][kEach], float (&factor)[kEach]) {
    // The order of the bits of a magnitude is that of the numbers, with infinity and NaN as the largest.
    uint32_t magnitude[kEach], of_all = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      magnitude[i] = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) magnitude[i] = larger(magnitude[i], bits_of_float(x[i][j]) & 0x7fffffffu);
    }
    if (p_.of_rows) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float scale = scale_of(largest_across(magnitude[i]));
        factor[i] = 1 / scale;
        if (across_ == 0 && row_ + i < p_.rows) p_.scales[(matrix_ * p_.rows + row_ + i) * col_blocks() + col_block_] = scale;
      }
      return;
    }
#pragma unroll
    for (const uint32_t each : magnitude) of_all = larger(of_all, each);
    of_all = largest_across(of_all);
    if (across_ == 0) shared_.magnitude[down_] = of_all;
    block_barrier();
#pragma unroll
    for (const uint32_t each : shared_.magnitude) of_all = larger(of_all, each);
    const float scale = scale_of(of_all);
#pragma unroll
    for (float& each : factor) each = 1 / scale;
    if (thread_index() > 0) return;
    const int row_blocks = (p_.rows + kSide - 1) / kSide;
    const int64_t place = p_.values ? int64_t{row_block_} * col_blocks() + col_block_ : int64_t{col_block_} * row_blocks + row_block_;
    p_.scales[matrix_ * row_blocks * col_blocks() + place] = scale;
  }

  __device__ static uint32_t larger(uint32_t x, uint32_t y) { return x < y ? y : x; }
  __device__ static uint32_t largest_across(uint32_t x) {
    take_larger<1>(x), take_larger<2>(x), take_larger<4>(x), take_larger<8>(x);
    return x;
  }
  template <int kDistance>
  __device__ static void take_larger(uint32_t& x) {
    uint32_t theirs = x;
    swap_lanes<kDistance>(theirs);
    x = larger(x, theirs);
  }

  // Zeros, and numbers that may be flushed to zero, have the scale 1. A scale below the smallest normal number would have no reciprocal.
  __device__ float scale_of(uint32_t magnitude) const {
    constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u, kSmallest = 0x00800000u;
    if (magnitude < kSmallest) return 1;
    if (magnitude >= kInfinity) return float_of_bits(kNaN);
    const float scale = float_of_bits(magnitude) * p_.reciprocal;
    return bits_of_float(scale) < kSmallest ? float_of_bits(kSmallest) : scale;
  }

  __device__ uint32_t narrowed(float x, float y, float reciprocal) const {
    x = bounded(x * reciprocal), y = bounded(y * reciprocal);
    if (p_.dtype == DType::e4m3) return narrow_two<DType::e4m3>(x, y);
    return narrow_two<DType::e5m2>(x, y);
  }
  __device__ float bounded(float x) const {  // NaN remains NaN
    x = x > p_.largest ? p_.largest : x;
    return x < -p_.largest ? -p_.largest : x;
  }
  template <DType kDType>
  __device__ static uint32_t narrow_two(float x, float y) {
    if constexpr (kNarrowsFloat8) return narrow_float8<kDType == DType::e4m3>(x, y);
    Float8<kDType> first, second;
    narrow(x, first), narrow(y, second);
    return first.bits | static_cast<uint32_t>(second.bits) << 8;
  }
  __device__ uint64_t word(const uint32_t (&pairs)[kEach / 2]) const {
    const uint32_t low = pairs[0] | pairs[1] << 16, high = pairs[2] | pairs[3] << 16;
    return low | static_cast<uint64_t>(high) << 32;
  }

  __device__ void write_rows(const float (&x)[kEach][kEach], const float (&factor)[kEach]) const {
    if (col_ >= p_.cols) return;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (row_ + i >= p_.rows) return;
      uint32_t pairs[kEach / 2];
#pragma unroll
      for (int j = 0; j < kEach; j += 2) pairs[j / 2] = narrowed(x[i][j], x[i][j + 1], factor[i]);
      const uint64_t bytes = word(pairs);
      store_bytes<8>(static_cast<char*>(p_.values) + (matrix_ * p_.rows + row_ + i) * p_.cols + col_, &bytes);
    }
  }

  // Through shared memory, so that adjacent threads write adjacent bytes. The words of a column are permuted against bank conflicts.
  __device__ void write_columns(const float (&x)[kEach][kEach], float factor) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      uint32_t pairs[kEach / 2];
#pragma unroll
      for (int i = 0; i < kEach; i += 2) pairs[i / 2] = narrowed(x[i][j], x[i + 1][j], factor);
      shared_.transposed[across_ * kEach + j][down_ ^ across_] = word(pairs);
    }
    block_barrier();
    const int row = row_block_ * kSide + across_ * kEach;  // here `across` counts the words of a column
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int col = i * kAcross + down_;
      if (row >= p_.rows || col_block_ * kSide + col >= p_.cols) return;
      const uint64_t bytes = shared_.transposed[col][across_ ^ (col / kEach)];
      store_bytes<8>(static_cast<char*>(p_.transposed) + (matrix_ * p_.cols + col_block_ * kSide + col) * p_.rows + row, &bytes);
    }
  }

  __device__ int col_blocks() const { return (p_.cols + kSide - 1) / kSide; }

  const QuantizeParameters& p_;
  Shared& shared_;
  int64_t matrix_;
  int row_block_, col_block_, across_, down_, row_, col_;
};

}  // namespace vbgemm
