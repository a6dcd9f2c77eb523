// The experiments of Rivera et al., "ISM2: Optimizing irregular-shaped matrix-matrix multiplication on GPUs", on the GPU at hand, with the
// paper's kernels (tsm2_kernels.h) and cuBLAS. All matrices are column-major, and elements are uniform in [0, 1), as in the paper.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -Icsrc -o tsm2_ablation benchmarks/tsm2_ablation.cu
//   tsm2_ablation OUTPUT.csv [--cublas LIBRARY] [--only FIGURE]
//
// LIBRARY: libcublas.so.13 or .12 (default: the one that the loader finds; without any, cuBLAS is left out). FIGURE: one of the experiments
// below. Every kernel's result is compared with sums in float64 before it is timed. The time is the least of five replays of a CUDA graph,
// which holds enough calls to last; they use different operands in turn, so that these come from memory. The exit status is 1 if a result
// is wrong.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "cublas_timing.h"
#include "tsm2_kernels.h"

namespace {

using namespace vbgemm::timing;
using namespace vbgemm::tsm2;

// A thread for each element of C.
template <class T>
__global__ void reference(Product<T> x, double* c) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= x.m) return;
  double sum = 0;
#pragma unroll 8
  for (int k = 0; k < x.k; ++k) sum += double{x.a[row + int64_t{k} * x.m]} * double{x.b[k + int64_t{blockIdx.y} * x.k]};
  c[row + int64_t{blockIdx.y} * x.m] = sum;
}

// The largest relative error; NaN counts as infinite. All terms are positive, so that the sum is also the scale of its rounding errors.
template <class T>
__global__ void compare(const T* c, const double* expected, int64_t count, int* largest) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  float mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float error = static_cast<float>(fabs(double{c[i]} - expected[i]) / fmax(expected[i], 1e-30));
    mine = error <= mine ? mine : error == error ? error : INFINITY;
  }
  atomicMax(largest, __float_as_int(mine));  // the order of positive floats is that of their bits
}

struct Options {
  std::FILE* csv;
  const Cublas& cublas;
  std::string only;
};

template <class T>
class Experiments {
 public:
  explicit Experiments(const Options& options) : options_(options) {
    int device = 0, clock_khz = 0, bus_bits = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device));
    CHECK(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device));
    peak_ = 2e3 * clock_khz * bus_bits / 8;
    for (T** array : {&a_, &b_, &c_}) CHECK(cudaMalloc(array, (array == &a_ ? kElementsOfA : kElementsOfC) * sizeof(T)));
    CHECK(cudaMalloc(&expected_, kElementsOfC * sizeof(double)));
    CHECK(cudaMalloc(&error_, sizeof(int)));
    CHECK(cudaStreamCreate(&stream_));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
    fill<<<4096, 256>>>(a_, kElementsOfA);
    fill<<<4096, 256>>>(b_, kElementsOfC);
  }
  ~Experiments() {
    for (void* array : {(void*)a_, (void*)b_, (void*)c_, (void*)expected_, (void*)error_}) CHECK(cudaFree(array));
  }

  bool run() {
    // Fig. 4, 5, 9 and 10: the versions, with the paper's t1 = 128, t2 = n, t3 = 4.
    for (int s : {10240, 15360, 20480, 25600, 30720}) {
      for (int n : {2, 4, 8, 16}) {
        begin("versions", s, s, n);
        time("V0", 128, 0, 0, 1, inner_products<T>, 0);
        with_columns(n, [&](auto cols) {
          constexpr int kCols = decltype(cols)::value;
          time("V1", 128, n, 1, 1, outer_products<T, kCols>, 0);
          time("V2", 128, n, 4, 1, shared_memory<T, kCols, 4>, bytes_of_b(n, 128));
          time("V3", 128, n, 4, 1, prefetched<T, kCols, 4>, bytes_of_b(n, 128));
        });
        in_flight_ones(n);
        library();
      }
    }
    // Section 3.6.3, and t2 of Fig. 6 and 7: the parameters of V3.
    begin("parameters", 20480, 20480, 16);
    for (int t1 : {64, 128, 256}) {
      for (int t2 : {4, 8, 16}) {
        for (int t3 : {1, 2, 4, 8, 16}) version3(t1, t2, t3, 1);
      }
    }
    // Fig. 8: k < m, and a few beyond it.
    for (int k : {2048, 3840, 5120, 7680, 15360, 30720}) {
      begin("uneven", 15360, k, 16);
      version3(128, 16, 4, 1);
      in_flight_ones(16);
      library();
    }
    // Fig. 11: very small k.
    for (int k : {4, 8, 16, 32, 64, 128, 256, 512, 1024}) {
      begin("small k", 15360, k, 16);
      version3(128, 16, 4, 1);
      library();
    }
    // Fig. 12, 13 and 14: tcf from 1 to 256 at m = 10^7, and smaller m.
    for (int m : {10000, 100000, 1000000, 10000000}) {
      for (int k : {8, 16}) {
        for (int n : {8, 16}) {
          begin("tcf", m, k, n);
          for (int tcf = 1; tcf <= (m == 10000000 && k == 16 && n == 16 ? 256 : 32); tcf *= 2) {
            version3(128, n, 4, tcf);
            with_columns(n, [&](auto cols) {
              constexpr int kCols = decltype(cols)::value;
              time("ISM2-2", 128, n, 4, tcf, interleaved<T, kCols, 4>, bytes_of_b(n, 128), true);
              time("ISM2-2 from zero", 128, n, 4, tcf, interleaved<T, kCols, 4>, bytes_of_b(n, 128));
            });
          }
          library();
        }
      }
    }
    return right_;
  }

 private:
  static constexpr int64_t kElementsOfA = int64_t{30720} * 30720, kElementsOfC = int64_t{10000000} * 16;
  static constexpr int64_t kFootprint = 256 << 20;  // in bytes: more than the caches hold
  template <int kValue>
  using Constant = std::integral_constant<int, kValue>;

  template <class Use>
  static void with_columns(int n, const Use& use) {
    if (n == 2) use(Constant<2>{});
    if (n == 4) use(Constant<4>{});
    if (n == 8) use(Constant<8>{});
    if (n == 16) use(Constant<16>{});
  }
  static int bytes_of_b(int cols, int threads) { return cols * threads * static_cast<int>(sizeof(T)); }

  void version3(int t1, int t2, int t3, int tcf) {
    const auto with = [&](auto ahead) {
      constexpr int kAhead = decltype(ahead)::value;
      with_columns(t2, [&](auto cols) { time("V3", t1, t2, t3, tcf, prefetched<T, decltype(cols)::value, kAhead>, bytes_of_b(t2, t1)); });
    };
    if (t3 == 1) with(Constant<1>{});
    if (t3 == 2) with(Constant<2>{});
    if (t3 == 4) with(Constant<4>{});
    if (t3 == 8) with(Constant<8>{});
    if (t3 == 16) with(Constant<16>{});
  }

  void in_flight_ones(int n) {
    with_columns(n, [&](auto cols) {
      constexpr int kCols = decltype(cols)::value, kAhead = 32 / sizeof(T);
      for (int t1 : {64, 128}) {
        time("in flight, 8 stages", t1, n, kAhead, 1, in_flight<T, kCols, kAhead, 8>, Ring<T, kCols, kAhead, 8>::bytes(t1));
        time("in flight, 16 stages", t1, n, kAhead, 1, in_flight<T, kCols, kAhead, 16>, Ring<T, kCols, kAhead, 16>::bytes(t1));
      }
    });
  }

  void library() {
    if (!selected_ || !options_.cublas) return;
    measure("cuBLAS", 0, 0, 0, 0, false, [&](const Product<T>& x) { options_.cublas.multiply(stream_, x.m, x.n, x.k, x.a, x.b, x.c); });
  }

  void begin(const char* experiment, int m, int k, int n) {
    selected_ = options_.only.empty() || options_.only == experiment;
    if (!selected_) return;
    experiment_ = experiment, m_ = m, k_ = k, n_ = n;
    reference<<<dim3((m + 255) / 256, n), 256>>>(product(0, 1, 1, false), expected_);
    CHECK(cudaGetLastError());
  }

  // The operands of a timed call: different ones for each.
  Product<T> product(int call, int t1, int tcf, bool adds) const {
    const int64_t a = int64_t{m_} * k_, b = int64_t{k_} * n_, c = int64_t{m_} * n_;
    const int64_t copies = std::max<int64_t>(1, std::min(kElementsOfA / a, std::min(kElementsOfC / c, kElementsOfC / b)));
    const int64_t copy = call % std::min<int64_t>(copies, 1 + kFootprint / ((a + c) * static_cast<int64_t>(sizeof(T))));
    const int64_t threads = int64_t{t1} * tcf;
    return {a_ + copy * a, b_ + copy * b, c_ + copy * c, m_, n_, k_, t1, static_cast<int>((m_ + threads - 1) / threads), adds};
  }

  template <class Kernel>
  void time(const char* name, int t1, int t2, int t3, int tcf, Kernel* kernel, int shared_bytes, bool adds = false) {
    if (!selected_) return;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    int call = 0;
    measure(name, t1, t2, t3, tcf, adds, [&](const Product<T>&) {
      kernel<<<product(0, t1, tcf, adds).blocks, t1, shared_bytes, stream_>>>(product(call++, t1, tcf, adds));
    });
  }

  // `call` enqueues one product. If it adds to C, C begins as zero, otherwise as NaN.
  void measure(const char* name, int t1, int t2, int t3, int tcf, bool adds, const std::function<void(const Product<T>&)>& call) {
    const int64_t count = int64_t{m_} * n_;
    CHECK(cudaMemsetAsync(c_, adds ? 0 : 0xff, count * sizeof(T), stream_));
    CHECK(cudaMemsetAsync(error_, 0, sizeof(int), stream_));
    CHECK(cudaDeviceSynchronize());  // `expected_` comes from another stream
    call(product(0, 1, 1, adds));
    CHECK(cudaGetLastError());
    compare<<<1024, 256, 0, stream_>>>(c_, expected_, count, error_);
    float error = 0, once_ms = 0;
    CHECK(cudaMemcpyAsync(&error, error_, sizeof error, cudaMemcpyDeviceToHost, stream_));
    CHECK(cudaEventRecord(begin_, stream_));
    call(product(0, 1, 1, adds));
    CHECK(cudaEventRecord(end_, stream_));
    CHECK(cudaStreamSynchronize(stream_));
    CHECK(cudaEventElapsedTime(&once_ms, begin_, end_));
    const double allowed = 4 * std::sqrt(static_cast<double>(k_)) * (sizeof(T) == 4 ? 0x1p-24 : 0x1p-53);
    const bool right = error <= allowed;
    right_ &= right;
    const int calls = std::clamp(static_cast<int>(4 / once_ms), 1, 64);
    const double us = graph_us(stream_, calls, once_ms > 50 ? 1 : 5, [&](int i) { call(product(i, 1, 1, adds)); });
    const double bytes = (int64_t{m_} * k_ + int64_t{k_} * n_ + count) * static_cast<double>(sizeof(T)), rate = bytes / us * 1e6;
    const char* const precision = sizeof(T) == 4 ? "fp32" : "fp64";
    std::fprintf(options_.csv, "%s,\"%s\",%s,%d,%d,%d,%d,%d,%d,%d,%.6g,%.6g,%.4f,%.3g,%d\n", experiment_, name, precision, m_, k_, n_, t1,
                 t2, t3, tcf, us, rate / 1e9, rate / peak_, error, !right);
    if (!right) std::printf("WRONG: %s %s %s %d x %d x %d: error %g\n", experiment_, name, precision, m_, k_, n_, error);
  }

  const Options& options_;
  double peak_;
  T *a_, *b_, *c_;
  double* expected_;
  int* error_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  const char* experiment_ = "";
  int m_ = 0, k_ = 0, n_ = 0;
  bool selected_ = false, right_ = true;
};

}  // namespace

int main(int count, char** words) {
  std::string output, library, only;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (i + 1 < count && word == "--cublas") {
      library = words[++i];
    } else if (i + 1 < count && word == "--only") {
      only = words[++i];
    } else if (output.empty() && word[0] != '-') {
      output = word;
    } else {
      return std::fprintf(stderr, "tsm2_ablation OUTPUT.csv [--cublas LIBRARY] [--only FIGURE]\n"), 2;
    }
  }
  std::FILE* const csv = output.empty() ? nullptr : std::fopen(output.c_str(), "w");
  if (!csv) return std::fprintf(stderr, "tsm2_ablation: cannot write \"%s\"\n", output.c_str()), 2;
  std::fprintf(csv, "experiment,kernel,precision,m,k,n,t1,t2,t3,tcf,us,gbytes_per_s,of_peak,error,nbad\n");
  const Cublas cublas(library);
  const Options options{csv, cublas, only};
  const bool float32 = Experiments<float>(options).run(), float64 = Experiments<double>(options).run(), right = float32 && float64;
  std::fclose(csv);
  std::puts(right ? "tsm2_ablation: all results are right" : "tsm2_ablation: WRONG results");
  return right ? 0 : 1;
}
