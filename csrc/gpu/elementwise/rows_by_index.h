// Copies rows by index, y[i] = x[index[i]], where a row of x may occur many times, as a token does in the rows of its experts. Consecutive
// thread blocks copy the same slab of kIndexedSlab vectors of all rows, and results are marked evict-first: the slab's columns of x then
// stay in L2, where whole rows would be evicted before they are read again.
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
