// Rows by index, y[i] = x[index[i]], where many rows of y are the same row of x, as the rows of experts are copies of tokens. Thread blocks
// of the same kIndexedSlab vectors of all rows follow each other, and results may be evicted first: what the rows of x have in these
// columns stays in L2, where whole rows would not stay until they are read again.
#pragma once
#include "gpu/host/rows_by_index_launch.h"
#include "gpu/tile/chunks.h"

namespace vbgemm {

struct RowsByIndex {
  static constexpr int kMinBlocks = 4;
  static constexpr int kRowsAtOnce = kArrayThreads / kIndexedSlab, kInFlight = kIndexedRows / kRowsAtOnce;  // a thread's rows in flight
  static_assert(kInFlight * kRowsAtOnce == kIndexedRows);

  __device__ __forceinline__ static void run(const RowsByIndexParameters& p) {
    await_previous_kernel();
    const auto block = static_cast<uint32_t>(block_index()), row_blocks = static_cast<uint32_t>(p.row_blocks);
    const int vector = static_cast<int>(block / row_blocks) * kIndexedSlab + thread_index() % kIndexedSlab;
    if (vector >= p.vectors) return;
    const int64_t first = int64_t{block % row_blocks} * kIndexedRows + thread_index() / kIndexedSlab;
    const int64_t stride = int64_t{p.vectors} * kVectorBytes;
    const char* const x = static_cast<const char*>(p.x) + vector * kVectorBytes;
    char* const y = static_cast<char*>(p.y) + vector * kVectorBytes;
    int32_t source[kInFlight];
    Vector<uint32_t, kVectorBytes / 4> values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t row = first + i * kRowsAtOnce;
      source[i] = row < p.rows ? p.index[row] : -1;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const bool exists = static_cast<uint32_t>(source[i]) < static_cast<uint32_t>(p.source_rows);
      load_bytes_if<kVectorBytes>(exists, &values[i], x + source[i] * stride);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t row = first + i * kRowsAtOnce;
      store_streamed_if<kVectorBytes>(row < p.rows, y + row * stride, &values[i]);
    }
  }
};

}  // namespace vbgemm
