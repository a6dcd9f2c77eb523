// Stand-alone driver of the CPU kernel: correctness against float64, a stress of concurrent calls, and timing.
//
//   cpu_kernel_bench check [rounds]            random problems of every dtype against float64; bits equal whatever the plan
//   cpu_kernel_bench groups [rounds]           random calls whose group sizes are data, against float64
//   cpu_kernel_bench stress [seconds]          32 concurrent calls on a pool of 2 threads
//   cpu_kernel_bench time [dtype]              GFLOP/s of batches of small problems, 1 and 2 threads
//   cpu_kernel_bench file F [dtype] [layout]   GFLOP/s of a workload file ("M N K" a line) with each CPU tile, and GB/s beside those of a
//                                              triad over as many bytes; layout nn, nt, tn, tt
//
// Build without CMake, as tests/native/test_cpu_kernel.py does it, also with -fsanitize=address,undefined or thread. Where it is x86-64:
//
//   F="g++ -std=c++17 -O3 -fno-math-errno -Wall -Wextra -pthread -Icsrc -Itests/native" X="-mavx2 -mfma -mf16c"
//   $F $X -c csrc/cpu/kernels_avx2.cc
//   $F $X -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512 -c csrc/cpu/kernels_avx512.cc
//   $F benchmarks/cpu_kernel_bench.cc csrc/cpu/{walk,group_walk,parallel_for,isa,kernels_portable}.cc kernels_avx*.o -o
//   cpu_kernel_bench
//
// and elsewhere the last line without the objects.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cpu_driver/benchmark.h"
#include "cpu_driver/check.h"
#include "cpu_driver/groups_check.h"
#include "cpu_driver/stress.h"

int main(int argc, char** argv) {
  using namespace vbgemm;
  using namespace vbgemm::driver;
  const std::string mode = argc > 1 ? argv[1] : "check";
  const char* second = argc > 2 ? argv[2] : nullptr;
  std::printf("isa: %s\n", isa());
  if (mode == "check") check(second ? std::atoi(second) : 100);
  if (mode == "groups") check_groups(second ? std::atoi(second) : 100);
  if (mode == "stress") stress(second ? std::atof(second) : 3);
  if (mode == "time") time_ranges(dtype_named(second));
  if (mode == "file" && second) time_file(second, dtype_named(argc > 3 ? argv[3] : nullptr), argc > 4 ? argv[4] : "nn");
  return failures + ragged_failures != 0;
}
