// Stand-alone driver of the CPU kernel: correctness against float64, a stress of concurrent calls, and timing.
//
//   cpu_kernel_bench check [rounds]            random problems of every dtype against float64; bits equal whatever the plan
//   cpu_kernel_bench stress [seconds]          32 concurrent calls on a pool of 2 threads
//   cpu_kernel_bench time [dtype]              GFLOP/s of batches of small problems, 1 and 2 threads
//   cpu_kernel_bench file F [dtype] [layout]   GFLOP/s of a workload file ("M N K" a line) with each CPU tile; layout nn, nt, tn, tt
//
// Build without CMake, as tests/test_cpu_kernel.py does it, also with -fsanitize=address,undefined or thread. Where it is x86-64:
//
//   F="g++ -std=c++17 -O3 -fno-math-errno -Wall -Wextra -pthread -Icsrc" X="-mavx2 -mfma -mf16c"
//   $F $X -c csrc/cpu/kernels_avx2.cc
//   $F $X -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512 -c csrc/cpu/kernels_avx512.cc
//   $F benchmarks/cpu_kernel_bench.cc csrc/cpu/{walk,isa,kernels_portable}.cc kernels_avx*.o -o cpu_kernel_bench
//
// and elsewhere the last line without the objects.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/walk.h"

namespace {

using namespace vbgemm;

// Memory that ends where an unmapped page begins: the sanitizers don't see masked vector loads, the processor does.
template <class T>
struct GuardedAllocator {
  using value_type = T;
  static size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T), pages = whole_pages(bytes);
    void* base = mmap(nullptr, pages + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(static_cast<char*>(base) + 4096, pages, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
    return reinterpret_cast<T*>(static_cast<char*>(base) + 4096 + pages - bytes);
  }
  void deallocate(T* p, size_t count) {
    const size_t bytes = count * sizeof(T), pages = whole_pages(bytes);
    munmap(reinterpret_cast<char*>(p) + bytes - pages - 4096, pages + 8192);
  }
  template <class U>
  bool operator==(const GuardedAllocator<U>&) const {
    return true;
  }
  template <class U>
  bool operator!=(const GuardedAllocator<U>&) const {
    return false;
  }
};
using Bytes = std::vector<unsigned char, GuardedAllocator<unsigned char>>;
using Number = std::complex<double>;

std::mt19937_64 rng(12345);
int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
bool chance(double p) { return std::uniform_real_distribution<>()(rng) < p; }

void pin(pthread_t thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  pthread_setaffinity_np(thread, sizeof cores, &cores);
}

// With pinned = true its threads stay on core 1, beside a caller on core 0: the kernel's scheduler often wakes a thread on the core of
// the one that woke it, and leaves it there for longer than a call takes.
class Pool {
 public:
  explicit Pool(int threads, bool pinned = false) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    for (std::thread& thread : threads_) {
      if (pinned) pin(thread.native_handle(), 1);
    }
    if (pinned) pin(pthread_self(), 0);
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t num_threads() const { return static_cast<int64_t>(threads_.size()); }
  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// ---- Elements of any dtype, by arithmetic that shares nothing with the kernel's.

int size_of(DType dtype) {
  constexpr int kSizes[kDTypes] = {4, 8, 8, 16, 2, 2};
  return kSizes[static_cast<int>(dtype)];
}
bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

double from_half(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = bits >> fraction_bits & top, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == top) return fraction ? NAN : sign * INFINITY;
  return sign * std::ldexp(exponent ? fraction + (1 << fraction_bits) : fraction, std::max(exponent, 1) - bias - fraction_bits);
}
uint16_t to_half(double x, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0, infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  if (std::isnan(x)) return sign | infinity | 1 << (fraction_bits - 1);
  if (x == 0) return sign;
  if (std::isinf(x)) return sign | infinity;
  const int step = std::max(std::ilogb(x), 1 - bias) - fraction_bits;
  const double steps = std::nearbyint(std::ldexp(std::fabs(x), -step));  // ties to even
  const double bits = steps + std::ldexp(step + bias + fraction_bits - 1, fraction_bits);
  return sign | static_cast<uint16_t>(std::min<double>(bits, infinity));
}
int exponent_bits(DType dtype) { return dtype == DType::bf16 ? 8 : 5; }

template <class T>
T read(const unsigned char* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
Number get(DType dtype, const unsigned char* p) {
  switch (dtype) {
    case DType::f32: return read<float>(p);
    case DType::f64: return read<double>(p);
    case DType::c64: return {read<float>(p), read<float>(p + 4)};
    case DType::c128: return {read<double>(p), read<double>(p + 8)};
    default: return from_half(read<uint16_t>(p), exponent_bits(dtype));
  }
}
void put(DType dtype, unsigned char* p, Number x) {
  const float f[2] = {static_cast<float>(x.real()), static_cast<float>(x.imag())};
  const double d[2] = {x.real(), x.imag()};
  if (dtype == DType::f32 || dtype == DType::c64) {
    std::memcpy(p, f, size_of(dtype));
  } else if (dtype == DType::f64 || dtype == DType::c128) {
    std::memcpy(p, d, size_of(dtype));
  } else {
    const uint16_t half = to_half(x.real(), exponent_bits(dtype));
    std::memcpy(p, &half, 2);
  }
}
double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128: return 0x1p-53;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-24;
  }
}

// ---- Problems and plans.

// What owns a call's memory. Everything in a buffer that no problem addresses is NaN in operands and kUntouched in results.
constexpr unsigned char kUntouched = 0xA5;
constexpr int64_t kGuard = 256;  // bytes before and behind each result
struct Workload {
  DType dtype, out_dtype;
  std::vector<Problem> problems;
  std::vector<Bytes> buffers;                 // of exactly the size that the problems reach
  int num_operands = 0;                       // buffers that aren't results
  std::vector<std::pair<int, int>> k_ranges;  // one a problem
  std::vector<Epilogue> epilogues;            // one a problem, or none
  std::vector<Bytes> initial;                 // results before the call, where it reads them
};
struct PlanData {
  std::vector<TileRun> runs;
  std::vector<int32_t> block_first;
  int32_t num_tiles = 0;
};

int64_t element_of(const Operand& x, const Problem& p, int64_t batch, int64_t i, int64_t j) {
  return x.offset + batch / p.inner_batch * x.batch_stride[0] + batch % p.inner_batch * x.batch_stride[1] + i * x.row_stride +
         j * x.col_stride;
}

// Lays out an operand of rows x cols x batch in a new buffer: any order, padded or strided or broadcast, at an offset.
Operand lay_out(Workload& w, DType dtype, const Problem& p, int64_t rows, int64_t cols, bool result, bool plain) {
  Operand x{};
  x.buffer = static_cast<int32_t>(w.buffers.size());
  int64_t inner = chance(plain ? 0 : 0.15) ? uniform(2, 3) : 1, gap = chance(plain ? 0 : 0.4) ? uniform(1, 40) : 0;
  if (chance(result ? 0.2 : 0.5) && !plain) {
    x.row_stride = inner, x.col_stride = std::max<int64_t>(rows, 1) * inner + gap;
  } else {
    x.col_stride = inner, x.row_stride = std::max<int64_t>(cols, 1) * inner + gap;
  }
  const int64_t matrix = std::max(rows, 1l) * std::max(cols, 1l) * inner + gap * std::max({rows, cols, int64_t{1}});
  const int64_t outer = (p.batch + p.inner_batch - 1) / p.inner_batch;
  x.batch_stride[1] = !result && chance(0.3) ? 0 : matrix;
  x.batch_stride[0] = !result && chance(0.3) ? 0 : matrix * p.inner_batch;
  x.offset = result ? kGuard / size_of(dtype) : uniform(0, 5);
  int64_t elements = x.offset;
  if (rows > 0 && cols > 0 && p.batch > 0) {
    elements += (rows - 1) * x.row_stride + (cols - 1) * x.col_stride + (outer - 1) * x.batch_stride[0] +
                (std::min(p.batch, p.inner_batch) - 1) * x.batch_stride[1] + 1;
  }
  w.buffers.emplace_back(elements * size_of(dtype) + (result ? kGuard : 0), result ? kUntouched : 0xFF);
  if (result) return x;
  std::normal_distribution<> normal;
  const bool wild = chance(plain ? 0 : 0.1);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        double value = normal(rng);
        if (wild && chance(0.01)) value = chance(0.3) ? NAN : chance(0.5) ? INFINITY : -INFINITY;
        const Number number(value, is_complex(dtype) ? normal(rng) : 0);
        put(dtype, &w.buffers[x.buffer][element_of(x, p, b, i, j) * size_of(dtype)], number);
      }
    }
  }
  return x;
}

template <class F>
void for_each_element(const Problem& p, F f) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) f(b, i, j);
    }
  }
}
void put_random(DType dtype, unsigned char* p) {
  std::normal_distribution<> normal;
  put(dtype, p, {normal(rng), is_complex(dtype) ? normal(rng) : 0});
}
DType accumulator_of(DType dtype) { return size_of(dtype) == 2 ? DType::f32 : dtype; }
std::vector<Bytes> results(const Workload& w) { return {w.buffers.begin() + w.num_operands, w.buffers.end()}; }

// 1, 0 or anything; known at trace time or in a buffer of its own.
Scalar random_scalar(Workload& w) {
  std::normal_distribution<> normal;
  const bool any = chance(0.6);
  const Number value = any ? Number(normal(rng), is_complex(w.dtype) && chance(0.7) ? normal(rng) : 0) : Number(chance(0.5), 0);
  Scalar scalar{value.real(), value.imag(), -1, 0, 0};
  if (chance(0.5)) return scalar;
  const DType dtype = accumulator_of(w.dtype);
  scalar = {1e9, 1e9, static_cast<int32_t>(w.buffers.size()), 0, uniform(0, 3)};
  w.buffers.emplace_back((scalar.offset + 1) * size_of(dtype), 0xFF);
  put(dtype, &w.buffers.back()[scalar.offset * size_of(dtype)], value);
  return scalar;
}
Number value_of(const Workload& w, const Scalar& scalar) {
  const DType dtype = accumulator_of(w.dtype);
  unsigned char bytes[16];
  if (scalar.buffer < 0) put(dtype, bytes, {scalar.real, scalar.imag});
  return get(dtype, scalar.buffer < 0 ? bytes : &w.buffers[scalar.buffer][scalar.offset * size_of(dtype)]);
}

// Something shaped like C, or broadcast to it. nan: there is nothing in it that may be used.
Operand random_addend(Workload& w, const Problem& p, bool nan) {
  const bool one_row = chance(0.4), one_column = chance(0.3);
  Operand x = lay_out(w, w.out_dtype, p, one_row ? std::min(p.m, 1) : p.m, one_column ? std::min(p.n, 1) : p.n, false, false);
  if (one_row) x.row_stride = 0;
  if (one_column) x.col_stride = 0;
  if (nan) std::fill(w.buffers[x.buffer].begin(), w.buffers[x.buffer].end(), 0xFF);
  return x;
}

constexpr int32_t kItself = -2;  // as a source: C
Epilogue random_epilogue(Workload& w, const Problem& p) {
  Epilogue e{random_scalar(w), random_scalar(w), {}, {}, Activation::none, 0};
  e.source.buffer = e.bias.buffer = -1;
  if (chance(0.3)) {
    e.source.buffer = kItself;
  } else if (chance(0.7)) {
    e.source = random_addend(w, p, value_of(w, e.beta) == 0.0);
  }
  if (chance(0.5)) e.bias = random_addend(w, p, false);
  if (!is_complex(w.dtype)) e.activation = static_cast<Activation>(uniform(0, 5));
  return e;
}

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double activate(double x, Activation activation) {
  switch (activation) {
    case Activation::relu: return x <= 0 ? 0 : x;
    case Activation::gelu: return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    case Activation::silu: return x * sigmoid(x);
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return sigmoid(x);
    default: return x;
  }
}

int random_size(int64_t limit) {
  constexpr int kSizes[] = {0, 1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 37, 48, 64, 97, 113, 127, 128, 129, 199, 257};
  return static_cast<int>(std::min(chance(0.5) ? uniform(1, 70) : kSizes[uniform(0, std::size(kSizes) - 1)], limit));
}

Workload random_workload(DType dtype, DType out_dtype, int count) {
  Workload w{dtype, out_dtype, {}, {}, 0, {}, {}, {}};
  for (int i = 0; i < count; ++i) {
    Problem p{};
    p.m = random_size(300), p.n = random_size(300), p.k = chance(0.1) ? static_cast<int>(uniform(250, 800)) : random_size(300);
    p.batch = chance(0.7) ? 1 : static_cast<int>(uniform(0, 6));
    p.inner_batch = static_cast<int>(uniform(1, 3));
    if (static_cast<double>(p.m) * p.n * p.k * p.batch > 4e6) p.batch = 1;
    p.a = lay_out(w, dtype, p, p.m, p.k, false, false);
    p.b = lay_out(w, dtype, p, p.k, p.n, false, false);
    w.problems.push_back(p);
    int begin = 0, end = p.k;
    if (chance(0.2)) begin = static_cast<int>(uniform(0, p.k)), end = static_cast<int>(uniform(begin, p.k));
    w.k_ranges.emplace_back(begin, end);
  }
  const bool finishing = chance(0.5);
  for (size_t i = 0; finishing && i < w.problems.size(); ++i) w.epilogues.push_back(random_epilogue(w, w.problems[i]));
  w.num_operands = static_cast<int>(w.buffers.size());
  for (size_t i = 0; i < w.problems.size(); ++i) {
    Problem& p = w.problems[i];
    p.c = lay_out(w, out_dtype, p, p.m, p.n, true, false);
    if (!finishing || w.epilogues[i].source.buffer != kItself) continue;
    w.epilogues[i].source = p.c;
    for_each_element(p, [&](int64_t b, int64_t row, int64_t col) {
      put_random(out_dtype, &w.buffers[p.c.buffer][element_of(p.c, p, b, row, col) * size_of(out_dtype)]);
    });
  }
  w.initial = results(w);
  return w;
}

// Covers all problems with tiles: boxes of tiles or single ones, in any order, several in a block or one. strategy < 0: any.
PlanData make_plan(const Workload& w, int strategy, bool boxes, bool shuffle, int tiles_a_block) {
  PlanData plan;
  for (size_t i = 0; i < w.problems.size(); ++i) {
    const Problem& p = w.problems[i];
    const int row = strategy >= 0 ? strategy : static_cast<int>(uniform(0, kNumTiles - 1));
    TileRun run{static_cast<int32_t>(i), row, 0, 0, 0, w.k_ranges[i].first, w.k_ranges[i].second, 0, 1, 1, 0, 0};
    const int y = (p.m + kTiles[row].m - 1) / kTiles[row].m, x = (p.n + kTiles[row].n - 1) / kTiles[row].n;
    if (boxes && p.batch * y * x > 0) {
      run.tiles_y = y, run.tiles_x = x, run.first_tile = plan.num_tiles;
      plan.num_tiles += p.batch * y * x;
      plan.runs.push_back(run);
    }
    for (int t = 0; !boxes && t < p.batch * y * x; ++t, ++plan.num_tiles) {
      run.col = t % x * kTiles[row].n, run.row = t / x % y * kTiles[row].m, run.batch = t / x / y;
      plan.runs.push_back(run);
    }
  }
  if (shuffle && !boxes) std::shuffle(plan.runs.begin(), plan.runs.end(), rng);
  if (!boxes) {
    for (int t = 0; t < plan.num_tiles; ++t) plan.runs[t].first_tile = t;
  }
  if (tiles_a_block) {
    plan.block_first = {0};
    while (plan.block_first.back() < plan.num_tiles) {
      plan.block_first.push_back(
          static_cast<int32_t>(std::min<int64_t>(plan.num_tiles, plan.block_first.back() + uniform(0, 2 * tiles_a_block))));
    }
  }
  return plan;
}

struct Call {
  CpuCall call;
  std::vector<void*> pointers;
};
Call make_call(Workload& w, const PlanData& plan) {
  Call result;
  for (Bytes& buffer : w.buffers) result.pointers.push_back(buffer.data());
  const int32_t blocks = plan.block_first.empty() ? plan.num_tiles : static_cast<int32_t>(plan.block_first.size()) - 1;
  Descriptors descriptors{};
  descriptors.problems = w.problems.data();
  descriptors.epilogues = w.epilogues.empty() ? nullptr : w.epilogues.data();
  descriptors.runs = plan.runs.data();
  descriptors.block_first = plan.block_first.empty() ? nullptr : plan.block_first.data();
  descriptors.num_problems = static_cast<int32_t>(w.problems.size());
  descriptors.num_runs = static_cast<int32_t>(plan.runs.size());
  descriptors.num_tiles = plan.num_tiles;
  descriptors.num_blocks = blocks;
  result.call = {w.dtype, w.out_dtype, descriptors, result.pointers.data()};
  return result;
}
void clear_results(Workload& w) { std::copy(w.initial.begin(), w.initial.end(), w.buffers.begin() + w.num_operands); }

// ---- Checks.

int failures = 0;
void fail(const Workload& w, const Problem& p, const char* what, int64_t i = 0, int64_t j = 0, double got = 0, double expected = 0) {
  if (++failures > 20) return;
  std::printf("FAIL %s -> %s m %d n %d k %d batch %d, A strides %ld %ld, B %ld %ld, C %ld %ld: %s at (%ld, %ld): %g, expected %g\n",
              kDTypeNames[static_cast<int>(w.dtype)], kDTypeNames[static_cast<int>(w.out_dtype)], p.m, p.n, p.k, p.batch, p.a.row_stride,
              p.a.col_stride, p.b.row_stride, p.b.col_stride, p.c.row_stride, p.c.col_stride, what, i, j, got, expected);
}

bool agrees(double got, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= tolerance;
}

// As the kernel has it where there are infinities: a real factor scales both parts, a complex one is multiplied by the schoolbook.
Number scaled(Number x, Number by) {
  const double re = by.real(), im = by.imag();
  if (im == 0) return {re * x.real(), re * x.imag()};
  return {re * x.real() - im * x.imag(), re * x.imag() + im * x.real()};
}

// One part of a number may be NaN and the other one not.
double finite_size(Number x) {
  return (std::isfinite(x.real()) ? std::fabs(x.real()) : 0) + (std::isfinite(x.imag()) ? std::fabs(x.imag()) : 0);
}

// Turns a sum and the bound on its error into what comes of them.
void expect_epilogue(const Workload& w, const Epilogue& e, const Problem& p, int64_t batch, int64_t i, int64_t j, double (&value)[2],
                     double& tolerance) {
  const auto addend = [&](const Operand& x) {
    const Bytes& from = x.buffer < w.num_operands ? w.buffers[x.buffer] : w.initial[x.buffer - w.num_operands];
    return get(w.out_dtype, &from[element_of(x, p, batch, i, j) * size_of(w.out_dtype)]);
  };
  const Number alpha = value_of(w, e.alpha), beta = value_of(w, e.beta);
  double magnitude = std::abs(alpha) * finite_size({value[0], value[1]});
  tolerance *= std::abs(alpha);
  Number x = scaled({value[0], value[1]}, alpha);
  if (e.source.buffer >= 0 && beta != 0.0) {
    x += scaled(addend(e.source), beta);
    magnitude += std::abs(beta) * finite_size(addend(e.source));
  }
  if (e.bias.buffer >= 0) x += addend(e.bias), magnitude += finite_size(addend(e.bias));
  value[0] = activate(x.real(), e.activation), value[1] = x.imag();
  // No activation is steeper than 1.13; none adds more than a few roundings of its argument.
  tolerance =
      1.13 * tolerance + 8 * magnitude * epsilon(accumulator_of(w.dtype)) + 4 * finite_size(value[0]) * epsilon(accumulator_of(w.dtype));
}

void check_results(const Workload& w) {
  const int in_size = size_of(w.dtype), out_size = size_of(w.out_dtype);
  const double accumulator = epsilon(w.dtype == DType::f64 || w.dtype == DType::c128 ? DType::f64 : DType::f32);
  for (size_t index = 0; index < w.problems.size(); ++index) {
    const Problem& p = w.problems[index];
    Bytes outside = w.buffers[p.c.buffer];
    const auto [k_begin, k_end] = w.k_ranges[index];
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          double re = 0, im = 0, re_im = 0, im_re = 0, absolute = 0;
          for (int64_t k = k_begin; k < k_end; ++k) {
            const Number a = get(w.dtype, &w.buffers[p.a.buffer][element_of(p.a, p, batch, i, k) * in_size]);
            const Number b = get(w.dtype, &w.buffers[p.b.buffer][element_of(p.b, p, batch, k, j) * in_size]);
            re += a.real() * b.real(), im += a.imag() * b.imag(), re_im += a.real() * b.imag(), im_re += a.imag() * b.real();
            absolute += std::abs(a) * std::abs(b);
          }
          const int64_t at = element_of(p.c, p, batch, i, j) * out_size;
          const Number got = get(w.out_dtype, &w.buffers[p.c.buffer][at]);
          double tolerance = absolute * (k_end - k_begin + 2) * accumulator;
          double expected[2] = {re - im, re_im + im_re};
          const double found[2] = {got.real(), got.imag()};
          if (!w.epilogues.empty()) expect_epilogue(w, w.epilogues[index], p, batch, i, j, expected, tolerance);
          for (int part = 0; part <= is_complex(w.dtype); ++part) {
            const double rounding = std::fabs(expected[part]) * epsilon(w.out_dtype) + (w.out_dtype == DType::f16 ? 0x1p-25 : 0);
            if (!agrees(found[part], expected[part], tolerance + rounding)) fail(w, p, "wrong", i, j, found[part], expected[part]);
          }
          std::fill_n(outside.begin() + at, out_size, kUntouched);
        }
      }
    }
    if (std::any_of(outside.begin(), outside.end(), [](unsigned char byte) { return byte != kUntouched; })) {
      fail(w, p, "written outside of C");
    }
  }
}

// The results, with one NaN for all: which of two NaNs a processor passes on depends on their order, and so on the plan.
std::vector<Bytes> canonical_results(const Workload& w) {
  std::vector<Bytes> all = results(w);
  for (const Problem& p : w.problems) {
    for_each_element(p, [&](int64_t batch, int64_t i, int64_t j) {
      unsigned char* at = &all[p.c.buffer - w.num_operands][element_of(p.c, p, batch, i, j) * size_of(w.out_dtype)];
      const Number x = get(w.out_dtype, at);
      if (std::isnan(x.real()) || std::isnan(x.imag())) {
        put(w.out_dtype, at, {std::isnan(x.real()) ? NAN : x.real(), std::isnan(x.imag()) ? NAN : x.imag()});
      }
    });
  }
  return all;
}

void check_random(DType dtype, DType out_dtype, Pool& pool) {
  Workload w = random_workload(dtype, out_dtype, static_cast<int>(uniform(1, 5)));
  std::vector<Bytes> first;
  for (int variant = 0; variant < 4; ++variant) {
    clear_results(w);
    const PlanData plan =
        make_plan(w, chance(0.5) ? -1 : kNumTiles - 1, chance(0.5), chance(0.5), chance(0.5) ? 0 : static_cast<int>(uniform(1, 4)));
    run(make_call(w, plan).call, chance(0.7) ? &pool : nullptr);
    if (variant == 0) {
      check_results(w);
      first = canonical_results(w);
    } else {
      const std::vector<Bytes> again = canonical_results(w);
      for (size_t i = 0; i < w.problems.size(); ++i) {
        if (first[i] != again[i]) fail(w, w.problems[i], "bits depend on the plan");
      }
    }
  }
}

// Descriptors of nonsense may compute nonsense, but only inside C.
void check_nonsense(DType dtype) {
  Workload w = random_workload(dtype, dtype, 3);
  PlanData plan;
  auto number = [] {
    return static_cast<int32_t>(chance(0.6) ? uniform(-3, 9) : chance(0.5) ? uniform(-300, 300) : uniform(INT32_MIN, INT32_MAX));
  };
  plan.num_tiles = static_cast<int32_t>(uniform(0, 30));
  plan.runs.resize(chance(0.5) ? plan.num_tiles : uniform(0, plan.num_tiles));
  for (TileRun& run : plan.runs) {
    run = {number(), number(), number(), number(), number(), number(), number(), number(), number(), number(), number(), number()};
    if (chance(0.5)) run.problem = static_cast<int32_t>(uniform(0, 2)), run.strategy = static_cast<int32_t>(uniform(0, kNumTiles - 1));
  }
  if (chance(0.5)) plan.block_first = {number(), number(), number(), number()};
  run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
  for (const Problem& p : w.problems) {
    Bytes outside = w.buffers[p.c.buffer];
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          std::fill_n(outside.begin() + element_of(p.c, p, batch, i, j) * size_of(dtype), size_of(dtype), kUntouched);
        }
      }
    }
    if (std::any_of(outside.begin(), outside.end(), [](unsigned char byte) { return byte != kUntouched; })) {
      fail(w, p, "nonsense written outside of C");
    }
  }
}

// All 65536 values pass unchanged, and sums of two round to nearest even.
void check_halves(DType dtype) {
  const int count = 65536;
  Workload w{dtype, dtype, {}, {}, 2, {{0, 2}}, {}, {}};
  Problem p{};
  p.m = count, p.n = 1, p.k = 2, p.batch = p.inner_batch = 1;
  p.a = {0, 0, 0, 1, count, {0, 0}}, p.b = {1, 0, 0, 1, 1, {0, 0}}, p.c = {2, 0, 0, 1, 1, {0, 0}};
  w.problems = {p};
  for (const double scale : {0.0, 1.0}) {
    w.buffers = {Bytes(4 * count), Bytes(4), Bytes(2 * count)};
    for (int i = 0; i < count; ++i) {
      const uint16_t bits = static_cast<uint16_t>(i);
      std::memcpy(&w.buffers[0][2 * i], &bits, 2);
      put(dtype, &w.buffers[0][2 * (count + i)],
          std::ldexp(std::fabs(from_half(bits, exponent_bits(dtype))) < INFINITY ? uniform(-9, 9) : 0, -4));
    }
    put(dtype, &w.buffers[1][0], 1.0);
    put(dtype, &w.buffers[1][2], scale);
    const PlanData plan = make_plan(w, kNumTiles - 1, true, false, 0);
    run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
    for (int i = 0; i < count; ++i) {
      const float a = static_cast<float>(from_half(static_cast<uint16_t>(i), exponent_bits(dtype)));
      const float b = static_cast<float>(get(dtype, &w.buffers[0][2 * (count + i)]).real() * scale);
      const uint16_t got = read<uint16_t>(&w.buffers[2][2 * i]), expected = to_half(static_cast<double>(a + b), exponent_bits(dtype));
      const bool both_nan = std::isnan(a) && std::isnan(from_half(got, exponent_bits(dtype)));
      const bool zeros = a + b == 0 && (got & 0x7fff) == 0;  // -0 + 0 is 0
      if (got != expected && !both_nan && !zeros) fail(w, p, "half rounded wrongly", i, 0, got, expected);
    }
  }
}

// Each activation of numbers of all magnitudes, to a few units in the last place.
void check_activations(DType dtype) {
  std::vector<double> inputs = {0, -0.0, NAN, INFINITY, -INFINITY, 1e30, -1e30};
  for (int i = 0; i < 4000; ++i) inputs.push_back(std::ldexp(uniform(-(1 << 20), 1 << 20), static_cast<int>(-uniform(13, 60))));
  for (int i = 0; i < 4000; ++i) inputs.push_back(std::ldexp(uniform(-(1 << 20), 1 << 20), -16));
  const int count = static_cast<int>(inputs.size());
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::silu, Activation::tanh, Activation::sigmoid}) {
    Workload w{dtype, dtype, {}, {}, 2, {{0, 1}}, {}, {}};
    Problem p{};
    p.m = 1, p.n = count, p.k = 1, p.batch = p.inner_batch = 1;
    p.a = {0, 0, 0, 1, 1, {0, 0}}, p.b = {1, 0, 0, count, 1, {0, 0}}, p.c = {2, 0, 0, count, 1, {0, 0}};
    w.problems = {p};
    Epilogue e{{1, 0, -1, 0, 0}, {0, 0, -1, 0, 0}, {}, {}, activation, 0};
    e.source.buffer = e.bias.buffer = -1;
    w.epilogues = {e};
    const int size = size_of(dtype);
    w.buffers = {Bytes(size), Bytes(count * size), Bytes(count * size)};
    put(dtype, &w.buffers[0][0], 1.0);
    for (int i = 0; i < count; ++i) put(dtype, &w.buffers[1][i * size], inputs[i]);
    const PlanData plan = make_plan(w, kNumTiles - 1, true, false, 0);
    run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
    for (int i = 0; i < count; ++i) {
      const double x = get(dtype, &w.buffers[1][i * size]).real(), expected = activate(x, activation);
      const double got = get(dtype, &w.buffers[2][i * size]).real();
      // The sigmoid of a large negative number magnifies the rounding of its argument, which in gelu isn't x itself.
      const double slope = activation == Activation::gelu && x < 0 ? 1 + 2 * (std::fabs(x) + 0.05 * std::fabs(x * x * x)) : 1;
      const double smallest = dtype == DType::f32 ? 0x1p-148 : 0x1p-1073;
      if (!agrees(got, expected, 8 * slope * epsilon(dtype) * std::fabs(expected) + smallest * std::fmax(1, std::fabs(x)))) {
        fail(w, p, "activation", static_cast<int64_t>(activation), i, got, expected);
      }
    }
  }
}

void check(int rounds) {
  Pool pool(2);
  for (DType dtype : {DType::f32, DType::f64}) check_activations(dtype);
  for (DType dtype : {DType::bf16, DType::f16}) check_halves(dtype);
  for (int round = 0; round < rounds && !failures; ++round) {
    for (int i = 0; i < kDTypes; ++i) {
      const DType dtype = static_cast<DType>(i);
      check_random(dtype, dtype, pool);
      if (size_of(dtype) == 2) check_random(dtype, DType::f32, pool);
      check_nonsense(dtype);
    }
  }
  std::printf("check: %d rounds, %d failures\n", rounds, failures);
}

// Plans and buffers die as soon as each call returns: a helper that came late and still looked would be caught by a sanitizer.
void stress(double seconds) {
  Pool pool(2);
  std::atomic<int64_t> calls{0}, wrong{0};
  Workload model = random_workload(DType::f32, DType::f32, 6);
  model.epilogues.clear();
  Problem big = model.problems[0];
  big.m = big.n = 150, big.k = 40, big.batch = big.inner_batch = 1;
  big.a = lay_out(model, DType::f32, big, big.m, big.k, false, true);
  big.b = lay_out(model, DType::f32, big, big.k, big.n, false, true);
  big.c = lay_out(model, DType::f32, big, big.m, big.n, true, true);
  model.problems.push_back(big);
  model.k_ranges.emplace_back(0, big.k);
  const PlanData plan = make_plan(model, 0, true, false, 0);
  run(make_call(model, plan).call, static_cast<Pool*>(nullptr));
  const std::vector<Bytes> expected = model.buffers;
  std::vector<std::thread> callers;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (int i = 0; i < 32; ++i) {
    callers.emplace_back([&] {
      while (std::chrono::steady_clock::now() < end) {
        auto w = std::make_unique<Workload>(model);
        auto mine = std::make_unique<PlanData>(plan);
        for (const Problem& p : w->problems) std::fill(w->buffers[p.c.buffer].begin(), w->buffers[p.c.buffer].end(), kUntouched);
        run(make_call(*w, *mine).call, &pool);
        wrong += w->buffers != expected;
        ++calls;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  failures += wrong != 0;
  std::printf("stress: %ld calls, %ld wrong\n", calls.load(), wrong.load());
}

// ---- Timing.

struct Shape {
  int m, n, k;
};

Workload plain_workload(DType dtype, const std::vector<Shape>& shapes, const std::string& layout) {
  Workload w{dtype, dtype, {}, {}, 0, {}, {}, {}};
  auto operand = [&](int64_t rows, int64_t cols, bool transposed) {
    Operand x{};
    x.buffer = static_cast<int32_t>(w.buffers.size());
    x.row_stride = transposed ? 1 : cols, x.col_stride = transposed ? rows : 1;
    Bytes buffer((rows * cols * size_of(dtype) + 63) / 64 * 64);  // so that it begins at a cache line, as XLA's do
    const int parts = is_complex(dtype) ? 2 : 1, size = size_of(dtype) / parts;
    const DType part = size == 8 ? DType::f64 : size == 4 ? DType::f32 : dtype;
    for (int64_t i = 0; i < rows * cols * parts; ++i) put(part, &buffer[i * size], static_cast<double>(i % 17) / 16 - 0.5);
    w.buffers.push_back(std::move(buffer));
    return x;
  };
  for (const Shape& s : shapes) {
    Problem p{};
    p.m = s.m, p.n = s.n, p.k = s.k, p.batch = p.inner_batch = 1;
    p.a = operand(s.m, s.k, layout[0] == 't');
    p.b = operand(s.k, s.n, layout[1] == 't');
    w.problems.push_back(p);
    w.k_ranges.emplace_back(0, s.k);
  }
  w.num_operands = static_cast<int>(w.buffers.size());
  for (Problem& p : w.problems) p.c = operand(p.m, p.n, false);
  return w;
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
// The best of many: other work on the machine only ever adds time.
double best_seconds(const std::function<void()>& f) {
  f();
  const int rounds = std::clamp(static_cast<int>(0.2 / seconds_of(f)), 4, 400);
  double best = seconds_of(f);
  for (int i = 0; i < rounds; ++i) best = std::min(best, seconds_of(f));
  return best;
}

double flops_of(const Workload& w) {
  double flops = 0;
  for (const Problem& p : w.problems) flops += (is_complex(w.dtype) ? 8.0 : 2.0) * p.m * p.n * p.k * p.batch;
  return flops;
}
double gflops(Workload& w, int strategy, Pool* pool) {
  const PlanData plan = make_plan(w, strategy, true, false, 0);
  const Call call = make_call(w, plan);
  return flops_of(w) / best_seconds([&] { run(call.call, pool); }) / 1e9;
}

void time_ranges(DType dtype) {
  Pool pool(2, /*pinned=*/true);
  std::printf("%-10s %s, GFLOP/s; columns: CPU tiles of the catalogue, 1 thread then 2\n", isa(), kDTypeNames[static_cast<int>(dtype)]);
  for (int limit : {128, 256, 512}) {
    for (int batch : {8, 64, 256}) {
      rng.seed(limit);
      std::vector<Shape> shapes(batch);
      for (Shape& s : shapes)
        s = {static_cast<int>(uniform(16, limit)), static_cast<int>(uniform(16, limit)), static_cast<int>(uniform(16, limit))};
      Workload w = plain_workload(dtype, shapes, "nn");
      std::printf("[16,%3d] x %-3d ", limit, batch);
      for (Pool* with : {static_cast<Pool*>(nullptr), &pool}) {
        for (int tile = 0; tile < kNumTiles; ++tile) {
          if (!kTiles[tile].is_gpu()) std::printf(" %6.1f", gflops(w, tile, with));
        }
        std::printf(" |");
      }
      std::printf("\n");
    }
  }
}

void time_file(const char* path, DType dtype, const std::string& layout) {
  std::vector<Shape> shapes;
  std::FILE* file = std::fopen(path, "r");
  Shape s;
  while (file && std::fscanf(file, "%d %d %d", &s.m, &s.n, &s.k) == 3) shapes.push_back(s);
  if (file) std::fclose(file);
  if (shapes.empty()) {
    std::printf("%s holds no \"M N K\" lines\n", path);
    return;
  }
  Pool pool(2, /*pinned=*/true);
  Workload w = plain_workload(dtype, shapes, layout);
  std::printf("%-60s %s %s %3zu problems:", path, kDTypeNames[static_cast<int>(dtype)], layout.c_str(), shapes.size());
  for (Pool* with : {static_cast<Pool*>(nullptr), &pool}) {
    for (int tile = 0; tile < kNumTiles; ++tile) {
      if (!kTiles[tile].is_gpu()) std::printf(" %6.1f", gflops(w, tile, with));
    }
    std::printf(" |");
  }
  std::printf("\n");
}

DType dtype_named(const char* name) {
  for (int i = 0; i < kDTypes; ++i) {
    if (name && std::strcmp(name, kDTypeNames[i]) == 0) return static_cast<DType>(i);
  }
  return DType::f32;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  const char* second = argc > 2 ? argv[2] : nullptr;
  std::printf("isa: %s\n", isa());
  if (mode == "check") check(second ? std::atoi(second) : 100);
  if (mode == "stress") stress(second ? std::atof(second) : 3);
  if (mode == "time") time_ranges(dtype_named(second));
  if (mode == "file" && second) time_file(second, dtype_named(argc > 3 ? argv[3] : nullptr), argc > 4 ? argv[4] : "nn");
  return failures != 0;
}
