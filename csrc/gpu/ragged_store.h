// How a warp stores its part of a tile of a ragged product: 16 rows, as the warpgroup's products leave them in registers.
#pragma once
#include "cuda_bulk_copy.h"
#include "epilogue.h"
#include "ragged_cut.h"

namespace vbgemm {

template <Kind kKind>
__device__ inline uint32_t narrow_pair(float low, float high) {
  uint32_t bits;
  if constexpr (kKind == Kind::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

// Where the warp's rows go, and how much of them there is.
struct RaggedDestination {
  void* out;            // the first element of the first row
  int64_t row_stride;   // elements
  int rows, cols;       // that exist; 0 rows or fewer: none
};

// Starts the copies of the rows that the warp has staged, as many columns as a line holds from `col` on.
template <class Cut>
__device__ inline void copy_rows(const RaggedDestination& to, int col, int element_bytes, const unsigned char* staging, int lane) {
  show_to_products();
  __syncwarp();
  const int bytes = min((to.cols - col) * element_bytes, Cut::kCols * 2);
  if (lane < min(to.rows, 16) && bytes > 0) {
    copy_out(static_cast<char*>(to.out) + (lane * to.row_stride + col) * element_bytes, staging + lane * Cut::kStagingLine, bytes);
  }
  close_stores();
}

// Through shared memory, from where the copy engine takes the rows: the warp goes on to its next tile while they are written.
template <class Cut, int kBlocks>
__device__ inline void store_narrow(const RaggedDestination& to, const float (&sums)[kBlocks][4], unsigned char* staging, int lane) {
  using T = typename Cut::T;
  wait_stores_read();
  __syncwarp();
#pragma unroll
  for (int block = 0; block < kBlocks; block += 2) {
    const float(&x)[4] = sums[block], (&y)[4] = sums[block + 1];
    const uint32_t words[4] = {narrow_pair<Cut::kKind>(x[0], x[1]), narrow_pair<Cut::kKind>(x[2], x[3]),
                               narrow_pair<Cut::kKind>(y[0], y[1]), narrow_pair<Cut::kKind>(y[2], y[3])};
    store_matrices(staging + lane % 16 * Cut::kStagingLine + (block + lane / 16) * 16, words);
  }
  copy_rows<Cut>(to, 0, static_cast<int>(sizeof(T)), staging, lane);
}

// The same of float32, in two rounds.
template <class Cut, int kBlocks>
__device__ inline void store_wide(const RaggedDestination& to, const float (&sums)[kBlocks][4], unsigned char* staging, int lane) {
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    wait_stores_read();
    __syncwarp();
#pragma unroll
    for (int block = 0; block < kBlocks / 2; ++block) {
      const float(&x)[4] = sums[round * kBlocks / 2 + block];
      unsigned char* const place = staging + lane / 4 * Cut::kStagingLine + block * 32 + lane % 4 * 8;
      *reinterpret_cast<float2*>(place) = make_float2(x[0], x[1]);
      *reinterpret_cast<float2*>(place + 8 * Cut::kStagingLine) = make_float2(x[2], x[3]);
    }
    copy_rows<Cut>(to, round * Cut::kCols / 2, 4, staging, lane);
  }
}

template <class Cut>
__device__ inline void store_zeros(const RaggedDestination& to, int lane, bool wide_results) {
  constexpr uint4 kZeros{};
  const int bytes = wide_results ? 4 : 2, line = min(to.cols, Cut::kCols) * bytes;
  for (int row = 0; row < min(to.rows, 16); ++row) {
    char* const out = static_cast<char*>(to.out) + row * to.row_stride * bytes;
    for (int byte = lane * 16; byte < line; byte += 32 * 16) store_bytes<16>(out + byte, &kZeros);
  }
}

// row_scale activation(sum + bias): the sums go through shared memory as they are, so that this is one loop and not the code of every sum.
// bias and row_scale belong to the first column and row.
template <class Cut, int kBlocks>
__device__ inline void store_finished(const RaggedDestination& to, const float (&sums)[kBlocks][4], float* staging, int lane,
                                      const void* bias, const float* row_scale, Activation activation, bool wide_results) {
  constexpr int kRound = 8, kLine = 64;  // blocks of 8 columns a round, their columns
  using T = typename Cut::T;
  wait_stores_read();
#pragma unroll
  for (int round = 0; round < kBlocks / kRound; ++round) {
    __syncwarp();
#pragma unroll
    for (int block = 0; block < kRound; ++block) {
      const float(&x)[4] = sums[round * kRound + block];
      const int row = lane / 4, place = ((block ^ row) * 8) + lane % 4 * 2;
      *reinterpret_cast<float2*>(staging + row * kLine + place) = make_float2(x[0], x[1]);
      *reinterpret_cast<float2*>(staging + (row + 8) * kLine + place) = make_float2(x[2], x[3]);
    }
    __syncwarp();
#pragma unroll 1
    for (int item = lane; item < 16 * kLine / 2; item += 32) {
      const int row = item / (kLine / 2), pair = item % (kLine / 2), col = round * kLine + pair * 2;
      if (row >= to.rows || col >= to.cols) continue;
      const float2 sum = *reinterpret_cast<const float2*>(staging + row * kLine + ((pair / 4 ^ (row & 7)) * 8) + pair % 4 * 2);
      float x[2] = {sum.x, sum.y};
      const float scale = row_scale ? row_scale[row] : 1;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (bias) x[i] += wide_results ? static_cast<const float*>(bias)[col + i] : widen(static_cast<const T*>(bias)[col + i]);
        x[i] = activate(activation, x[i]);
        if (row_scale) x[i] *= scale;
      }
      if (wide_results) {
        store_bytes<8>(static_cast<float*>(to.out) + row * to.row_stride + col, x);
      } else {
        const uint32_t bits = narrow_pair<Cut::kKind>(x[0], x[1]);
        store_bytes<4>(static_cast<T*>(to.out) + row * to.row_stride + col, &bits);
      }
    }
  }
}

}  // namespace vbgemm
