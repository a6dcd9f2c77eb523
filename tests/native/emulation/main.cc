// The GPU kernels' self-check without a GPU: the checks that `gpu_driver --check` runs, on emulated threads.
//
//   emulated_check [--seed N] [--small] [--exact] [--races] [--no-replays] [--kinds NAME...]     as in benchmarks/gpu_driver.cu
//
// The seed also determines the order of threads. Build: tests/native/emulation/{main,block,fiber,tensor_maps}.cc,
// csrc/gpu/host/{launch,sm90_launch}.cu, csrc/gpu/instances/{add_partial_sums,add_scaled,square_sums}.cu and any of
// csrc/gpu/instances/{simt,rows,tensor}_*.cu and pipelined.cu as C++17 with -DVBGEMM_GPU_VENDOR_HEADER='"emulation/gpu_vendor.h"', -Icsrc
// and -Itests/native (tests/emulation/emulated_check.py does this).
#include <cstdio>
#include <string>
#include <vector>

#include "emulation/block.h"
#include "gpu_driver/check.h"

int main(int count, char** words) {
  const std::vector<std::string> options(words + 1, words + count);
  vbgemm::driver::CheckOptions checks;
  for (size_t i = 0; i < options.size();) {
    if (checks.take(options, i)) continue;
    std::fprintf(stderr, "emulated_check: unknown option %s; the head of tests/native/emulation/main.cc lists them\n", options[i].c_str());
    return 2;
  }
  vbgemm::emulation::seed(checks.seed);
  return vbgemm::driver::Check(checks).run() ? 0 : 1;
}
