// Checks random ragged products of the CPU against float64.
#pragma once
#include "cpu/group_walk.h"
#include "cpu_driver/pool.h"
#include "cpu_driver/ragged_check.h"

namespace vbgemm::driver {

inline void check_groups(int rounds) {
  Pool pool(2);
  const std::vector<DType> dtypes = ragged_dtypes();
  for (int round = 0; round < 20 * rounds; ++round) {
    Pool* const used = chance(0.5) ? &pool : nullptr;
    RandomRagged random({dtypes, 900, 300, 300});
    random.spoil_results();  // rows that stay undefined are compared with it
    run(random.call(), used);
    random.check();
  }
  std::printf("groups: %d rounds, %d failures\n", rounds, ragged_failures);
}

}  // namespace vbgemm::driver
