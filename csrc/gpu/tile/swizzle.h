// How vectors that lie one behind the other are permuted in shared memory, so that those at equal places of neighbouring rows are in
// different banks, whatever power of two their rows' length is.
#pragma once
#include "gpu/arch/machine.h"

namespace vbgemm {

// Where the vector of 16 bytes with this number lies: a line of all banks holds eight, permuted by the line's number.
__device__ inline int swizzled_vector(int number) { return number ^ (number >> 3 & 7); }

// What a wave's lanes take of them: `kEach` neighbours a lane and turn. The permutation repeats itself, so that a lane needs the places of
// its first few turns only: those of kPeriod turns later lie kPeriodVectors behind.
template <int kEach>
struct LaneVectors {
  static constexpr int kRepeat = 64, kTurnVectors = kEach * kWaveSize;
  static constexpr int kPeriod = kTurnVectors < kRepeat ? kRepeat / kTurnVectors : 1, kPeriodVectors = kPeriod * kTurnVectors;
  static_assert(kPeriodVectors % kRepeat == 0);
  int place[kPeriod][kEach];

  __device__ LaneVectors(int lane, bool swizzled) {
#pragma unroll
    for (int turn = 0; turn < kPeriod; ++turn) {
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int number = (turn * kWaveSize + lane) * kEach + n;
        place[turn][n] = swizzled ? swizzled_vector(number) : number;
      }
    }
  }
};

}  // namespace vbgemm
