// The kernels of tsm2_kernels.h on emulated threads, each compared with plain sums; tests/emulation/test_tsm2_kernels.py builds and runs
// this. Prints a line for each wrong result, and PASS if there is none.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "tsm2_kernels.h"

namespace {

using namespace vbgemm::tsm2;

bool right = true;

// Arrays without a margin, so that an address sanitizer sees every access outside of them. C begins as `before`.
template <class T>
void run(const char* name, void (*kernel)(const Product<T>&), int m, int k, int n, int t1, int tcf, bool adds) {
  std::mt19937 random(m * 31 + k * 7 + n);
  std::uniform_real_distribution<T> uniform(-1, 1);
  const auto array = [&](int64_t count) {
    std::unique_ptr<T[]> x(new T[count]);
    for (int64_t i = 0; i < count; ++i) x[i] = uniform(random);
    return x;
  };
  const auto a = array(int64_t{m} * k), b = array(int64_t{k} * n), c = array(int64_t{m} * n);
  const int threads = t1 * tcf;
  Product<T> x{a.get(), b.get(), c.get(), m, n, k, t1, (m + threads - 1) / threads, adds};
  for (int i = 0; i < m * n; ++i) c[i] = adds ? T{1} : T{NAN};
  const auto address = reinterpret_cast<uintptr_t>(kernel);
  vbgemm::emulation::run_grid(reinterpret_cast<vbgemm::emulation::Kernel>(address), &x, x.blocks, t1);
  for (int i = 0; i < m * n; ++i) {
    double sum = adds, size = 1;
    for (int l = 0; l < k; ++l) {
      const double term = double{a[i % m + int64_t{l} * m]} * double{b[l + int64_t{i / m} * k]};
      sum += term, size += std::fabs(term);
    }
    if (std::fabs(c[i] - sum) <= size * (sizeof(T) == 4 ? 1e-6 : 1e-14)) continue;
    std::printf("FAIL: %s, %zu bytes, %d x %d x %d, t1 %d, tcf %d: C[%d, %d] is %g, expected %g\n", name, sizeof(T), m, k, n, t1, tcf,
                i % m, i / m, double{c[i]}, sum);
    right = false;
    return;
  }
}

template <class T, int kCols, int kAhead>
void run_all(int m, int k, int n, int t1) {
  run<T>("V0", inner_products<T>, m, k, n, t1, 1, false);
  run<T>("V1", outer_products<T, kCols>, m, k, n, t1, 1, false);
  run<T>("V2", shared_memory<T, kCols, kAhead>, m, k, n, t1, 1, false);
  run<T>("in flight", in_flight<T, kCols, kAhead, 8>, m, k, n, t1, 1, false);
  for (int tcf : {1, 3}) {
    run<T>("V3", prefetched<T, kCols, kAhead>, m, k, n, t1, tcf, false);
    for (bool adds : {false, true}) run<T>("ISM2-2", interleaved<T, kCols, kAhead>, m, k, n, t1, tcf, adds);
  }
}

}  // namespace

int main() {
  for (int seed : {1, 2}) {
    vbgemm::emulation::seed(seed);
    // Rows that do not fill a block, and K of one part of B, of several, and of a part that is not whole.
    run_all<float, 2, 4>(70, 8, 2, 32);
    run_all<float, 4, 4>(129, 96, 8, 32);
    run_all<double, 8, 4>(33, 172, 8, 64);
    run_all<double, 2, 1>(1, 1, 4, 32);
    run_all<float, 8, 8>(200, 200, 16, 64);
  }
  if (right) std::puts("PASS");
  return right ? 0 : 1;
}
