// The driver's timing: one batched operation by the protocol of the peers' figures (benchmarks/results/peers/README.md), checked against
// float64.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu_driver/host_plan.h"
#include "gpu_driver/number.h"

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

struct BenchmarkOptions {
  bool hot = false;
  double footprint = 208e6;  // bytes of all copies of the buffers together: four times the L2 cache
  int samples = 20;
  std::string csv;
};

struct Figures {
  double graph_us = NAN, stream_us = NAN;
  double relative_error = 0, componentwise_error = 0;
  int bad = 0;
};

// Widens elements on the device to a type that represents all of them exactly.
template <class T>
__device__ inline Complex<double> to_wide(T x) {
  return {static_cast<double>(widen(x)), 0};
}
__device__ inline Complex<double> to_wide(int8_t x) { return {static_cast<double>(x), 0}; }
__device__ inline Complex<double> to_wide(uint32_t x) { return {static_cast<double>(static_cast<int32_t>(x)), 0}; }
template <class Real>
__device__ inline Complex<double> to_wide(Complex<Real> x) {
  return {x.real, x.imag};
}
template <class T>
__device__ inline void from_wide(Complex<double> x, T& to) {
  narrow(static_cast<Accumulator<T>>(x.real), to);
}
__device__ inline void from_wide(Complex<double> x, int8_t& to) { to = static_cast<int8_t>(127 * x.real); }
template <class Real>
__device__ inline void from_wide(Complex<double> x, Complex<Real>& to) {
  to = {static_cast<Real>(x.real), static_cast<Real>(x.imag)};
}

// Fills an array with values whose parts are in [-1, 1), or up to 127 times that for integers, and depend only on the position.
template <class T>
__global__ void fill(T* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    from_wide({static_cast<double>(x >> 40) / (1 << 23) - 1, static_cast<double>(x & 0xffffff) / (1 << 23) - 1}, to[i]);
  }
}

// worst = {max |c - reference|, max |reference|, max |c - reference| / (|A| |B|)} over a problem, with one thread for each element.
// Non-negative doubles have the order of their bits, so that an integer maximum can be used.
template <class T, class Out>
__global__ void compare(const T* a, const T* b, const Out* c, Problem p, unsigned long long* worst) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i >= static_cast<size_t>(p.batch) * p.m * p.n) return;
  const int col = static_cast<int>(i % p.n), row = static_cast<int>(i / p.n % p.m), batch = static_cast<int>(i / p.n / p.m);
  const int outer = batch / p.inner_batch, inner = batch % p.inner_batch;
  a += p.a.offset + outer * p.a.batch_stride[0] + inner * p.a.batch_stride[1] + row * p.a.row_stride;
  b += p.b.offset + outer * p.b.batch_stride[0] + inner * p.b.batch_stride[1] + col * p.b.col_stride;
  c += p.c.offset + outer * p.c.batch_stride[0] + inner * p.c.batch_stride[1] + row * p.c.row_stride + col * p.c.col_stride;
  Complex<double> reference{};
  double size = 0;
  for (int k = 0; k < p.k; ++k) {
    const Complex<double> x = to_wide(a[k * p.a.col_stride]), y = to_wide(b[k * p.b.row_stride]);
    reference = multiply_add(x, y, reference);
    size += (fabs(x.real) + fabs(x.imag)) * (fabs(y.real) + fabs(y.imag));
  }
  const Complex<double> found = to_wide(*c);
  double error = hypot(found.real - reference.real, found.imag - reference.imag);
  if (!(error < 1e300)) error = 1e300;  // a NaN must not pass
  atomicMax(worst, static_cast<unsigned long long>(__double_as_longlong(error)));
  atomicMax(worst + 1, static_cast<unsigned long long>(__double_as_longlong(hypot(reference.real, reference.imag))));
  atomicMax(worst + 2, static_cast<unsigned long long>(__double_as_longlong(error / fmax(size, 1e-300))));
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

class Stopwatch {
 public:
  explicit Stopwatch(const OwnStream& stream) : stream_(stream) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  void mark() {
    cudaEvent_t event;
    require(cudaEventCreate(&event), "event");
    events_.push_back(event);
    require(cudaEventRecord(event, stream_.get()), "event");
  }
  // Returns the microseconds between consecutive marks.
  std::vector<double> laps() const {
    stream_.wait();
    std::vector<double> laps;
    for (size_t i = 1; i < events_.size(); ++i) {
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]), "elapsed time");
      laps.push_back(1e3 * milliseconds);
    }
    return laps;
  }

 private:
  const OwnStream& stream_;
  std::vector<cudaEvent_t> events_;
};

// The operands and results of a case, in as many copies as the footprint requires; each buffer is contiguous and 256-byte aligned.
template <class T, class Out = T>
class Bench {
 public:
  Bench(const Case& c, const BenchmarkOptions& options) : case_(c), options_(options), plan_(c.plan), device_(c.plan) {
    const std::vector<Problem>& problems = plan_.problems;
    const size_t count = problems.size();
    sizes_.resize(3 * count);
    for (size_t i = 0; i < count; ++i) {
      const Problem& p = problems[i];
      const size_t batch = p.batch;
      sizes_[2 * i] = batch * p.m * p.k;
      sizes_[2 * i + 1] = batch * p.k * p.n;
      sizes_[2 * count + i] = batch * p.m * p.n;
    }
    size_t per_copy = 0;
    std::vector<size_t> offsets;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      offsets.push_back(per_copy);
      per_copy += (sizes_[i] * (i < 2 * count ? sizeof(T) : sizeof(Out)) + 255) / 256 * 256;
    }
    copies_ = options.hot || per_copy == 0 ? 1 : std::clamp(static_cast<int>(std::ceil(options.footprint / per_copy)), 1, 4096);
    memory_.emplace_back(per_copy * copies_);
    workspace_.emplace_back(workspace_of(plan_, static_cast<int>(sizes_.size())));
    fill<<<1056, 256, 0, stream_.get()>>>(reinterpret_cast<T*>(memory_[0].data()), per_copy * copies_ / sizeof(T), 12345);
    for (int copy = 0; copy < copies_; ++copy) {
      buffers_.emplace_back();
      buffers_[copy].num_operands = static_cast<int>(2 * count);
      for (size_t i = 0; i < offsets.size(); ++i) buffers_[copy].add(memory_[0].data() + copy * per_copy + offsets[i], sizes_[i]);
    }
    stream_.wait();
  }

  Figures measure() {
    Figures figures;
    poison();
    enqueue(0);
    stream_.wait();
    check(figures);
    figures.stream_us = time_stream();
    poison();
    figures.graph_us = time_graphs();
    Figures replayed;
    check(replayed);  // of copy 0, which the replays have written again
    figures.bad = std::max(figures.bad, replayed.bad);
    return figures;
  }

  double gflop() const {
    double flop = 0;
    for (const Problem& p : plan_.problems) flop += (kIsComplex<T> ? 8.0 : 2.0) * p.batch * p.m * p.n * p.k;
    return flop * 1e-9;
  }

 private:
  void enqueue(int copy) { require(launch(call_of(plan_, device_, buffers_[copy], workspace_[0]), stream_.get()), "launch"); }

  void poison() {
    for (size_t i = 2 * plan_.problems.size(); i < sizes_.size(); ++i) {
      require(cudaMemsetAsync(const_cast<void*>(buffers_[0].data[i]), 0xFF, sizes_[i] * sizeof(Out), stream_.get()), "poison");
    }
  }

  void check(Figures& figures) {
    const size_t count = plan_.problems.size();
    const double rounding = std::max(Number<Out>::kEpsilon > 1e-4 ? 2 * Number<Out>::kEpsilon : 0, 2 * rounding_of(plan_.kind));
    // Long sums of 8-bit floats on tensor cores, which are truncated, are not hidden by the rounding of results.
    const double sums = sizeof(T) < sizeof(Out) ? 1e-3 : 2e-5;
    const double tolerance = std::max(rounding, Number<Out>::kEpsilon > 1e-10 ? sums : 1e-12);
    DeviceMemory worst(std::vector<double>(3 * count));
    for (size_t i = 0; i < count; ++i) {
      const Problem& p = plan_.problems[i];
      if (sizes_[2 * count + i] == 0) continue;
      const auto at = [&](const Operand& x) { return static_cast<const T*>(buffers_[0].data[x.buffer]); };
      const Out* const c = static_cast<const Out*>(buffers_[0].data[p.c.buffer]);
      const unsigned blocks = static_cast<unsigned>((sizes_[2 * count + i] + 127) / 128);
      compare<<<blocks, 128, 0, stream_.get()>>>(at(p.a), at(p.b), c, p, reinterpret_cast<unsigned long long*>(worst.data()) + 3 * i);
    }
    require(cudaGetLastError(), "compare");
    stream_.wait();
    std::vector<double> found(3 * count);
    worst.read(found.data());
    for (size_t i = 0; i < count; ++i) {
      const double relative = found[3 * i] / std::max(found[3 * i + 1], 1e-300);
      figures.relative_error = std::max(figures.relative_error, relative);
      figures.componentwise_error = std::max(figures.componentwise_error, found[3 * i + 2]);
      figures.bad += !(relative <= tolerance);
    }
  }

  // Times back-to-back calls over all copies, including the host's work; the result is the median of three passes of about 0.15 s at most.
  double time_stream() {
    enqueue(0);
    stream_.wait();
    const auto begin = std::chrono::steady_clock::now();
    enqueue(0);
    stream_.wait();
    const double one = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const int calls = std::max(5, std::min(std::max(copies_, options_.samples), static_cast<int>(0.15 / one)));
    Stopwatch watch(stream_);
    watch.mark();
    for (int pass = 0; pass < 3; ++pass) {
      for (int i = 0; i < calls; ++i) enqueue(i % copies_);
      watch.mark();
    }
    return median(watch.laps()) / calls;
  }

  // Times graphs of consecutive copies, replayed in turn with an event between two, or, if there are few copies, one graph of all copies: a
  // graph of one call would mostly measure its own launch. Hot: one graph of 20 calls on copy 0.
  double time_graphs() {
    const bool one_holds_all = copies_ <= options_.samples;
    const int per_graph = options_.hot ? 20 : one_holds_all ? copies_ : (copies_ + options_.samples - 1) / options_.samples;
    std::vector<Graph> graphs;
    std::vector<int> calls;
    for (int first = 0; first < (options_.hot ? 1 : copies_); first += per_graph) {
      calls.push_back(options_.hot ? per_graph : std::min(per_graph, copies_ - first));
      graphs.emplace_back(stream_, [&] {
        for (int i = 0; i < calls.back(); ++i) enqueue(options_.hot ? 0 : first + i);
      });
    }
    const int count = static_cast<int>(graphs.size()), replays = std::max(options_.samples, count);
    for (int i = 0; i < std::max(2, count); ++i) graphs[i % count].replay(stream_);
    stream_.wait();
    graphs[count - 1].replay(stream_);  // keeps the stream busy while the host gets ahead
    Stopwatch watch(stream_);
    watch.mark();
    for (int i = 0; i < replays; ++i) {
      graphs[i % count].replay(stream_);
      watch.mark();
    }
    std::vector<double> laps = watch.laps();
    for (int i = 0; i < replays; ++i) laps[i] /= calls[i % count];
    return median(laps);
  }

  const Case& case_;
  const BenchmarkOptions& options_;
  const HostPlan& plan_;
  DevicePlan device_;
  OwnStream stream_;
  int copies_ = 1;
  std::vector<size_t> sizes_;  // sizes of the buffers, in elements
  std::vector<DeviceMemory> memory_, workspace_;
  std::vector<Buffers> buffers_;  // one for each copy
};

// The name of an arithmetic in the CSV files (benchmarks/figures.py), which those of other libraries have, too.
constexpr const char* precision_of(Kind kind) {
  switch (kind) {
    case Kind::f32: return "fp32";
    case Kind::f64: return "fp64";
    case Kind::c64: return "c64";
    case Kind::c128: return "c128";
    case Kind::bf16: return "bf16";
    case Kind::f16: return "fp16";
    case Kind::tf32: return "tf32";
    case Kind::tf32x3: return "3xtf32";
    default: return name_of(kind);
  }
}

// Times one case, prints it, and appends a row to the CSV file. Returns whether all results were right.
inline bool benchmark(const Case& c, const BenchmarkOptions& options) {
  Figures figures;
  double gflop = 0;
  const auto measure = [&](auto&& bench) { figures = bench.measure(), gflop = bench.gflop(); };
  const Arithmetic& types = arithmetic_of(c.plan.kind);
  switch (types.lhs == types.rhs ? types.lhs : DType::s32) {
    case DType::f32: measure(Bench<float>(c, options)); break;
    case DType::f64: measure(Bench<double>(c, options)); break;
    case DType::c64: measure(Bench<Complex<float>>(c, options)); break;
    case DType::c128: measure(Bench<Complex<double>>(c, options)); break;
    case DType::bf16: measure(Bench<BFloat16>(c, options)); break;
    case DType::f16: measure(Bench<Float16>(c, options)); break;
    case DType::e4m3: measure(Bench<Element<DType::e4m3>, float>(c, options)); break;
    case DType::e5m2: measure(Bench<Element<DType::e5m2>, float>(c, options)); break;
    case DType::s8: measure(Bench<int8_t, uint32_t>(c, options)); break;
    default: throw std::runtime_error(std::string("no benchmark multiplies ") + name_of(c.plan.kind));
  }
  const char* const precision = precision_of(c.plan.kind);
  std::printf("%-28s %-24s %s %8.2f us  %8.1f GFLOP/s  stream %8.2f us  error %.2g  bad %d\n", c.peer.c_str(), c.workload.c_str(),
              precision, figures.graph_us, gflop / figures.graph_us * 1e6, figures.stream_us, figures.relative_error, figures.bad);
  std::fflush(stdout);
  if (std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "a")) {
    if (std::ftell(csv) == 0) {
      std::fprintf(csv, "peer,group,workload,precision,nprob,gflop,cache,graph_us,stream_us,max_rel_err,cw_err,nbad,note\n");
    }
    std::fprintf(csv, "%s,%s,%s,%s,%zu,%.6g,%s,%.4f,%.4f,%.4g,%.4g,%d,blocks=%d\n", c.peer.c_str(),
                 c.workload.substr(0, c.workload.find('_')).c_str(), c.workload.c_str(), precision, c.plan.problems.size(), gflop,
                 options.hot ? "hot" : "cold", figures.graph_us, figures.stream_us, figures.relative_error, figures.componentwise_error,
                 figures.bad, c.plan.num_blocks);
    std::fclose(csv);
  }
  return figures.bad == 0;
}

}  // namespace vbgemm::driver
