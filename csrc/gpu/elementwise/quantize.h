// From numbers of 16 or 32 bits to 8-bit floats with scales, in one pass: a CTA reads a block of 128 x 128 into registers, or computes it
// there, finds the largest magnitude of each row or of the whole block, and writes the scaled numbers, the transposed ones, or both. 8-bit
// wgmma reads its operands along K alone, so that a factor is needed transposed wherever K is its other dimension, as in a gradient.
#pragma once
#include "gpu/elementwise/quantize_operand.h"

namespace vbgemm {

template <class T, QuantizeForm kForm>
class Quantize {
  static constexpr int kSide = kQuantizeBlock, kRows = kThreadRows, kCols = kThreadCols, kDown = kSide / kRows;
  using Operand = QuantizeOperand<T, kForm>;
  using Elements = typename Operand::Elements;

 public:
  static constexpr int kMinBlocks = Operand::kMinBlocks;
  struct Shared {
    QuantizeRows rows;
    uint32_t magnitude[kDown];
    alignas(8) uint32_t transposed[kSide][kDown];  // of a column of the block, 4 rows in a word
  };

  __device__ Quantize(const QuantizeParameters& parameters, Shared& shared) : p_(parameters), shared_(shared), at_(parameters) {}

  __device__ __forceinline__ void run() {
    await_previous_kernel();
    at_.find_rows(p_, shared_.rows);
    block_barrier();
    if (p_.index && shared_.rows.source[0] < 0) return;
    Elements x[Operand::kParts];
    Operand::read(p_, at_, shared_.rows, x);
#pragma unroll
    for (int part = 0; part < Operand::kParts; ++part) {
      if (part > 0) block_barrier();  // all threads have read the last part's shared memory
      const int left = part * p_.part_cols;
      if (p_.dtype == DType::e4m3) {
        quantize<DType::e4m3>(x[part], left);
      } else {
        quantize<DType::e5m2>(x[part], left);
      }
    }
  }

 private:
  // Of the columns from `left` on.
  template <DType kDType>
  __device__ void quantize(const Elements& x, int left) {
    float factor[kRows], of_block = 1;  // the reciprocal of the scale of each row, and of the block's
    uint32_t magnitude[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) magnitude[i] = x.largest(i);
    if (p_.block_scales) {
      of_block = factor_of_block(magnitude, left);
#pragma unroll
      for (float& each : factor) each = of_block;
    }
    if (p_.row_scales) find_row_scales(magnitude, left, factor);
    if (p_.values) write_rows<kDType>(x, factor, left);
    if (p_.transposed) write_columns<kDType>(x, of_block, left);
  }

  __device__ void find_row_scales(const uint32_t (&magnitude)[kRows], int left, float (&factor)[kRows]) const {
    const int blocks = blocks_over(p_.cols), block = left / kSide + at_.col_block;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float scale = scale_of(largest_across(magnitude[i]));
      factor[i] = 1 / scale;
      const int64_t row = value_row(i);
      if (at_.across == 0 && row >= 0) p_.row_scales[row * blocks + block] = scale;
    }
  }

  __device__ float factor_of_block(const uint32_t (&magnitude)[kRows], int left) {
    uint32_t largest = 0;
#pragma unroll
    for (const uint32_t each : magnitude) largest = larger(largest, each);
    largest = largest_across(largest);
    if (at_.across == 0) shared_.magnitude[at_.down] = largest;
    block_barrier();
#pragma unroll
    for (const uint32_t each : shared_.magnitude) largest = larger(largest, each);
    const float scale = scale_of(largest);
    if (thread_index() == 0) {
      const int row_blocks = blocks_over(p_.rows), col_blocks = blocks_over(p_.cols), block = left / kSide + at_.col_block;
      const bool as_values = p_.values && !p_.row_scales;
      const int64_t place = as_values ? int64_t{at_.row_block} * col_blocks + block : int64_t{block} * row_blocks + at_.row_block;
      p_.block_scales[int64_t{at_.matrix} * row_blocks * col_blocks + place] = scale;
    }
    return 1 / scale;
  }

  __device__ static uint32_t larger(uint32_t x, uint32_t y) { return x < y ? y : x; }
  __device__ static uint32_t largest_across(uint32_t x) {
    take_larger<1>(x), take_larger<2>(x), take_larger<4>(x), take_larger<8>(x);
    return x;
  }
  template <int kDistance>
  __device__ static void take_larger(uint32_t& x) {
    uint32_t theirs = x;
    shfl_xor<kDistance>(theirs);
    x = larger(x, theirs);
  }

  // Zeros, and numbers that may be flushed to zero, have the scale 1. A scale below the smallest normal number would have no reciprocal.
  __device__ float scale_of(uint32_t bits) const {
    const uint32_t magnitude = Elements::widened(bits);
    constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u, kSmallest = 0x00800000u;
    if (magnitude < kSmallest) return 1;
    if (magnitude >= kInfinity) return float_of_bits(kNaN);
    const float scale = float_of_bits(magnitude) * p_.reciprocal;
    return bits_of_float(scale) < kSmallest ? float_of_bits(kSmallest) : scale;
  }

  // No product is further above the largest number than roundings take it, so that it is rounded to that number.
  template <DType kDType>
  __device__ static uint32_t narrowed(float x, float y, float factor) {
    x *= factor, y *= factor;
    if constexpr (kNarrowsFloat8) return narrow_float8<kDType == DType::e4m3>(x, y);
    Float8<kDType> first, second;
    narrow(x, first), narrow(y, second);
    return first.bits | static_cast<uint32_t>(second.bits) << 8;
  }
  // The row of `values`, among those of all matrices, that the thread's i-th row becomes, or -1.
  __device__ int64_t value_row(int i) const {
    const int place = shared_.rows.place[at_.down * kRows + i];
    return place < 0 ? -1 : int64_t{at_.matrix} * p_.value_rows + place;
  }

  template <DType kDType>
  __device__ void write_rows(const Elements& x, const float (&factor)[kRows], int left) const {
    if (at_.col >= p_.part_cols) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = value_row(i);
      if (row < 0) continue;
      uint32_t bytes[2] = {};
#pragma unroll
      for (int j = 0; j < kCols; j += 2) bytes[j / 4] |= narrowed<kDType>(x(i, j), x(i, j + 1), factor[i]) << j % 4 * 8;
      store_bytes<8>(static_cast<char*>(p_.values) + row * p_.cols + left + at_.col, bytes);
    }
  }

  // Through shared memory, so that adjacent threads write adjacent bytes. The words of a column are permuted against bank conflicts.
  template <DType kDType>
  __device__ void write_columns(const Elements& x, float factor, int left) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const uint32_t low = narrowed<kDType>(x(0, j), x(1, j), factor), high = narrowed<kDType>(x(2, j), x(3, j), factor);
      shared_.transposed[at_.across * kCols + j][at_.down ^ (2 * at_.across)] = low | high << 16;
    }
    block_barrier();
    const int row = at_.row_block * kSide + at_.across * 8;  // here `across` counts pairs of words of a column
#pragma unroll
    for (int inside = at_.down; inside < kSide; inside += kDown) {
      const int col = at_.col_block * kSide + inside;
      if (row >= p_.rows || col >= p_.part_cols) return;
      const uint32_t* const words = &shared_.transposed[inside][2 * (at_.across ^ (inside / kCols))];
      store_bytes<8>(static_cast<char*>(p_.transposed) + (int64_t{at_.matrix} * p_.cols + left + col) * p_.rows + row, words);
    }
  }

  const QuantizeParameters& p_;
  Shared& shared_;
  QuantizePlace at_;
};

}  // namespace vbgemm
