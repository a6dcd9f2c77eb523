// CUTLASS's grouped products on lists of products of different sizes, by the protocol and on the numbers of gpu_driver.
//
//   nvcc -O3 -std=c++17 --expt-relaxed-constexpr -arch=sm_90a -Icsrc -Itests/native -I$CUTLASS/include -I$CUTLASS/tools/util/include
//     -o build/cutlass_grouped benchmarks/cutlass_grouped.cu
//   cutlass_grouped SIZES OUTPUT.csv [--precision bf16|tf32]... [--samples N] [--no-stream] [--filter TEXT]
//
// CUTLASS: a checkout of github.com/NVIDIA/cutlass, 3.8 or newer. SIZES has a line "NAME M N K" for each product, row-major; adjacent lines
// of one name are a list. Rows are appended to OUTPUT, whose columns are those of the peers' figures (benchmarks/workloads.py, Row).
//
// A peer's name has its tile, the alignment of its accesses in elements, and "host" where the host has computed which thread block takes
// which tiles (that work isn't timed); otherwise thread blocks search for their next tile. "sm90ptr" is the kernel with TMA and warpgroup
// products (cutlass_pointer_array.h).
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "cutlass/gemm/device/gemm_grouped.h"
#include "cutlass/gemm/kernel/default_gemm_grouped.h"
#include "cutlass_list.h"
#include "cutlass_pointer_array.h"

namespace vbgemm::driver {
namespace {

using cutlass::gemm::GemmShape;
using cutlass::gemm::kernel::GroupScheduleMode;

// What CUTLASS calls the elements and the instruction of an arithmetic. It rounds float32 to TF32 as it loads fragments.
template <class T>
struct Sm80;
template <>
struct Sm80<BFloat16> {
  using Element = cutlass::bfloat16_t;
  using Instruction = GemmShape<16, 8, 16>;
};
template <>
struct Sm80<float> {
  using Element = float;
  using Instruction = GemmShape<16, 8, 8>;
};

// Tiles of kSide x kSide, four warps.
template <class T, int kSide, int kDepth, int kAlignment, int kStages, GroupScheduleMode kMode>
struct Grouped {
  using Element = typename Sm80<T>::Element;
  using RowMajor = cutlass::layout::RowMajor;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmGrouped<
      Element, RowMajor, cutlass::ComplexTransform::kNone, kAlignment, Element, RowMajor, cutlass::ComplexTransform::kNone, kAlignment,
      Element, RowMajor, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, GemmShape<kSide, kSide, kDepth>,
      GemmShape<kSide / 2, kSide / 2, kDepth>, typename Sm80<T>::Instruction,
      cutlass::epilogue::thread::LinearCombination<Element, kAlignment, float, float>,
      cutlass::gemm::threadblock::GemmBatchedIdentityThreadblockSwizzle, kStages, kMode>::GemmKernel;
  using Device = cutlass::gemm::device::GemmGrouped<Kernel>;

  static std::string name() {
    const std::string side = std::to_string(kSide), host = kMode == GroupScheduleMode::kHostPrecompute ? "_host" : "";
    return "cutlass_" + std::string(precision_of(List<T>::kKind)) + "_" + side + "x" + side + "x" + std::to_string(kDepth) + "_a" +
           std::to_string(kAlignment) + host;
  }

  static bool time(const List<T>& list, const BenchmarkOptions& options) {
    const int count = list.count(), blocks = Device::sufficient(list.sizes.data(), count);
    std::vector<char> schedule;
    int tiles = 0;
    if constexpr (kMode == GroupScheduleMode::kHostPrecompute) {
      schedule.resize(Kernel::ProblemVisitor::get_workspace_size(list.sizes.data(), count, blocks));
      Kernel::ProblemVisitor::host_precompute(list.sizes.data(), count, blocks, schedule.data());
      tiles = Device::BaseKernel::ProblemVisitor::group_tile_count(list.sizes.data(), count);
    }
    const DeviceMemory workspace(schedule);
    std::vector<typename Kernel::Params> params;
    for (int copy = 0; copy < list.copies.count(); ++copy) {
      const auto pointers = [&](int operand) { return reinterpret_cast<Element**>(list.pointers(copy, operand)); };
      const auto strides = [&](int operand) { return const_cast<int64_t*>(list.strides(operand)); };
      const typename Kernel::Arguments arguments(list.device_sizes(), count, blocks, {1.0f, 0.0f}, pointers(0), pointers(1), pointers(2),
                                                 pointers(2), strides(0), strides(1), strides(2), strides(2));
      params.emplace_back(arguments, workspace.data(), tiles);
    }
    return list.time(name(), options, "ctas=" + std::to_string(blocks), [&](int copy) {
      cutlass::Kernel<Kernel><<<blocks, Kernel::kThreadCount, sizeof(typename Kernel::SharedStorage), list.stream.get()>>>(params[copy]);
      require(cudaGetLastError(), "launch");
    });
  }
};

template <class T, int kSide, int kDepth, int kAlignment, int kStages>
bool both_schedules(const List<T>& list, const BenchmarkOptions& options) {
  bool right = Grouped<T, kSide, kDepth, kAlignment, kStages, GroupScheduleMode::kDeviceOnly>::time(list, options);
  right &= Grouped<T, kSide, kDepth, kAlignment, kStages, GroupScheduleMode::kHostPrecompute>::time(list, options);
  return right;
}

// Each list goes to the kernels of the largest alignment it allows, which were the faster ones on every aligned list. Asynchronous copies
// take at least four bytes, so that single 16-bit elements go through registers, in two stages.
bool all_peers(const List<BFloat16>& list, const BenchmarkOptions& options) {
  if (!list.aligned(8)) {
    const bool right = both_schedules<BFloat16, 64, 32, 1, 2>(list, options);
    return both_schedules<BFloat16, 128, 32, 1, 2>(list, options) && right;
  }
  bool right = both_schedules<BFloat16, 64, 32, 8, 4>(list, options);
  right &= both_schedules<BFloat16, 64, 64, 8, 3>(list, options);
  right &= both_schedules<BFloat16, 128, 32, 8, 4>(list, options);
  right &= PointerArray<cute::Shape<cute::_64, cute::_128, cute::_64>>::time(list, options);
  return right;
}

bool all_peers(const List<float>& list, const BenchmarkOptions& options) {
  if (!list.aligned(4)) {
    const bool right = both_schedules<float, 64, 32, 1, 3>(list, options);
    return both_schedules<float, 128, 16, 1, 4>(list, options) && right;
  }
  const bool right = both_schedules<float, 64, 32, 4, 3>(list, options);
  return both_schedules<float, 128, 16, 4, 4>(list, options) && right;
}

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "cutlass_grouped: %s\n", why.c_str());
  std::exit(2);
}

int run(const std::vector<std::string>& words) {
  if (words.size() < 2) refuse("needs SIZES and OUTPUT.csv; the head of cutlass_grouped.cu lists the options");
  BenchmarkOptions options;
  options.csv = words[1];
  std::vector<std::string> precisions;
  std::string filter;
  for (size_t i = 2; i < words.size();) {
    const std::string option = words[i++];
    if (option == "--no-stream") {
      options.stream = false;
      continue;
    }
    if (i == words.size()) refuse(option + " needs a value or is unknown");
    const std::string value = words[i++];
    if (option == "--precision" && (value == "bf16" || value == "tf32"))
      precisions.push_back(value);
    else if (option == "--samples")
      options.samples = std::atoi(value.c_str());
    else if (option == "--filter")
      filter = value;
    else
      refuse("unknown option " + option + " " + value);
  }
  if (precisions.empty()) precisions = {"bf16", "tf32"};
  const std::vector<Workload> workloads = read_workloads(words[0]);
  if (workloads.empty()) refuse("no line NAME M N K in " + words[0]);
  bool right = true;
  for (const Workload& workload : workloads) {
    if (workload.name.find(filter) == std::string::npos) continue;
    for (const std::string& precision : precisions) {
      right &=
          precision == "bf16" ? all_peers(List<BFloat16>(workload, options), options) : all_peers(List<float>(workload, options), options);
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace vbgemm::driver

int main(int count, char** words) { return vbgemm::driver::run({words + 1, words + count}); }
