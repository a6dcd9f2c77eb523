#include "cpu/walk.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <cstring>

#include "cpu/kernels.h"

#if defined(__x86_64__)
#define VBGEMM_PAUSE() __builtin_ia32_pause()
#else
#define VBGEMM_PAUSE() static_cast<void>(0)
#endif

namespace vbgemm {
namespace {

constexpr int kElementSize[kDTypes] = {4, 8, 8, 16, 2, 2};
constexpr double kWorkWorthAThread = 5e5;  // multiply-adds: what a core does while another one wakes up
constexpr int kPauses = 200;               // before the caller goes to sleep: about the time of a small block

struct Range {
  int64_t begin, end;
};

Range cut(int64_t begin, int64_t end, int64_t size) {
  const int64_t first = std::clamp<int64_t>(begin, 0, std::max<int64_t>(size, 0));
  return {first, std::clamp<int64_t>(end, first, std::max(size, first))};
}

Matrix submatrix(const CpuCall& call, DType dtype, const Operand& x, const Problem& problem, int64_t batch, int64_t row, int64_t col) {
  const int64_t inner = std::max(problem.inner_batch, 1);
  const int64_t element =
      x.offset + batch / inner * x.batch_stride[0] + batch % inner * x.batch_stride[1] + row * x.row_stride + col * x.col_stride;
  char* base = static_cast<char*>(call.buffers[x.buffer]);
  return {base + element * kElementSize[static_cast<int>(dtype)], x.row_stride, x.col_stride};
}

// A scalar known at trace time, or an element of a buffer of accumulators.
void read_scalar(const CpuCall& call, const Scalar& scalar, double (&to)[2]) {
  to[0] = scalar.real, to[1] = scalar.imag;
  if (scalar.buffer < 0) return;
  const bool is_double = call.dtype == DType::f64 || call.dtype == DType::c128;
  const int parts = call.dtype == DType::c64 || call.dtype == DType::c128 ? 2 : 1, size = is_double ? 8 : 4;
  const char* from = static_cast<const char*>(call.buffers[scalar.buffer]) + scalar.offset * parts * size;
  to[1] = 0;
  for (int part = 0; part < parts; ++part) {
    float single;
    std::memcpy(is_double ? static_cast<void*>(&to[part]) : &single, from + part * size, size);
    if (!is_double) to[part] = single;
  }
}

// The run that holds a tile: the last one that begins at or before it.
const TileRun& run_of(const Descriptors& plan, int64_t tile) {
  if (plan.num_runs == plan.num_tiles) return plan.runs[tile];
  const TileRun* after =
      std::upper_bound(plan.runs + 1, plan.runs + plan.num_runs, tile, [](int64_t t, const TileRun& run) { return t < run.first_tile; });
  return after[-1];
}

// The problem table has been checked against the buffers; whatever a tile's descriptor says is cut to its problem here.
void run_tile(const CpuCall& call, int64_t tile, Scratch& scratch) {
  const Descriptors& plan = call.plan;
  const TileRun& run = run_of(plan, tile);
  const int64_t place = plan.num_runs == plan.num_tiles ? 0 : tile - run.first_tile;
  const bool exists = run.problem >= 0 && run.problem < plan.num_problems && run.strategy >= 0 && run.strategy < kNumTiles;
  if (!exists || run.tiles_y <= 0 || run.tiles_x <= 0 || place < 0) return;

  const Problem& problem = plan.problems[run.problem];
  const TileShape& shape = kTiles[run.strategy];
  const int64_t batch = run.batch + place / run.tiles_x / run.tiles_y;
  const int64_t row = run.row + place / run.tiles_x % run.tiles_y * shape.m, col = run.col + place % run.tiles_x * shape.n;
  const Range m = cut(row, row + shape.m, problem.m), n = cut(col, col + shape.n, problem.n);
  const Range k = cut(run.k_begin, run.k_end, problem.k);
  if (batch < 0 || batch >= problem.batch || m.begin == m.end || n.begin == n.end) return;

  const Matrix a = submatrix(call, call.dtype, problem.a, problem, batch, m.begin, k.begin);
  const Matrix b = submatrix(call, call.dtype, problem.b, problem, batch, k.begin, n.begin);
  const Matrix c = submatrix(call, call.out_dtype, problem.c, problem, batch, m.begin, n.begin);
  Product product{call.dtype, call.out_dtype, m.end - m.begin, n.end - n.begin, k.end - k.begin, a, b, c, nullptr, problem.m, problem.n};
  Finish finish;
  if (plan.epilogues) {
    const Epilogue& epilogue = plan.epilogues[run.problem];
    const auto addend = [&](const Operand& x) {
      return x.buffer < 0 ? Matrix{} : submatrix(call, call.out_dtype, x, problem, batch, m.begin, n.begin);
    };
    read_scalar(call, epilogue.alpha, finish.alpha);
    read_scalar(call, epilogue.beta, finish.beta);
    finish.source = addend(epilogue.source), finish.bias = addend(epilogue.bias), finish.activation = epilogue.activation;
    product.finish = &finish;
  }
  kernels().multiply(product, scratch);
}

}  // namespace

void run_blocks(const CpuCall& call, int64_t begin, int64_t end) {
  thread_local Scratch scratch;
  const Descriptors& plan = call.plan;
  if (plan.num_runs <= 0) return;
  for (int64_t block = begin; block < end; ++block) {
    const Range tiles = plan.block_first ? cut(plan.block_first[block], plan.block_first[block + 1], plan.num_tiles)
                                         : cut(block, block + 1, plan.num_tiles);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) run_tile(call, tile, scratch);
  }
}

int64_t useful_threads(const CpuCall& call, int64_t available) {
  const int64_t most = std::min<int64_t>(available, call.plan.num_blocks);
  double work = 0;
  for (int32_t i = 0; i < call.plan.num_problems && work < most * kWorkWorthAThread; ++i) {
    const Problem& p = call.plan.problems[i];
    const double m = p.m, n = p.n, k = p.k;
    work += p.batch * (m * n * k + 8 * (m * n + m * k + k * n));  // moving an element takes as long as a few multiply-adds
  }
  return std::min(most, static_cast<int64_t>(work / kWorkWorthAThread));
}

// Helpers often wake on the core of the thread that woke them and stay there, one running while the other waits, for longer than a call
// takes. A thread that finds its core taken moves to another one that its affinity allows and that isn't taken, if there is one.
bool take_core(std::atomic<uint64_t> (&taken)[kMaxCores / 64], int core) {
  return core < 0 || core >= kMaxCores || !(taken[core / 64].fetch_or(uint64_t{1} << core % 64) >> core % 64 & 1);
}
void find_core([[maybe_unused]] std::atomic<uint64_t> (&taken)[kMaxCores / 64]) {
#if defined(__linux__)
  if (take_core(taken, sched_getcpu())) return;
  cpu_set_t allowed, wanted;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  wanted = allowed;
  for (int core = 0; core < kMaxCores; ++core) {
    if (taken[core / 64] >> core % 64 & 1) CPU_CLR(core, &wanted);
  }
  if (CPU_COUNT(&wanted) == 0 || sched_setaffinity(0, sizeof wanted, &wanted)) return;
  take_core(taken, sched_getcpu());
  sched_setaffinity(0, sizeof allowed, &allowed);  // from here on it may be moved again
#endif
}

SharedCall::SharedCall(const CpuCall& call, int64_t threads)
    : call_(call), blocks_(call.plan.num_blocks), chunk_(std::clamp<int64_t>(blocks_ / (32 * threads), 1, 64)) {
  std::fegetenv(&environment_);
  find_core(taken_);
}

bool SharedCall::claim(int64_t& begin, int64_t& end) {
  begin = next_.fetch_add(chunk_);
  end = std::min(begin + chunk_, blocks_);
  return begin < blocks_;
}

void SharedCall::help(bool caller) {
  int64_t begin, end;
  if (next_ >= blocks_) return;
  if (!caller) find_core(taken_);
  if (!claim(begin, end)) return;
  std::fenv_t own;
  std::fegetenv(&own);
  std::fesetenv(&environment_);
  do {
    run_blocks(call_, begin, end);
    if (done_.fetch_add(end - begin) + end - begin == blocks_) {
      std::lock_guard<std::mutex> lock(mutex_);
      all_done_.notify_all();
    }
  } while (claim(begin, end));
  std::fesetenv(&own);
}

void SharedCall::wait() {
  for (int i = 0; i < kPauses && done_ != blocks_; ++i) VBGEMM_PAUSE();
  if (done_ == blocks_) return;
  std::unique_lock<std::mutex> lock(mutex_);
  all_done_.wait(lock, [this] { return done_ == blocks_; });
}

}  // namespace vbgemm
