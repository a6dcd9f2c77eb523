// The CPU kernels beside libxsmm 1.17, on one thread: lists of tiny products, both in turns in one process.
//
//   cpu_libxsmm hot|cold F...     for each workload file ("M N K" a line), in float32 and float64: GFLOP/s of both, and the ratio of times
//
// hot: one call computes each line once, again and again, so that operands stay in the caches. cold: one call computes the list as often as
// its operands and results need to exceed the caches. All matrices are row-major and have buffers of their own, one after the other, at
// cache lines. Ours is the whole walk over a plan with one tile for each product; libxsmm's is a loop over kernels that were made for their
// sizes before (beta = 0), with pointers that were looked up before. Times are the best of many rounds, in which both take turns.
//
// Build with Debian's libxsmm-dev and the objects of the build lines of cpu_kernel_bench.cc:
//
//   $F benchmarks/cpu_libxsmm.cc csrc/cpu/{walk,group_walk,parallel_for,isa,kernels_portable}.cc kernels_avx*.o -lxsmm -lxsmmnoblas -ldl -o
//   cpu_libxsmm
//
// LIBXSMM_TARGET=hsw and VBGEMM_CPU_ISA=avx2 compare the kernels for AVX2.
#include <libxsmm.h>

#include <cmath>

#include "cpu_driver/benchmark.h"

namespace vbgemm::driver {
namespace {

constexpr int64_t kCold = 128 << 20;  // bytes: beyond the last-level cache of one core

// The buffers of a workload, moved into one block of memory.
class Arena {
 public:
  explicit Arena(const Workload& w) {
    int64_t size = 64;
    for (const Problem& p : w.problems) size += padded(w, p.m, p.k) + padded(w, p.k, p.n) + padded(w, p.m, p.n);
    memory_.resize(size);
    at_ = memory_.data() + (-reinterpret_cast<intptr_t>(memory_.data()) & 63);
  }
  void* place(const Workload& w, int64_t rows, int64_t cols) {
    unsigned char* const to = at_;
    at_ += padded(w, rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) put(w.lhs(), to + i * size_of(w.lhs()), static_cast<double>(i % 17) / 16 - 0.5);
    return to;
  }

 private:
  static int64_t padded(const Workload& w, int64_t rows, int64_t cols) { return (rows * cols * size_of(w.lhs()) + 63) / 64 * 64; }
  std::vector<unsigned char> memory_;
  unsigned char* at_;
};

Workload workload_of(DType dtype, const std::vector<Shape>& shapes) {
  Workload w{kind_of(dtype, dtype), dtype, {}, {}, 0, {}, {}, {}};
  const int count = static_cast<int>(shapes.size());
  const auto operand = [](int buffer, int cols) {
    Operand x{};
    x.buffer = buffer, x.row_stride = cols, x.col_stride = 1;
    return x;
  };
  for (int i = 0; i < count; ++i) {
    const Shape& s = shapes[i];
    Problem p{};
    p.m = s.m, p.n = s.n, p.k = s.k, p.batch = p.inner_batch = 1;
    p.a = operand(i, s.k), p.b = operand(count + i, s.n), p.c = operand(2 * count + i, s.n);
    w.problems.push_back(p);
    w.k_ranges.emplace_back(0, s.k);
  }
  w.num_operands = 2 * count;
  return w;
}

template <class T>
struct Libxsmm;
template <>
struct Libxsmm<float> {
  using Function = libxsmm_smmfunction;
  static Function kernel(const Shape& s) {
    const float alpha = 1, beta = 0;
    return libxsmm_smmdispatch(s.n, s.m, s.k, &s.n, &s.k, &s.n, &alpha, &beta, nullptr, nullptr);
  }
};
template <>
struct Libxsmm<double> {
  using Function = libxsmm_dmmfunction;
  static Function kernel(const Shape& s) {
    const double alpha = 1, beta = 0;
    return libxsmm_dmmdispatch(s.n, s.m, s.k, &s.n, &s.k, &s.n, &alpha, &beta, nullptr, nullptr);
  }
};

template <class T>
void compare(const char* name, const std::vector<Shape>& list, int64_t copies) {
  std::vector<Shape> shapes;
  for (int64_t i = 0; i < copies; ++i) shapes.insert(shapes.end(), list.begin(), list.end());
  const DType dtype = kDTypeOf<T>;
  Workload w = workload_of(dtype, shapes);
  Arena arena(w);
  std::vector<void*> pointers(3 * shapes.size());
  std::vector<int64_t> elements(3 * shapes.size());
  const int64_t count = static_cast<int64_t>(shapes.size());
  for (int64_t i = 0; i < count; ++i) {
    const Shape& s = shapes[i];
    const int64_t rows[] = {s.m, s.k, s.m}, cols[] = {s.k, s.n, s.n};
    for (int x = 0; x < 3; ++x) {
      pointers[x * count + i] = arena.place(w, rows[x], cols[x]);
      elements[x * count + i] = rows[x] * cols[x];
    }
  }
  int tile = 0;
  while (std::string(kTiles[tile].name) != "cpu-medium") ++tile;
  const PlanData plan = make_plan(w, tile, /*boxes=*/true, /*shuffle=*/false, /*tiles_a_block=*/0);
  WorkloadCall call = make_call(w, plan);
  call.call.buffers = pointers.data(), call.call.elements = elements.data(), call.call.num_buffers = static_cast<int32_t>(3 * count);
  call.call.may_stream = fills_caches(call.call);

  std::vector<typename Libxsmm<T>::Function> kernels;
  for (const Shape& s : shapes) kernels.push_back(Libxsmm<T>::kernel(s));
  const auto ours = [&] { run(call.call, static_cast<Pool*>(nullptr)); };
  const auto theirs = [&] {
    for (int64_t i = 0; i < count; ++i) {
      kernels[i](static_cast<const T*>(pointers[count + i]), static_cast<const T*>(pointers[i]), static_cast<T*>(pointers[2 * count + i]));
    }
  };

  std::vector<std::vector<T>> expected;
  theirs();
  for (int64_t i = 2 * count; i < 3 * count; ++i) {
    const T* c = static_cast<const T*>(pointers[i]);
    expected.emplace_back(c, c + elements[i]);
  }
  ours();
  double error = 0;
  for (int64_t i = 2 * count; i < 3 * count; ++i) {
    for (int64_t j = 0; j < elements[i]; ++j) {
      error = std::max(error, static_cast<double>(std::abs(static_cast<const T*>(pointers[i])[j] - expected[i - 2 * count][j])));
    }
  }

  // A round takes some tens of microseconds at least, and all rounds together about a second.
  const int calls = static_cast<int>(std::max(1.0, 50e-6 / seconds_of(ours)));
  const auto repeat = [calls](const auto& f) {
    return seconds_of([&] {
             for (int i = 0; i < calls; ++i) f();
           }) /
           calls;
  };
  const int rounds = std::clamp(static_cast<int>(0.5 / (calls * seconds_of(ours))), 8, 4000);
  double best[2] = {1e30, 1e30};
  for (int round = 0; round < rounds; ++round) {
    best[0] = std::min(best[0], repeat(ours));
    best[1] = std::min(best[1], repeat(theirs));
  }
  const double flops = flops_of(w) / 1e9;
  std::printf("%-20s %s %-4s %6ld products: ours %6.1f, libxsmm %6.1f GFLOP/s, %.3fx; largest difference %.1e\n", name, name_of(dtype),
              copies == 1 ? "hot" : "cold", static_cast<long>(count), flops / best[0], flops / best[1], best[1] / best[0], error);
}

void compare_file(const char* path, bool cold) {
  const std::vector<Shape> shapes = read_shapes(path);
  if (shapes.empty()) return;
  const char* slash = std::strrchr(path, '/');
  const char* name = slash ? slash + 1 : path;
  int64_t elements = 0;
  for (const Shape& s : shapes) elements += int64_t{s.m} * s.k + int64_t{s.k} * s.n + int64_t{s.m} * s.n;
  compare<float>(name, shapes, cold ? kCold / (elements * 4) + 1 : 1);
  compare<double>(name, shapes, cold ? kCold / (elements * 8) + 1 : 1);
}

}  // namespace
}  // namespace vbgemm::driver

int main(int argc, char** argv) {
  libxsmm_init();
  std::printf("isa: %s, libxsmm %s for %s\n", vbgemm::isa(), LIBXSMM_VERSION, libxsmm_get_target_arch());
  for (int i = 2; i < argc; ++i) vbgemm::driver::compare_file(argv[i], std::string(argv[1]) == "cold");
}
