// How a batched operation is timed and checked, here and beside other libraries: the protocol of the peers' figures
// (benchmarks/results/peers/README.md). Every peer gets the same numbers at the same addresses of a copy.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "descriptor.h"
#include "gpu_driver/device.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

struct BenchmarkOptions {
  bool hot = false;
  double footprint = 208e6;  // bytes of all copies of the buffers together: four times the L2 cache
  int samples = 20;
  bool stream = true;  // whether calls that the host enqueues are timed too
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

// The operands and results of products in as many copies as the footprint requires; each buffer is contiguous and 256-byte aligned.
// Buffers 2i and 2i + 1 are the operands of product i, buffer 2 count + i is its result.
template <class T, class Out = T>
class Copies {
 public:
  Copies(const std::vector<Problem>& problems, const BenchmarkOptions& options, const OwnStream& stream)
      : problems_(problems), stream_(stream) {
    const size_t count = problems.size();
    sizes_.resize(3 * count);
    for (size_t i = 0; i < count; ++i) {
      const Problem& p = problems[i];
      const size_t batch = p.batch;
      sizes_[2 * i] = batch * p.m * p.k;
      sizes_[2 * i + 1] = batch * p.k * p.n;
      sizes_[2 * count + i] = batch * p.m * p.n;
    }
    for (size_t i = 0; i < sizes_.size(); ++i) {
      offsets_.push_back(bytes_);
      bytes_ += (sizes_[i] * (i < 2 * count ? sizeof(T) : sizeof(Out)) + 255) / 256 * 256;
    }
    count_ = options.hot || bytes_ == 0 ? 1 : std::clamp(static_cast<int>(std::ceil(options.footprint / bytes_)), 1, 4096);
    memory_.emplace_back(bytes_ * count_);
    fill<<<1056, 256, 0, stream_.get()>>>(reinterpret_cast<T*>(memory_[0].data()), bytes_ * count_ / sizeof(T), 12345);
    stream_.wait();
  }

  int count() const { return count_; }
  const std::vector<size_t>& sizes() const { return sizes_; }  // of the buffers, in elements
  char* buffer(int copy, size_t i) const { return memory_[0].data() + copy * bytes_ + offsets_[i]; }

  double gflop() const {
    double flop = 0;
    for (const Problem& p : problems_) flop += (kIsComplex<T> ? 8.0 : 2.0) * p.batch * p.m * p.n * p.k;
    return flop * 1e-9;
  }

  // Makes the results of copy 0 NaN.
  void poison() const {
    for (size_t i = 2 * problems_.size(); i < sizes_.size(); ++i) {
      require(cudaMemsetAsync(buffer(0, i), 0xFF, sizes_[i] * sizeof(Out), stream_.get()), "poison");
    }
  }

  // Compares the results of copy 0 with sums in float64.
  void check(Kind kind, Figures& figures) const {
    const size_t count = problems_.size();
    const double rounding = std::max(Number<Out>::kEpsilon > 1e-4 ? 2 * Number<Out>::kEpsilon : 0, 2 * rounding_of(kind));
    // Long sums of 8-bit floats on tensor cores, which are truncated, are not hidden by the rounding of results.
    const double sums = sizeof(T) < sizeof(Out) ? 1e-3 : 2e-5;
    const double tolerance = std::max(rounding, Number<Out>::kEpsilon > 1e-10 ? sums : 1e-12);
    DeviceMemory worst(std::vector<double>(3 * count));
    for (size_t i = 0; i < count; ++i) {
      const Problem& p = problems_[i];
      if (sizes_[2 * count + i] == 0) continue;
      const auto at = [&](const Operand& x) { return reinterpret_cast<const T*>(buffer(0, x.buffer)); };
      const unsigned blocks = static_cast<unsigned>((sizes_[2 * count + i] + 127) / 128);
      compare<<<blocks, 128, 0, stream_.get()>>>(at(p.a), at(p.b), reinterpret_cast<const Out*>(buffer(0, p.c.buffer)), p,
                                                 reinterpret_cast<unsigned long long*>(worst.data()) + 3 * i);
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

 private:
  const std::vector<Problem>& problems_;
  const OwnStream& stream_;
  int count_ = 1;
  size_t bytes_ = 0;  // of a copy
  std::vector<size_t> sizes_, offsets_;
  std::vector<DeviceMemory> memory_;
};

// Returns the microseconds of back-to-back calls over all copies, including the host's work: the median of three passes of about 0.15 s at
// most.
template <class Enqueue>
double time_stream(int copies, const BenchmarkOptions& options, const OwnStream& stream, const Enqueue& enqueue) {
  enqueue(0);
  stream.wait();
  const auto begin = std::chrono::steady_clock::now();
  enqueue(0);
  stream.wait();
  const double one = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const int calls = std::max(5, std::min(std::max(copies, options.samples), static_cast<int>(0.15 / one)));
  Stopwatch watch(stream);
  watch.mark();
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = 0; i < calls; ++i) enqueue(i % copies);
    watch.mark();
  }
  return median(watch.laps()) / calls;
}

// Returns the microseconds of a call in graphs of consecutive copies, replayed in turn with an event between two, or, if there are few
// copies, one graph of all copies: a graph of one call would mostly measure its own launch. Hot: one graph of 20 calls on copy 0.
template <class Enqueue>
double time_graphs(int copies, const BenchmarkOptions& options, const OwnStream& stream, const Enqueue& enqueue) {
  const bool one_holds_all = copies <= options.samples;
  const int per_graph = options.hot ? 20 : one_holds_all ? copies : (copies + options.samples - 1) / options.samples;
  std::vector<Graph> graphs;
  std::vector<int> calls;
  for (int first = 0; first < (options.hot ? 1 : copies); first += per_graph) {
    calls.push_back(options.hot ? per_graph : std::min(per_graph, copies - first));
    graphs.emplace_back(stream, [&] {
      for (int i = 0; i < calls.back(); ++i) enqueue(options.hot ? 0 : first + i);
    });
  }
  const int count = static_cast<int>(graphs.size()), replays = std::max(options.samples, count);
  for (int i = 0; i < std::max(2, count); ++i) graphs[i % count].replay(stream);
  stream.wait();
  graphs[count - 1].replay(stream);  // keeps the stream busy while the host gets ahead
  Stopwatch watch(stream);
  watch.mark();
  for (int i = 0; i < replays; ++i) {
    graphs[i % count].replay(stream);
    watch.mark();
  }
  std::vector<double> laps = watch.laps();
  for (int i = 0; i < replays; ++i) laps[i] /= calls[i % count];
  return median(laps);
}

// Times and checks an operation of which `enqueue(copy)` enqueues a call on the stream.
template <class T, class Out, class Enqueue>
Figures measure(const Copies<T, Out>& copies, Kind kind, const BenchmarkOptions& options, const OwnStream& stream, const Enqueue& enqueue) {
  Figures figures;
  copies.poison();
  enqueue(0);
  stream.wait();
  copies.check(kind, figures);
  if (options.stream) figures.stream_us = time_stream(copies.count(), options, stream, enqueue);
  copies.poison();
  figures.graph_us = time_graphs(copies.count(), options, stream, enqueue);
  Figures replayed;
  copies.check(kind, replayed);  // of copy 0, which the replays have written again
  figures.bad = std::max(figures.bad, replayed.bad);
  return figures;
}

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

// Prints a measurement and appends it to the CSV file (benchmarks/workloads.py, Row). Returns whether all results were right.
inline bool report(const std::string& peer, const std::string& workload, Kind kind, size_t products, double gflop, const Figures& figures,
                   const BenchmarkOptions& options, const std::string& note) {
  const char* const precision = precision_of(kind);
  std::printf("%-28s %-24s %s %8.2f us  %8.1f GFLOP/s  stream %8.2f us  error %.2g  bad %d\n", peer.c_str(), workload.c_str(), precision,
              figures.graph_us, gflop / figures.graph_us * 1e6, figures.stream_us, figures.relative_error, figures.bad);
  std::fflush(stdout);
  if (std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "a")) {
    if (std::ftell(csv) == 0) {
      std::fprintf(csv, "peer,group,workload,precision,nprob,gflop,cache,graph_us,stream_us,max_rel_err,cw_err,nbad,note\n");
    }
    std::fprintf(csv, "%s,%s,%s,%s,%zu,%.6g,%s,%.4f,%.4f,%.4g,%.4g,%d,%s\n", peer.c_str(), workload.substr(0, workload.find('_')).c_str(),
                 workload.c_str(), precision, products, gflop, options.hot ? "hot" : "cold", figures.graph_us, figures.stream_us,
                 figures.relative_error, figures.componentwise_error, figures.bad, note.c_str());
    std::fclose(csv);
  }
  return figures.bad == 0;
}

}  // namespace vbgemm::driver
