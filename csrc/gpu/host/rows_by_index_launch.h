// The host side of rows_by_index.h: copies of rows that an index names.
#pragma once
#include <cstdint>

#include "gpu/tile/kernel_parameters.h"

namespace vbgemm {

// The vectors per row and the rows that a thread block copies. With 16,384 tokens, 256 bytes of each are 4 MB.
inline constexpr int kIndexedSlab = 16, kIndexedRows = 128;

struct RowsByIndexParameters {
  const void* x;         // (source_rows, vectors) of 16 bytes
  const int32_t* index;  // the row of x for each row of y; out of range: zeros
  void* y;               // (rows, vectors)
  int32_t source_rows, rows, vectors;
  int32_t row_blocks;  // blocks of kIndexedRows rows, which the launch counts
};

// Enqueues a kernel on the stream, under the conditions of launch().
Error rows_by_index(const RowsByIndexParameters& call, Stream stream);

}  // namespace vbgemm
