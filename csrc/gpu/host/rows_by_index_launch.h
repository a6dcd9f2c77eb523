// The host side of rows_by_index.h: copies of rows that an index names.
#pragma once
#include <cstdint>

#include "gpu/tile/kernel_parameters.h"

namespace vbgemm {

// A thread block copies so many vectors of so many rows. With 16,384 tokens, 256 bytes of each are 4 MB.
inline constexpr int kIndexedSlab = 16, kIndexedRows = 128;

struct RowsByIndexParameters {
  const void* x;         // (source_rows, vectors) of 16 bytes
  const int32_t* index;  // the row of x that becomes each row of y, or a number out of range: zeros
  void* y;               // (rows, vectors)
  int32_t source_rows, rows, vectors;
  int32_t row_blocks;  // of kIndexedRows rows, which the launch counts
};

// Enqueues a kernel on the stream, under the conditions of launch().
Error rows_by_index(const RowsByIndexParameters& call, Stream stream);

}  // namespace vbgemm
