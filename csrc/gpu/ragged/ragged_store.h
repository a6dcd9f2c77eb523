// How a warp stores its part of a tile of a ragged product beside plain sums (store_rows.h): zeros, and sums with an epilogue.
#pragma once
#include "gpu/pipelined/store_rows.h"
#include "gpu/ragged/ragged_cut.h"
#include "gpu/tile/epilogue.h"

namespace vbgemm {

template <class Cut>
__device__ inline void store_zeros(const RowsDestination& to, int lane, bool wide_results) {
  constexpr Vector<uint32_t, 4> kZeros{};
  const int bytes = wide_results ? 4 : 2, line = to.cols * bytes;
  for (int row = 0; row < min(to.rows, 16); ++row) {
    char* const out = to.out + row * to.row_bytes;
    for (int byte = lane * 16; byte < line; byte += 32 * 16) store_bytes<16>(out + byte, &kZeros);
  }
}

// The epilogue of a warp's rows: row_scale activation(sum + bias); in a gated product row_scale activation(gate + its bias) (up + its
// bias).
struct RaggedFinish {
  const void* bias;        // the entry of the tile's first column, or null
  const float* row_scale;  // the entry of the warp's first row, or null
  Activation activation;
  int gated;  // 0, or in a gated product the distance from a bias of the gate to that of the other half
  bool wide_results;
};

template <Kind kKind>
__device__ inline float bias_of(const RaggedFinish& finish, int col) {
  using T = LeftOf<kKind>;
  return finish.wide_results ? static_cast<const float*>(finish.bias)[col] : widen(static_cast<const T*>(finish.bias)[col]);
}

// silu, or gelu in its tanh form: x sigmoid(t), where t is x or 2 sqrt(2 / pi) (x + 0.044715 x^3).
template <Activation kActivation>
__device__ inline float gate(float x) {
  constexpr float kLinear = 1.5957691216f, kCubic = kLinear * 0.044715f;
  const float t = kActivation == Activation::silu ? x : x * (kLinear + kCubic * x * x);
  return fast_divide(x, 1 + fast_exp(-t));
}

// The values of a gated product that has neither bias nor row scale. A thread has the gate and the other factor of an element in the same
// place of both halves of its sums, so that nothing is exchanged. The tensor cores are idle meanwhile: hence the fast division and
// exponential, which are right to about 1e-6.
template <Activation kActivation, int kBlocks>
__device__ inline auto gated(const float (&sums)[kBlocks][4]) {
  return [&sums](int block, int i)
             __attribute__((always_inline)) { return gate<kActivation>(sums[block][i]) * sums[block + kBlocks / 2][i]; };
}

// Applies any epilogue and stores. The sums first go to shared memory unchanged, so that the epilogue is one loop and not a copy of its
// code for every sum. Of a gated product, the first half of the sums is of the gate, and a round stages columns of both halves.
template <class Cut, int kBlocks>
__device__ inline void store_finished(const RowsDestination& to, const float (&sums)[kBlocks][4], float* staging, int lane,
                                      const RaggedFinish& finish) {
  constexpr int kRound = 8, kLine = 64;                  // blocks of 8 columns in a round; elements in a staged line
  const int results = finish.gated ? kLine / 2 : kLine;  // of a round and row
  wait_stores_read();
#pragma unroll
  for (int round = 0; round < kBlocks / kRound; ++round) {
    wave_barrier();
#pragma unroll
    for (int block = 0; block < kRound; ++block) {
      const float (&all)[4] = sums[round * kRound + block];
      const float (&half)[4] = sums[block / (kRound / 2) * (kBlocks / 2) + round * (kRound / 2) + block % (kRound / 2)];
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = finish.gated ? half[i] : all[i];
      const int row = lane / 4, place = ((block ^ row) * 8) + lane % 4 * 2;
      store_two(staging + row * kLine + place, x[0], x[1]);
      store_two(staging + (row + 8) * kLine + place, x[2], x[3]);
    }
    wave_barrier();
#pragma unroll 1
    for (int item = lane; item < 16 * results / 2; item += 32) {
      const int row = item / (results / 2), pair = item % (results / 2), col = round * results + pair * 2;
      if (row >= to.rows || col >= to.cols) continue;
      const auto staged = [&](int pair, float (&x)[2]) {
        const float* const from = staging + row * kLine + ((pair / 4 ^ (row & 7)) * 8) + pair % 4 * 2;
        const auto sum = *reinterpret_cast<const Vector<float, 2>*>(from);
        x[0] = sum.element[0], x[1] = sum.element[1];
      };
      float x[2], up[2] = {1, 1};
      staged(pair, x);
      if (finish.gated) staged(pair + kLine / 4, up);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (finish.bias) {
          x[i] += bias_of<Cut::kKind>(finish, col + i);
          if (finish.gated) up[i] += bias_of<Cut::kKind>(finish, finish.gated + col + i);
        }
        x[i] = activate(finish.activation, x[i]);
        if (finish.gated) x[i] *= up[i];
        if (finish.row_scale) x[i] *= finish.row_scale[row];
      }
      if (Cut::kElement == 4 || finish.wide_results) {
        store_bytes<8>(to.out + row * to.row_bytes + col * 4, x);
      } else if constexpr (Cut::kElement == 2) {
        const uint32_t bits = narrow_pair<Cut::kKind>(x[0], x[1]);
        store_bytes<4>(to.out + row * to.row_bytes + col * 2, &bits);
      }
    }
  }
}

}  // namespace vbgemm
