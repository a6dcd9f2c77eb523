// The host side of quantize.h: 16-bit or 32-bit values to 8-bit floats with scales.
#pragma once
#include "descriptor.h"
#include "gpu/tile/kernel_parameters.h"
#include "ragged.h"

namespace vbgemm {

inline constexpr int kQuantizeBlock = kScaledDepth, kQuantizeThreads = 256;
static_assert(kScaledColumns == kScaledDepth);
// The elements that are read or written together: of rows of operands, and of rows of the transposed result, whose elements are bytes. The
// lengths of these rows must be multiples of them.
inline constexpr int kQuantizeVectorElements = 8, kTransposedVectorElements = 16;

// The quantized values:
//   plain           x
//   gated           row_scale activation(gate) up, where (gate, up) are both halves of the columns of sums
//   gated_gradient  the gradient of the sums, where x is that of the gated results
enum class QuantizeForm : int32_t { plain, gated, gated_gradient };
inline constexpr int kQuantizeForms = 3;

// Divides values below 2^31 by `number` with a multiplication: n / number is n factor / 2^shift, rounded down (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994). A kernel whose blocks are small would spend 3 to 9% of its time on
// divisions.
struct Divisor {
  uint32_t number, factor;
  int shift;
};
inline Divisor divisor(uint32_t number) {
  int shift = 31;
  while (uint64_t{1} << (shift - 31) < number) ++shift;
  return {number, static_cast<uint32_t>((uint64_t{1} << shift) / number + 1), shift};
}

struct QuantizeParameters {
  const void* x;           // matrices of source_rows x part_cols
  const void* sums;        // (source_rows, 2 part_cols)
  const float* row_scale;  // of each row of the sums, or null
  // index: the row of the operands that is read for each row; zeros are read for a row that does not exist. place: the row of `values` to
  // which it is written. If either is null, rows keep their numbers. A block of rows is skipped if the row that its first row reads does
  // not exist.
  const int32_t *index, *place;
  void *values, *transposed;  // matrices of value_rows x cols and of cols x rows; null if not wanted
  float* row_scales;          // scales of the values: (row, block of 128 columns); null if the values have block scales
  float* block_scales;  // of 128 x 128: (block of rows, block of columns) of values that have them, else transposed; null if not wanted
  float* partials;      // (row of values, block of columns): sums of the gradient times the results before their row's scale, or null
  int32_t source_rows, rows, value_rows, cols, part_cols;  // cols: 2 part_cols of a gradient, else part_cols
  DType dtype;                                             // of the results
  Activation activation;                                   // silu or gelu
  float reciprocal;                                        // of the type's largest value
  // The order of blocks, which the launch decides: along lines, which are columns (down) or rows of blocks; with the number of blocks per
  // line and of lines per matrix.
  Divisor line, matrix;
  bool down;
};

struct QuantizeCall {
  DType dtype;  // of the operands
  QuantizeForm form;
  int64_t matrices;
  QuantizeParameters parameters;
};

// Enqueues a kernel on the stream, under the conditions of launch().
Error quantize(const QuantizeCall& call, Stream stream);

}  // namespace vbgemm
