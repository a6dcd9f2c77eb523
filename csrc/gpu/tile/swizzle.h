// A swizzle of 16-byte vectors in shared memory: vectors in the same column of adjacent rows fall into different banks for every
// power-of-two row length.
#pragma once
#include "gpu/arch/machine.h"

namespace vbgemm {

// The swizzled position of the 16-byte vector `number`: a line across all banks holds eight vectors, which are XORed with the line index.
__device__ inline int swizzled_vector(int number) { return number ^ (number >> 3 & 7); }

// The swizzled positions of a lane's vectors, of which it has kVectorsPerTurn adjacent ones in each turn. The swizzle is periodic: turn
// i + kPeriod has the positions of turn i plus kPeriodVectors, so a lane stores the positions of the first kPeriod turns alone.
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
