// The host side of quantize.h: from numbers of 16 or 32 bits to 8-bit floats with scales.
#pragma once
#include "gpu/tile/kernel_parameters.h"

namespace vbgemm {

inline constexpr int kQuantizeBlock = 128, kQuantizeThreads = 256;
// Rows of x, and of the transposed result, are read and written in pieces of so many elements, of which they must be multiples.
inline constexpr int kQuantizePiece = 8;

struct QuantizeParameters {
  const void* x;         // matrices of source_rows x cols
  const int32_t* index;  // the row of x that becomes each row of the results, or zeros where there is no such row; null: each row itself
  void *values, *transposed;  // matrices of rows x cols and of cols x rows; null if not wanted
  // A scale for each block of a row and 128 columns (of_rows), or of 128 x 128; (block of rows, block of columns) if `values` is wanted,
  // else transposed.
  float* scales;
  int32_t source_rows, rows, cols;
  DType dtype;  // of the results
  bool of_rows;
  float largest, reciprocal;  // the largest number of that type, and its reciprocal
};

struct QuantizeCall {
  DType dtype;  // of x
  int64_t matrices;
  QuantizeParameters parameters;
};

// Enqueues a kernel on the stream, under the conditions of launch().
Error quantize(const QuantizeCall& call, Stream stream);

}  // namespace vbgemm
