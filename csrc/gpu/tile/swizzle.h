// A swizzle of 16-byte vectors in shared memory: vectors at the same place of adjacent rows fall into different banks, whatever power of
// two the row length is.
#pragma once
#include "gpu/arch/machine.h"

namespace vbgemm {

// Where the 16-byte vector with this number is stored: a line of all banks holds eight vectors, permuted by the line's number.
__device__ inline int swizzled_vector(int number) { return number ^ (number >> 3 & 7); }

// The places of the vectors that a lane accesses: `kVectorsPerTurn` adjacent vectors in each turn. The swizzle is periodic, so that a lane
// needs the places of its first kPeriod turns only; the places of the turns kPeriod later lie kPeriodVectors further on.
template <int kVectorsPerTurn>
struct LaneVectors {
  static constexpr int kRepeat = 64, kVectorsPerWave = kVectorsPerTurn * kWaveSize;
  static constexpr int kPeriod = kVectorsPerWave < kRepeat ? kRepeat / kVectorsPerWave : 1, kPeriodVectors = kPeriod * kVectorsPerWave;
  static_assert(kPeriodVectors % kRepeat == 0);
  int place[kPeriod][kVectorsPerTurn];

  __device__ LaneVectors(int lane, bool swizzled) {
#pragma unroll
    for (int turn = 0; turn < kPeriod; ++turn) {
#pragma unroll
      for (int n = 0; n < kVectorsPerTurn; ++n) {
        const int number = (turn * kWaveSize + lane) * kVectorsPerTurn + n;
        place[turn][n] = swizzled ? swizzled_vector(number) : number;
      }
    }
  }
};

}  // namespace vbgemm
