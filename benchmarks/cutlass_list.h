// A list of products as CUTLASS's grouped kernels take it: sizes, strides and pointers in arrays on the device.
#pragma once
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include "cutlass/gemm_coord.h"
#include "gpu_driver/protocol.h"

namespace vbgemm::driver {

struct Workload {
  std::string name;
  std::vector<Problem> problems;
};

// Adjacent lines "NAME M N K" of one name are a workload; all matrices are row-major.
inline std::vector<Workload> read_workloads(const std::string& path) {
  std::ifstream in(path);
  std::vector<Workload> workloads;
  std::string name;
  for (int m, n, k; in >> name >> m >> n >> k;) {
    if (workloads.empty() || workloads.back().name != name) workloads.push_back({name, {}});
    workloads.back().problems.push_back({m, n, k, 1, 1, 0, {}, {}, {}});
  }
  for (Workload& workload : workloads) {
    const int count = static_cast<int>(workload.problems.size());
    const auto row_major = [](int buffer, int64_t cols) { return Operand{buffer, 0, 0, cols, 1, {0, 0}}; };
    for (int i = 0; i < count; ++i) {
      Problem& p = workload.problems[i];
      p.a = row_major(2 * i, p.k), p.b = row_major(2 * i + 1, p.n), p.c = row_major(2 * count + i, p.n);
    }
  }
  return workloads;
}

template <class T>
class List {
 public:
  static constexpr Kind kKind = std::is_same_v<T, float> ? Kind::tf32 : Kind::bf16;

  List(const Workload& workload, const BenchmarkOptions& options)
      : workload(workload), copies(workload.problems, options, stream), memory_(arrays_of(workload.problems)) {}

  int count() const { return static_cast<int>(workload.problems.size()); }

  // Whether every row of every matrix begins at a multiple of so many elements.
  bool aligned(int elements) const {
    for (const Problem& p : workload.problems) {
      if (p.k % elements != 0 || p.n % elements != 0) return false;
    }
    return true;
  }

  // Operands 0, 1 and 2 are A, B and C.
  const int64_t* strides(int operand) const { return reinterpret_cast<const int64_t*>(memory_[0].data()) + operand * count(); }
  T** pointers(int copy, int operand) const { return reinterpret_cast<T**>(memory_[1].data()) + (int64_t{3} * copy + operand) * count(); }
  cutlass::gemm::GemmCoord* device_sizes() const { return reinterpret_cast<cutlass::gemm::GemmCoord*>(memory_[2].data()); }

  template <class Enqueue>
  bool time(const std::string& peer, const BenchmarkOptions& options, const std::string& note, const Enqueue& enqueue) const {
    const Figures figures = measure(copies, kKind, options, stream, enqueue);
    return report(peer, workload.name, kKind, workload.problems.size(), copies.gflop(), figures, options, note);
  }

  const Workload& workload;
  const OwnStream stream;
  const Copies<T> copies;
  std::vector<cutlass::gemm::GemmCoord> sizes;

 private:
  std::vector<DeviceMemory> arrays_of(const std::vector<Problem>& problems) {
    std::vector<int64_t> strides;
    for (const Problem& p : problems) strides.push_back(p.k);
    for (int operand : {1, 2}) {
      for (const Problem& p : problems) strides.push_back(p.n);
    }
    std::vector<char*> pointers;
    const int count = static_cast<int>(problems.size());
    for (int copy = 0; copy < copies.count(); ++copy) {
      for (int i = 0; i < count; ++i) pointers.push_back(copies.buffer(copy, 2 * i));
      for (int i = 0; i < count; ++i) pointers.push_back(copies.buffer(copy, 2 * i + 1));
      for (int i = 0; i < count; ++i) pointers.push_back(copies.buffer(copy, 2 * count + i));
    }
    for (const Problem& p : problems) sizes.emplace_back(p.m, p.n, p.k);
    std::vector<DeviceMemory> memory;
    memory.emplace_back(strides);
    memory.emplace_back(pointers);
    memory.emplace_back(sizes);
    return memory;
  }

  std::vector<DeviceMemory> memory_;  // strides, pointers, sizes
};

}  // namespace vbgemm::driver
