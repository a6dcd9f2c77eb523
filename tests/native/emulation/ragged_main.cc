// Random ragged products on emulated threads, against float64: the pipelined kernels, which take operands with aligned rows, and lists of
// tiles of the catalogue. Every call runs twice and must give the same bits.
//
//   emulated_ragged_check [--seed N] [--calls N] [--mixed] [--kinds NAME...]
//
// kinds: dtypes, all that have kernels without it. mixed: rows of 16 bits with narrower weights.
//
// The seed also determines the order of threads. Build: tests/native/emulation/{ragged_main,block,fiber,tensor_maps}.cc,
// csrc/gpu/host/*launch.cu, csrc/gpu/instances/{ragged_*,tile_list,add_partial_sums}.cu and any files of the catalogue's kernels, with the
// options that tests/native/emulation/main.cc names. A kind has the tiles whose kernels are linked; kinds with pipelined kernels need none.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu_driver/ragged_check.h"
#include "emulation/block.h"
#include "gpu/host/launch.h"
#include "gpu/host/ragged_launch.h"

namespace vbgemm::driver {
namespace {

bool failed(int call, const char* why) {
  std::printf("FAIL call %d: %s\n", call, why);
  return false;
}

std::vector<int32_t> linked_tiles(Kind kind) {
  std::vector<int32_t> tiles;
  for (int32_t i = 0; i < kNumTiles; ++i) {
    if (has_ragged_tile(kTiles[i], kind) && find_kernel(kind, kernel_of(kTiles[i]))) tiles.push_back(i);
  }
  return tiles;
}

bool has_linked_pipeline(Kind kind, bool contraction, bool transpose_rhs) {
  RaggedCall call{};
  call.dtype = arithmetic_of(kind).lhs, call.rhs_dtype = arithmetic_of(kind).rhs,
  call.out_dtype = has_scales(kind) ? DType::bf16 : call.dtype;
  call.kind = kind, call.contraction = contraction, call.transpose_rhs = transpose_rhs;
  call.plan = {RaggedShape::wide, 0, -1};
  return has_ragged_kernel(call);
}

// Whether any kernel that computes a type is linked.
bool is_linked(DType dtype) {
  if (bytes_of(dtype) == 1) {
    for (const Kind kind : scaled_kinds(dtype)) {
      if (has_linked_pipeline(kind, false, true)) return true;
    }
    return false;
  }
  return bytes_of(dtype) == 2 || !linked_tiles(kind_of(dtype, dtype)).empty() ||
         (dtype == DType::f32 && (has_linked_pipeline(Kind::tf32, false, true) || !linked_tiles(Kind::tf32).empty()));
}

bool check(uint64_t seed, int calls, const std::vector<DType>& dtypes, bool mixed) {
  emulation::seed(seed);
  rng.seed(seed);
  constexpr int64_t kRows = 1200, kDepth = 600, kColumns = 1500;  // of the largest calls: several tiles in each direction
  for (int i = 0; i < calls && ragged_failures == 0; ++i) {
    RandomRagged random({dtypes, kRows, kDepth, kColumns, linked_tiles, has_linked_pipeline, mixed});
    Bytes before;
    for (int run = 0; run < 2; ++run) {
      random.spoil_results();
      if (launch_ragged(random.call(), {}) != kSuccess) return failed(i, "its launch failed");
      if (run == 1 && random.results() != before) {
        random.describe();
        return failed(i, "its two runs gave different bits");
      }
      before = random.results();
    }
    random.check();
    if (ragged_failures) random.describe();
  }
  std::printf("%s %d calls\n", ragged_failures ? "FAIL" : "PASS", calls);
  return ragged_failures == 0;
}

[[noreturn]] void refuse(const std::string& word) {
  std::fprintf(stderr, "emulated_ragged_check: cannot take %s; the head of tests/native/emulation/ragged_main.cc lists the options\n",
               word.c_str());
  std::exit(2);
}

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes = ragged_dtypes();
  for (const DType dtype : {DType::e4m3, DType::e5m2, DType::s8}) dtypes.push_back(dtype);
  return dtypes;
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : all_dtypes()) {
    if (name == name_of(dtype)) return dtype;
  }
  refuse(name);
}

}  // namespace
}  // namespace vbgemm::driver

int main(int count, char** words) {
  using namespace vbgemm;
  const std::vector<std::string> options(words + 1, words + count);
  uint64_t seed = 0;
  int calls = 20;
  bool mixed = false;
  std::vector<DType> dtypes;
  for (size_t i = 0; i < options.size();) {
    const std::string& option = options[i++];
    const auto value = [&] { return i < options.size() ? options[i++] : (driver::refuse(option), ""); };
    if (option == "--seed") {
      seed = std::stoull(value());
    } else if (option == "--calls") {
      calls = std::stoi(value());
    } else if (option == "--mixed") {
      mixed = true;
    } else if (option == "--kinds") {
      do dtypes.push_back(driver::dtype_named(value()));
      while (i < options.size() && options[i][0] != '-');
    } else {
      driver::refuse(option);
    }
  }
  if (dtypes.empty()) {
    for (const DType dtype : driver::all_dtypes()) {
      if (driver::is_linked(dtype)) dtypes.push_back(dtype);
    }
  }
  return driver::check(seed, calls, dtypes, mixed) ? 0 : 1;
}
