// The driver's timing of cases by the protocol of protocol.h.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu_driver/host_plan.h"
#include "gpu_driver/protocol.h"

namespace vbgemm::driver {

struct Case {
  std::string peer, workload;
  HostPlan plan;
};

// The type of a case's results: that of the operands. Products of bytes have results of the accumulator's type, because sums that are timed
// would overflow a byte.
constexpr DType result_of(Kind kind) {
  const DType lhs = arithmetic_of(kind).lhs;
  return bytes_of(lhs) == 1 ? accumulator_of(lhs) : lhs;
}

template <class T, class Out = T>
bool benchmark_of(const Case& c, const BenchmarkOptions& options) {
  const HostPlan& plan = c.plan;
  const OwnStream stream;
  const DevicePlan device(plan);
  const Copies<T, Out> copies(plan.problems, options, stream);
  const std::vector<size_t>& sizes = copies.sizes();
  DeviceMemory workspace(workspace_of(plan, static_cast<int>(sizes.size())));
  std::vector<Buffers> buffers(copies.count());
  for (int copy = 0; copy < copies.count(); ++copy) {
    buffers[copy].num_operands = static_cast<int>(2 * plan.problems.size());
    for (size_t i = 0; i < sizes.size(); ++i) buffers[copy].add(copies.buffer(copy, i), sizes[i]);
  }
  const auto enqueue = [&](int copy) { require(launch(call_of(plan, device, buffers[copy], workspace), stream.get()), "launch"); };
  const Figures figures = measure(copies, plan.kind, options, stream, enqueue);
  return report(c.peer, c.workload, plan.kind, plan.problems.size(), copies.gflop(), figures, options,
                "blocks=" + std::to_string(plan.num_blocks));
}

// Times one case, prints it, and appends a row to the CSV file. Returns whether all results were right.
inline bool benchmark(const Case& c, const BenchmarkOptions& options) {
  const Arithmetic& types = arithmetic_of(c.plan.kind);
  switch (types.lhs == types.rhs ? types.lhs : DType::s32) {
    case DType::f32: return benchmark_of<float>(c, options);
    case DType::f64: return benchmark_of<double>(c, options);
    case DType::c64: return benchmark_of<Complex<float>>(c, options);
    case DType::c128: return benchmark_of<Complex<double>>(c, options);
    case DType::bf16: return benchmark_of<BFloat16>(c, options);
    case DType::f16: return benchmark_of<Float16>(c, options);
    case DType::e4m3: return benchmark_of<Element<DType::e4m3>, float>(c, options);
    case DType::e5m2: return benchmark_of<Element<DType::e5m2>, float>(c, options);
    case DType::s8: return benchmark_of<int8_t, uint32_t>(c, options);
    default: throw std::runtime_error(std::string("no benchmark multiplies ") + name_of(c.plan.kind));
  }
}

}  // namespace vbgemm::driver
