// Quantizes 16-bit or 32-bit values to 8-bit floats with scales, in one pass: a CTA reads a block of 128 x 128 into registers, or computes
// it there, finds the largest magnitude of each row or of the whole block, and writes the scaled values, their transpose, or both. 8-bit
// wgmma only takes K-major operands, so a factor must be transposed if K is its other dimension, as in a gradient.
//
// Instructions are scarce, not only bytes: at memory speed a multiprocessor has time for about 20 instructions per element.
#pragma once
#include "gpu/elementwise/quantize_operand.h"

namespace vbgemm {

template <class T, QuantizeForm kForm>
class Quantize {
  static constexpr int kSide = kQuantizeBlock, kRows = kThreadRows, kCols = kThreadCols;
  using Operand = QuantizeOperand<T, kForm>;
  using Elements = typename Operand::Elements;
  static constexpr int kParts = Operand::kParts;
  // A thread's rows of a column are half of one vector store of the transposed result.
  struct alignas(kTransposedVectorElements) TransposedVector {
    uint64_t rows[2];
  };
  static constexpr int kVectorsPerCol = kSide / kTransposedVectorElements;
  static_assert(2 * kRows == kTransposedVectorElements);

 public:
  // CTAs on a multiprocessor, with few register spills.
  static constexpr int kShare = sizeof(T) == 4 || kCdna ? 2 : 1;
  static constexpr int kMinBlocks = (kForm == QuantizeForm::plain ? 4 : kForm == QuantizeForm::gated ? 3 : 2) / kShare;
  struct Shared {
    uint32_t magnitude[kParts][kQuantizeThreads / 32];
    TransposedVector transposed[kParts][kSide][kVectorsPerCol];
  };

  __device__ Quantize(const QuantizeParameters& parameters, Shared& shared) : p_(parameters), shared_(shared), at_(parameters) {}

  __device__ __forceinline__ void run() {
    await_previous_kernel();
    const auto existing = [](int row, bool named, int count) {
      return named && static_cast<uint32_t>(row) < static_cast<uint32_t>(count) ? row : -1;
    };
    const int own = at_.row() + at_.own(), first = row_named(p_.index, at_.row_block * kSide, p_.rows);
    const int source = row_named(p_.index, own, p_.rows), place = row_named(p_.place, own, p_.rows);
    if (p_.index && existing(first, true, p_.source_rows) < 0) return;
    place_ = existing(place, own < p_.rows, p_.value_rows);
    Elements x[kParts];
    Operand::read(p_, at_, existing(source, own < p_.rows, p_.source_rows), place_, x);
    float of_row[kParts] = {}, of_block[kParts] = {};
    find_scales(x, of_row, of_block);
    if (p_.dtype == DType::e4m3) {
      write<DType::e4m3>(x, of_row, of_block);
    } else {
      write<DType::e5m2>(x, of_row, of_block);
    }
  }

 private:
  // The first column of a part, and its block of columns.
  __device__ int left(int part) const { return part * p_.part_cols; }
  __device__ int block(int part) const { return left(part) / kSide + at_.col_block; }

  // Stores the scales, and finds their reciprocals: of the thread's own row, and of the whole block.
  __device__ void find_scales(const Elements (&x)[kParts], float (&of_row)[kParts], float (&of_block)[kParts]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t largest = x[part].largest(at_.thread);
      if (p_.row_scales) of_row[part] = scale_row(part, Elements::of_own_row(largest, at_.own()));
      if (p_.block_scales) {
        const uint32_t of_threads = Elements::of_threads(largest);
        if (at_.thread % 32 == 0) shared_.magnitude[part][at_.thread / 32] = of_threads;
      }
    }
    if (!p_.block_scales) return;
    block_barrier();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      of_block[part] = scale_block(part);
      if (!p_.row_scales) of_row[part] = of_block[part];
    }
  }

  __device__ float scale_row(int part, uint32_t magnitude) const {
    const float scale = scale_of(magnitude);
    const int64_t row = int64_t{at_.matrix} * p_.value_rows + place_;
    if (at_.across() < kRows && place_ >= 0) p_.row_scales[row * blocks_over(p_.cols) + block(part)] = scale;
    return reciprocal(scale);
  }

  __device__ float scale_block(int part) const {
    uint32_t largest = 0;
#pragma unroll
    for (const uint32_t each : shared_.magnitude[part]) largest = largest < each ? each : largest;
    const float scale = scale_of(largest);
    if (at_.thread == 0) {
      const int row_blocks = blocks_over(p_.rows), col_blocks = blocks_over(p_.cols);
      const bool as_values = p_.values && !p_.row_scales;
      const int64_t place =
          as_values ? int64_t{at_.row_block} * col_blocks + block(part) : int64_t{block(part)} * row_blocks + at_.row_block;
      p_.block_scales[int64_t{at_.matrix} * row_blocks * col_blocks + place] = scale;
    }
    return reciprocal(scale);
  }

  // Zeros, and values that may be flushed to zero, have the scale 1. A scale below the smallest normal number would have no reciprocal.
  __device__ float scale_of(uint32_t magnitude) const {
    constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u, kSmallest = 0x00800000u;
    const uint32_t scaled = bits_of_float(float_of_bits(magnitude) * p_.reciprocal), scale = scaled < kSmallest ? kSmallest : scaled;
    return magnitude < kSmallest ? 1 : float_of_bits(magnitude < kInfinity ? scale : kNaN);
  }

  // Quantizes four values to the bytes of a word. A product exceeds the largest value by rounding errors only, so it rounds to that value.
  template <DType kDType>
  __device__ static uint32_t narrowed(float x, float y, float z, float w, float factor) {
    x *= factor, y *= factor, z *= factor, w *= factor;
    if constexpr (kNarrowsFloat8) return narrow_float8<kDType == DType::e4m3>(x, y, z, w);
    Float8<kDType> four[4];
    narrow(x, four[0]), narrow(y, four[1]), narrow(z, four[2]), narrow(w, four[3]);
    return four[0].bits | static_cast<uint32_t>(four[1].bits) << 8 | static_cast<uint32_t>(four[2].bits) << 16 |
           static_cast<uint32_t>(four[3].bits) << 24;
  }

  template <DType kDType>
  __device__ __forceinline__ void write(const Elements (&x)[kParts], const float (&of_row)[kParts], const float (&of_block)[kParts]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) write_part<kDType>(part, x[part], of_row[part], of_block[part]);
    if (!p_.transposed) return;
    block_barrier();
#pragma unroll
    for (int part = 0; part < kParts; ++part) write_columns(part);
  }

  // Columns pass through shared memory, so that adjacent threads write adjacent bytes. The vectors of a column are swizzled against bank
  // conflicts.
  template <DType kDType>
  __device__ __forceinline__ void write_part(int part, const Elements& x, float of_own, float of_block) {
    constexpr int kWord = 4;  // numbers in a word
    const int across = at_.across(), down = at_.down();
    uint32_t rows[kRows][kCols / kWord];
    float of_row[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) of_row[i] = at_.of_row(of_own, i);
#pragma unroll
    for (int word = 0; word < kCols / kWord; ++word) {
      uint64_t column[kWord] = {};
#pragma unroll
      for (int top = 0; top < kRows; top += kWord) {
        float number[kWord][kWord];
#pragma unroll
        for (int i = 0; i < kWord; ++i) {
#pragma unroll
          for (int j = 0; j < kWord; ++j) number[i][j] = x(top + i, word * kWord + j);
          rows[top + i][word] = narrowed<kDType>(number[i][0], number[i][1], number[i][2], number[i][3], of_row[top + i]);
        }
        if (!p_.transposed) continue;
#pragma unroll
        for (int j = 0; j < kWord; ++j) {
          column[j] |= uint64_t{narrowed<kDType>(number[0][j], number[1][j], number[2][j], number[3][j], of_block)} << 8 * top;
        }
      }
      if (!p_.transposed) continue;
#pragma unroll
      for (int j = 0; j < kWord; ++j) {
        shared_.transposed[part][across * kCols + word * kWord + j][(down / 2) ^ (across % kVectorsPerCol)].rows[down % 2] = column[j];
      }
    }
    if (!p_.values) return;
    const QuantizeRows values(p_.values, uint64_t(at_.matrix) * p_.value_rows * p_.cols + left(part) + at_.col(), p_.cols);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = at_.of_row(place_, i);
      store_streamed_if<kCols>(row >= 0 && at_.col() < p_.part_cols, values(row), rows[i]);
    }
  }

  __device__ void write_columns(int part) const {
    const int vector = at_.thread % kVectorsPerCol, first = at_.thread / kVectorsPerCol,
              row = at_.row_block * kSide + vector * kTransposedVectorElements;
    const int left_of_block = at_.col_block * kSide;
    if (row >= p_.rows) return;
    const QuantizeRows columns(p_.transposed, (uint64_t(at_.matrix) * p_.cols + left(part) + left_of_block) * p_.rows + row, p_.rows);
    constexpr int kAtOnce = kQuantizeThreads / kVectorsPerCol;
#pragma unroll
    for (int turn = 0; turn < kSide / kAtOnce; ++turn) {
      const int col = first + turn * kAtOnce;
      store_streamed_if<kTransposedVectorElements>(col < p_.part_cols - left_of_block, columns(col),
                                                   &shared_.transposed[part][col][vector ^ (col / kCols % kVectorsPerCol)]);
    }
  }

  const QuantizeParameters& p_;
  Shared& shared_;
  const QuantizePlace at_;
  int place_ = -1;  // of the thread's own row, among those of `values`
};

}  // namespace vbgemm
