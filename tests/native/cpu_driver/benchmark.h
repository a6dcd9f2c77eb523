// Timing of the CPU kernels: GFLOP/s of batches, the best of many runs.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cpu_driver/pool.h"
#include "cpu_driver/workload.h"

namespace vbgemm::driver {

struct Shape {
  int m, n, k;
};

inline Workload plain_workload(DType dtype, const std::vector<Shape>& shapes, const std::string& layout) {
  Workload w{kind_of(dtype, dtype), dtype, {}, {}, 0, {}, {}, {}};
  auto operand = [&](int64_t rows, int64_t cols, bool transposed) {
    Operand x{};
    x.buffer = static_cast<int32_t>(w.buffers.size());
    x.row_stride = transposed ? 1 : cols, x.col_stride = transposed ? rows : 1;
    // The buffer begins at a cache line, as XLA's do, and ends well before the guard page: a masked load that touches the guard takes a
    // thousand cycles (docs/design/cpu.md, P6).
    Bytes buffer((rows * cols * size_of(dtype) + 63) / 64 * 64 + 4096);
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

inline double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
// Returns the best of many runs, because other work on the machine can only add time.
inline double best_seconds(const std::function<void()>& f) {
  f();
  const int rounds = std::clamp(static_cast<int>(0.2 / seconds_of(f)), 4, 400);
  double best = seconds_of(f);
  for (int i = 0; i < rounds; ++i) best = std::min(best, seconds_of(f));
  return best;
}

inline double flops_of(const Workload& w) {
  double flops = 0;
  for (const Problem& p : w.problems) flops += (is_complex(w.lhs()) ? 8.0 : 2.0) * p.m * p.n * p.k * p.batch;
  return flops;
}
inline double gflops(Workload& w, int tile_id, Pool* pool) {
  const PlanData plan = make_plan(w, tile_id, true, false, 0);
  const WorkloadCall call = make_call(w, plan);
  return flops_of(w) / best_seconds([&] { run(call.call, pool); }) / 1e9;
}

// Returns the bytes of all buffers: what is read once, or written.
inline int64_t bytes_of(const Workload& w) {
  int64_t elements = 0;
  for (const Problem& p : w.problems) elements += int64_t{p.m} * p.k + int64_t{p.k} * p.n + int64_t{p.m} * p.n;
  return elements * size_of(w.lhs());
}

// Returns the GB/s of c = a + 3 b, half of it computed by a thread of the pool, where a, b and c have `bytes` bytes together. This is what
// the memory, or a cache that holds as much, provides to such loops.
inline double triad_rate(int64_t bytes, Pool& pool) {
  const int64_t count = std::max<int64_t>(bytes / (3 * sizeof(double)), 2);
  std::vector<double> a(count, 1), b(count, 2), c(count);
  const auto add = [&](int64_t begin, int64_t end) {
    const double *x = a.data(), *y = b.data();
    double* z = c.data();
    for (int64_t i = begin; i < end; ++i) z[i] = x[i] + 3 * y[i];
  };
  const double seconds = best_seconds([&] {
    std::atomic<bool> done = false;
    pool.Schedule([&] {
      add(count / 2, count);
      done = true;
    });
    add(0, count / 2);
    while (!done) std::this_thread::yield();
  });
  return 3.0 * sizeof(double) * count / seconds / 1e9;
}

inline void time_ranges(DType dtype) {
  Pool pool(2, /*pinned=*/true);
  std::printf("%-10s %s, GFLOP/s; columns: CPU tiles of the catalogue, 1 thread then 2\n", isa(), name_of(dtype));
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

// Returns the products of a workload file, "M N K" a line.
inline std::vector<Shape> read_shapes(const char* path) {
  std::vector<Shape> shapes;
  std::FILE* file = std::fopen(path, "r");
  Shape s;
  while (file && std::fscanf(file, "%d %d %d", &s.m, &s.n, &s.k) == 3) shapes.push_back(s);
  if (file) std::fclose(file);
  if (shapes.empty()) std::printf("%s holds no \"M N K\" lines\n", path);
  return shapes;
}

inline void time_file(const char* path, DType dtype, const std::string& layout) {
  const std::vector<Shape> shapes = read_shapes(path);
  if (shapes.empty()) return;
  Pool pool(2, /*pinned=*/true);
  Workload w = plain_workload(dtype, shapes, layout);
  std::printf("%-60s %s %s %3zu problems:", path, name_of(dtype), layout.c_str(), shapes.size());
  double best = 0;
  for (Pool* with : {static_cast<Pool*>(nullptr), &pool}) {
    for (int tile = 0; tile < kNumTiles; ++tile) {
      if (kTiles[tile].is_gpu()) continue;
      const double rate = gflops(w, tile, with);
      best = std::max(best, rate);
      std::printf(" %6.1f", rate);
    }
    std::printf(" |");
  }
  const int64_t bytes = bytes_of(w);
  std::printf(" %.1f GB/s at best, a triad %.1f\n", static_cast<double>(bytes) * best / flops_of(w), triad_rate(bytes, pool));
}

inline DType dtype_named(const char* name) {
  for (int i = 0; i < kDTypes; ++i) {
    if (name && std::strcmp(name, name_of(static_cast<DType>(i))) == 0) return static_cast<DType>(i);
  }
  return DType::f32;
}

}  // namespace vbgemm::driver
