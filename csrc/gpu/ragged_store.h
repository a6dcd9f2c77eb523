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

// Through shared memory, so that a warp stores whole lines.
template <class Cut, int kBlocks>
__device__ inline void store_narrow(const RaggedDestination& to, const float (&sums)[kBlocks][4], unsigned char* staging, int lane) {
  constexpr int kRound = 16, kRoundBytes = 256;  // blocks of 8 columns a round, bytes of their line
  using T = typename Cut::T;
#pragma unroll
  for (int round = 0; round < kBlocks / kRound; ++round) {
    __syncwarp();  // all have read what the round before has left
#pragma unroll
    for (int block = 0; block < kRound; block += 2) {
      const float(&x)[4] = sums[round * kRound + block], (&y)[4] = sums[round * kRound + block + 1];
      const uint32_t words[4] = {narrow_pair<Cut::kKind>(x[0], x[1]), narrow_pair<Cut::kKind>(x[2], x[3]),
                                 narrow_pair<Cut::kKind>(y[0], y[1]), narrow_pair<Cut::kKind>(y[2], y[3])};
      const int row = lane % 16, vector = block + lane / 16;
      store_matrices(staging + row * kRoundBytes + (vector ^ (row & 7)) * 16, words);
    }
    __syncwarp();
    const int vector = lane % 16, col = (round * kRound + vector) * 8;
    T* out = static_cast<T*>(to.out) + (lane / 16) * to.row_stride + col;
#pragma unroll
    for (int row = lane / 16; row < 16; row += 2, out += 2 * to.row_stride) {
      const uint4 bytes = *reinterpret_cast<const uint4*>(staging + row * kRoundBytes + (vector ^ (row & 7)) * 16);
      store_bytes_if<16>(row < to.rows && col < to.cols, out, &bytes);
    }
  }
}

// Four lanes store a whole sector.
template <int kBlocks>
__device__ inline void store_wide(const RaggedDestination& to, const float (&sums)[kBlocks][4], int lane) {
  const int row = lane / 4, col = lane % 4 * 2;
  float* out = static_cast<float*>(to.out) + row * to.row_stride + col;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_bytes_if<8>(row + 8 * half < to.rows && block * 8 + col < to.cols, out + half * 8 * to.row_stride + block * 8, &sums[block][2 * half]);
    }
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
