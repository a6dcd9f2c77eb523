// Random ragged products on emulated threads, against float64: the pipelined kernels, which take 16-bit operands with aligned rows. Every
// call runs twice and must give the same bits.
//
//   emulated_ragged_check [--seed N] [--calls N] [--kinds NAME...]
//
// The seed also determines the order of threads. Build: csrc/emulation/{ragged_main,block,fiber,tensor_maps}.cc,
// csrc/gpu/host/ragged_launch.cu and csrc/gpu/instances/ragged_*.cu, as csrc/emulation/main.cc says.
#include <cstdio>
#include <string>

#include "cpu/driver/ragged_check.h"
#include "emulation/block.h"
#include "gpu/host/ragged_launch.h"

namespace vbgemm::driver {
namespace {

bool check(uint64_t seed, int calls, const std::vector<DType>& dtypes) {
  emulation::seed(seed);
  rng.seed(seed);
  constexpr int64_t kRows = 1200, kDepth = 600, kColumns = 1500;  // of the largest calls: several tiles in each direction
  for (int i = 0; i < calls && ragged_failures == 0; ++i) {
    const RandomRagged random({dtypes, kRows, kDepth, kColumns, 8, true, true});
    Bytes before;
    for (int run = 0; run < 2; ++run) {
      if (launch_ragged(random.call(), {}) != kSuccess) ragged_fail("a launch that failed", random.call().dtype, i, 0, 0);
      if (run == 1 && random.results() != before) ragged_fail("bits that differ between runs of call", random.call().dtype, i, 0, 0);
      before = random.results();
    }
    random.check();
  }
  std::printf("%s %d calls\n", ragged_failures ? "FAIL" : "PASS", calls);
  return ragged_failures == 0;
}

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kDTypes; ++i) {
    if (name == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  std::fprintf(stderr, "emulated_ragged_check: unknown kind %s\n", name.c_str());
  std::exit(2);
}

}  // namespace
}  // namespace vbgemm::driver

int main(int count, char** words) {
  using namespace vbgemm;
  uint64_t seed = 0;
  int calls = 20;
  std::vector<DType> dtypes;
  std::string option;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word.rfind("--", 0) == 0) {
      option = word;
    } else if (option == "--seed") {
      seed = std::stoull(word);
    } else if (option == "--calls") {
      calls = std::stoi(word);
    } else if (option == "--kinds") {
      dtypes.push_back(driver::dtype_named(word));
    } else {
      std::fprintf(stderr, "emulated_ragged_check: unknown option %s\n", option.c_str());
      return 2;
    }
  }
  if (dtypes.empty()) dtypes = {DType::bf16, DType::f16};
  return driver::check(seed, calls, dtypes) ? 0 : 1;
}
