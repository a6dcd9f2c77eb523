// The driver's self-check: random problems through every tile, compared bit for bit with the sum in increasing k that the kernels promise,
// and with float64. Operands have NaN on both sides, results a pattern that must survive, so that a stray read or write shows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../kernels.h"
#include "host_plan.h"

namespace vbgemm::driver {

constexpr int kGuard = 64;  // elements on either side of a buffer

template <class T>
struct HostBuffer {
  std::vector<T> elements;  // with the guards
  T* first() { return elements.data() + kGuard; }
  const T* first() const { return elements.data() + kGuard; }
};

template <class T>
constexpr DType dtype_of() {
  return sizeof(T) == 4 ? DType::f32 : DType::f64;
}

// A call with its data, built problem by problem.
template <class T>
class Trial {
 public:
  explicit Trial(uint64_t seed) : random_(seed) { plan_.dtype = dtype_of<T>(); }

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int one_of(std::initializer_list<int> values) { return values.begin()[between(0, static_cast<int>(values.size()) - 1)]; }

  HostPlan& plan() { return plan_; }
  std::vector<Box>& boxes() { return boxes_; }

  // A problem with random layouts: each operand row-major, transposed, padded or strided both ways, at an aligned or an odd offset;
  // batches with one or two strides, some of them 0.
  int add(int m, int n, int k, int batch, bool plain = false) {
    Problem p{};
    p.m = m, p.n = n, p.k = k, p.batch = batch;
    p.inner_batch = batch % 2 == 0 && between(0, 1) ? batch / 2 : std::max(batch, 1);
    p.a = operand(m, k, p, plain, true);
    p.b = operand(k, n, p, plain, true);
    p.c = operand(m, n, p, plain, false);
    plan_.problems.push_back(p);
    return static_cast<int>(plan_.problems.size()) - 1;
  }
  void cover(int problem, int strategy) { boxes_.push_back(whole(plan_.problems, problem, strategy)); }

  std::vector<HostBuffer<T>>& buffers() { return buffers_; }

  // Runs the call and reads the results back.
  void upload() {
    for (const HostBuffer<T>& buffer : buffers_) memory_.emplace_back(buffer.elements);
    for (const DeviceMemory& memory : memory_) pointers_.push_back(memory.data() + kGuard * sizeof(T));
    workspace_.emplace_back(workspace_bytes(pointers_.size()));
    device_.emplace_back(plan_);
  }
  void enqueue(const OwnStream& stream) { require(launch(call_of(plan_, device_[0], pointers_, workspace_[0]), stream.get()), "launch"); }
  void poison() {
    for (size_t i = 0; i < buffers_.size(); ++i) memory_[i].write(buffers_[i].elements.data());
  }
  std::vector<std::vector<T>> results() {
    std::vector<std::vector<T>> all;
    for (const Problem& p : plan_.problems) {
      all.emplace_back(buffers_[p.c.buffer].elements.size());
      memory_[p.c.buffer].read(all.back().data());
    }
    return all;
  }
  const std::vector<const void*>& pointers() const { return pointers_; }
  const Descriptors& descriptors() const { return device_[0].descriptors; }

  // Faults of the results: elements that differ from the promised bits or are too far from float64, and anything written elsewhere.
  int faults(const std::vector<std::vector<T>>& results) const {
    int faults = 0;
    std::vector<std::vector<T>> expected;
    for (const Problem& p : plan_.problems) expected.push_back(buffers_[p.c.buffer].elements);
    for (const Box& box : boxes_) {
      const TileShape& shape = kTiles[box.strategy];
      const Problem& p = plan_.problems[box.problem];
      const int rows = std::min(p.m, box.row + box.tiles_y * shape.m), cols = std::min(p.n, box.col + box.tiles_x * shape.n);
      for (int batch = box.batch; batch < box.batch + box.batches; ++batch) {
        for (int row = box.row; row < rows; ++row) {
          for (int col = box.col; col < cols; ++col) {
            bool close = true;
            T& to = expected[box.problem][kGuard + index(p.c, p, batch, row, col)];
            to = element(p, batch, row, col, box.k_begin, box.k_end, results[box.problem][kGuard + index(p.c, p, batch, row, col)], close);
            faults += !close;
          }
        }
      }
    }
    for (size_t i = 0; i < results.size(); ++i) {
      for (size_t e = 0; e < results[i].size(); ++e) faults += !same(results[i][e], expected[i][e]);
    }
    return faults;
  }

  // Only what must hold for any descriptors: nothing outside the elements of C is written.
  int strays(const std::vector<std::vector<T>>& results) const {
    int faults = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      const Problem& p = plan_.problems[i];
      std::vector<bool> inside(results[i].size());
      for (int batch = 0; batch < p.batch; ++batch) {
        for (int row = 0; row < p.m; ++row) {
          for (int col = 0; col < p.n; ++col) inside[kGuard + index(p.c, p, batch, row, col)] = true;
        }
      }
      for (size_t e = 0; e < results[i].size(); ++e) faults += !inside[e] && !same(results[i][e], buffers_[p.c.buffer].elements[e]);
    }
    return faults;
  }

  static bool same(T a, T b) { return a == b || (std::isnan(a) && std::isnan(b)); }

 private:
  static int64_t index(const Operand& x, const Problem& p, int batch, int row, int col) {
    return x.offset + batch / p.inner_batch * x.batch_stride[0] + batch % p.inner_batch * x.batch_stride[1] + row * x.row_stride +
           col * x.col_stride;
  }

  T element(const Problem& p, int batch, int row, int col, int k_begin, int k_end, T found, bool& close) const {
    const T* a = buffers_[p.a.buffer].first();
    const T* b = buffers_[p.b.buffer].first();
    T sum = 0;
    double wide = 0, size = 0;
    for (int k = k_begin; k < k_end; ++k) {
      const T x = a[index(p.a, p, batch, row, k)], y = b[index(p.b, p, batch, k, col)];
      sum = std::fma(x, y, sum);
      wide += static_cast<double>(x) * y;
      size += std::fabs(static_cast<double>(x) * y);
    }
    close = !std::isfinite(wide) || std::fabs(found - wide) <= (k_end - k_begin + 4) * std::numeric_limits<T>::epsilon() * size;
    return sum;
  }

  Operand operand(int rows, int cols, const Problem& p, bool plain, bool input) {
    Operand x{};
    x.buffer = static_cast<int32_t>(buffers_.size());
    const int layout = plain ? 0 : between(0, 5);
    const int64_t pad = between(0, 1) ? 4 : between(0, 5);
    x.row_stride = cols, x.col_stride = 1;                                                 // row-major
    if (layout == 2) x.row_stride = 1, x.col_stride = rows;                                // transposed
    if (layout == 3) x.row_stride = cols + pad;                                            // a view with a longer row
    if (layout == 4) x.row_stride = 1, x.col_stride = rows + pad;                          // the same, transposed
    if (layout == 5) x.row_stride = 3 * static_cast<int64_t>(cols) + 1, x.col_stride = 3;  // contiguous in no way
    x.offset = plain ? 0 : one_of({0, 0, 4, 1, 3});
    const int64_t extent = std::max(rows - 1, 0) * x.row_stride + std::max(cols - 1, 0) * x.col_stride + 1;
    x.batch_stride[1] = input && !plain && between(0, 3) == 0 ? 0 : extent + pad;
    x.batch_stride[0] = input && !plain && between(0, 3) == 0 ? 0 : p.inner_batch * (extent + pad);
    const int outer = p.inner_batch ? std::max(p.batch / p.inner_batch, 1) : 1;
    const int64_t size = x.offset + (outer - 1) * x.batch_stride[0] + std::max(p.inner_batch - 1, 0) * x.batch_stride[1] + extent;

    HostBuffer<T> buffer;
    buffer.elements.assign(size + 2 * kGuard, input ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(-777));
    std::uniform_real_distribution<double> value(-1, 1);
    for (int64_t i = 0; input && i < size; ++i) buffer.first()[i] = static_cast<T>(value(random_));
    buffers_.push_back(std::move(buffer));
    return x;
  }

  std::mt19937_64 random_;
  HostPlan plan_;
  std::vector<Box> boxes_;
  std::vector<HostBuffer<T>> buffers_;
  std::vector<DeviceMemory> memory_, workspace_;
  std::vector<const void*> pointers_;
  std::vector<DevicePlan> device_;
};

struct CheckOptions {
  bool small = false;   // few and tiny problems, for compute-sanitizer
  bool replays = true;  // graphs and repeated runs
};

class Check {
 public:
  explicit Check(const CheckOptions& options) : options_(options) {}

  // Prints a line a group; true where all passed.
  bool run() {
    groups<float>("float32");
    groups<double>("float64");
    std::printf("%s: %d faults in %d groups\n", faults_ ? "FAIL" : "PASS", faults_, groups_);
    return faults_ == 0;
  }

 private:
  void report(const std::string& name, size_t problems, int faults) {
    std::printf("%-4s %-52s %5zu problems %d faults\n", faults ? "FAIL" : "ok", name.c_str(), problems, faults);
    std::fflush(stdout);
    faults_ += faults;
    ++groups_;
  }

  template <class T>
  void finish(const std::string& name, Trial<T>& trial, bool single, bool many) {
    if (many) {
      lay_out(trial.plan(), trial.boxes(), single, [&trial] { return trial.between(1, 5); });
    } else {
      lay_out(trial.plan(), trial.boxes(), single);
    }
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
    report(name, trial.plan().problems.size(), trial.faults(trial.results()));
  }

  template <class T>
  static std::vector<int> tiles() {
    std::vector<int> rows;
    for (int i = 0; i < kNumTiles; ++i) {
      if (kTiles[i].is_gpu() && kTiles[i].built_for(dtype_of<T>())) rows.push_back(i);
    }
    return rows;
  }

  // Sizes around a tile's edges, K around its steps.
  template <class T>
  void one_tile(const std::string& dtype, int strategy) {
    const TileShape& tile = kTiles[strategy];
    Trial<T> trial(1000 + strategy);
    for (int i = 0; i < (options_.small ? 3 : 16); ++i) {
      const int m = trial.one_of({1, 7, tile.m - 1, tile.m, tile.m + 1, options_.small ? tile.m : 2 * tile.m + 3});
      const int n = trial.one_of({1, 5, tile.n - 1, tile.n, tile.n + 1, options_.small ? tile.n : 2 * tile.n + 12});
      const int k =
          trial.one_of({0, 1, 3, tile.k - 1, tile.k, tile.k + 1, 2 * tile.k + 4, 5 * tile.k + 4, options_.small ? 17 : 13 * tile.k + 5});
      trial.cover(trial.add(m, n, k, trial.one_of({1, 1, 2, 3}), i % 4 == 0), strategy);
    }
    finish(dtype + " " + tile.name + "/" + std::to_string(tile.threads), trial, strategy % 2, strategy % 3 == 0);
  }

  // Problems of all sizes, some cut in two bands of rows with different tiles.
  template <class T>
  void mixed(const std::string& name, uint64_t seed, bool single, bool many) {
    Trial<T> trial(seed);
    const std::vector<int> rows = tiles<T>();
    for (int i = 0; i < (options_.small ? 8 : 60); ++i) {
      const auto extent = [&] {
        return options_.small ? trial.one_of({0, 1, 13, 33}) : trial.one_of({0, 1, 2, 13, 31, 33, 64, 97, 128, 131, 200});
      };
      const int m = extent(), n = extent(), k = extent();
      const int problem = trial.add(m, n, k, trial.one_of({0, 1, 1, 2, 4}));
      const auto any = [&] { return rows[trial.between(0, static_cast<int>(rows.size()) - 1)]; };
      Box box = whole(trial.plan().problems, problem, any());
      if (box.tiles_y > 1) {
        box.tiles_y = 1;
        Box rest = whole(trial.plan().problems, problem, any());
        rest.row = kTiles[box.strategy].m;
        rest.tiles_y = tiles_along(m - rest.row, kTiles[rest.strategy].m);
        trial.boxes().push_back(rest);
      }
      trial.boxes().push_back(box);
    }
    finish(name, trial, single, many);
  }

  template <class T>
  void k_ranges(const std::string& name) {
    Trial<T> trial(5);
    const std::vector<int> rows = tiles<T>();
    for (int i = 0; i < (options_.small ? 4 : 24); ++i) {
      const int k = trial.between(0, 90);
      Box box = whole(trial.plan().problems, trial.add(trial.between(1, 70), trial.between(1, 70), k, 1), rows[i % rows.size()]);
      box.k_begin = trial.between(0, k);
      box.k_end = trial.between(box.k_begin, k);
      trial.boxes().push_back(box);
    }
    finish(name, trial, false, false);
  }

  // A NaN or Inf reaches exactly the elements it should; the comparison with the expected bits sees both.
  template <class T>
  void not_finite(const std::string& name) {
    Trial<T> trial(6);
    for (int strategy : tiles<T>()) {
      const int problem = trial.add(33, 45, 21, 1);
      const Operand& x = strategy % 2 ? trial.plan().problems[problem].a : trial.plan().problems[problem].b;
      trial.buffers()[x.buffer].first()[x.offset + x.row_stride * 3 + x.col_stride * 20] =
          strategy % 4 < 2 ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::infinity();
      trial.cover(problem, strategy);
    }
    finish(name, trial, true, false);
  }

  template <class T>
  void many_pointers(const std::string& name) {
    Trial<T> trial(7);
    const int light = find_tile("small", 128, dtype_of<T>());
    for (int i = 0; i < kMaxParameterPointers / 3 + 100; ++i) {
      trial.cover(trial.add(trial.between(1, 20), trial.between(1, 20), trial.between(0, 9), 1), light);
    }
    finish(name, trial, false, false);
  }

  // Descriptors that lie: whatever they hold, nothing outside C may be written (or, under memcheck, anything outside be read).
  template <class T>
  void insane(const std::string& name) {
    Trial<T> trial(8);
    const std::vector<int> rows = tiles<T>();
    for (int i = 0; i < 20; ++i) {
      trial.cover(trial.add(trial.between(0, 70), trial.between(0, 70), trial.between(0, 40), trial.between(0, 3)), rows[i % rows.size()]);
    }
    lay_out(trial.plan(), trial.boxes(), false, [&trial] { return trial.between(1, 3); });
    const auto lie = [&trial](int32_t& value) {
      const int extreme = std::numeric_limits<int32_t>::max();
      if (trial.between(0, 2) == 0) value = trial.one_of({-extreme - 1, -1, 0, 1, 7, 1000, extreme / 2, extreme});
    };
    for (TileRun& run : trial.plan().runs) {
      for (int32_t* field : {&run.problem, &run.strategy, &run.row, &run.col, &run.batch, &run.k_begin, &run.k_end, &run.first_tile,
                             &run.tiles_y, &run.tiles_x}) {
        lie(*field);
      }
    }
    for (int32_t& first : trial.plan().block_first) lie(first);
    for (Launch& launch : trial.plan().launches) launch.num_blocks += 3, launch.first_block -= 1;
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
    report(name, trial.plan().problems.size(), trial.strays(trial.results()));
  }

  // A grid smaller than the launch's range of blocks.
  void short_grid() {
    Trial<float> trial(9);
    for (int i = 0; i < 6; ++i) trial.cover(trial.add(70, 50, 40, 1), find_tile("medium", 128, DType::f32));
    lay_out(trial.plan(), trial.boxes(), false);
    trial.upload();
    KernelParameters parameters{};
    parameters.plan = trial.descriptors();
    parameters.num_blocks = trial.plan().num_blocks;
    parameters.num_buffers = static_cast<int>(trial.pointers().size());
    std::copy(trial.pointers().begin(), trial.pointers().end(), parameters.table);
    require(launch_kernel(reinterpret_cast<const void*>(vbgemm_t128_light_float32), 5, 128, &parameters, stream_.get()), "launch");
    stream_.wait();
    report("float32 grid of 5 blocks for " + std::to_string(trial.plan().num_blocks), 6, trial.faults(trial.results()));
  }

  template <class T>
  void repeats(const std::string& name) {
    Trial<T> trial(10);
    const std::vector<int> rows = tiles<T>();
    for (int i = 0; i < 30; ++i) {
      trial.cover(trial.add(trial.between(1, 150), trial.between(1, 150), trial.between(1, 150), 1), rows[i % rows.size()]);
    }
    lay_out(trial.plan(), trial.boxes(), false);
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
    const auto first = trial.results();
    int faults = trial.faults(first);
    const Graph graph(stream_, [&] { trial.enqueue(stream_); });
    for (int i = 0; i < 50; ++i) {
      trial.poison();
      if (i % 2) {
        trial.enqueue(stream_);
      } else {
        graph.replay(stream_);
      }
      stream_.wait();
      faults += trial.results() != first;
    }
    report(name, 30, faults);
  }

  // Rows more than 2^31 elements apart: the offsets do not fit into 32 bits.
  void far_apart() {
    constexpr int64_t kStride = (int64_t{1} << 30) + 7;
    constexpr int kRows = 4, kCols = 40, kDepth = 37;
    size_t available = 0, total = 0;
    require(cudaMemGetInfo(&available, &total), "memory");
    if (available < sizeof(float) * (kRows * kStride + (1 << 20))) {
      std::printf("skip float32 offsets beyond 2^31: %zu bytes of memory are free\n", available);
      return;
    }
    Trial<float> trial(11);
    trial.cover(trial.add(kRows, kCols, kDepth, 1, true), find_tile("medium", 128, DType::f32));
    lay_out(trial.plan(), trial.boxes(), true);
    trial.upload();
    const DeviceMemory sparse(sizeof(float) * kRows * kStride);
    const Problem& dense = trial.plan().problems[0];
    for (int row = 0; row < kRows; ++row) {
      require(cudaMemcpy(sparse.data() + row * kStride * sizeof(float), trial.buffers()[dense.a.buffer].first() + row * kDepth,
                         kDepth * sizeof(float), cudaMemcpyHostToDevice),
              "copy");
    }
    HostPlan plan = trial.plan();
    plan.problems[0].a.row_stride = kStride;
    std::vector<const void*> pointers = trial.pointers();
    pointers[dense.a.buffer] = sparse.data();
    const DevicePlan device(plan);
    const DeviceMemory workspace(size_t{0});
    require(launch(call_of(plan, device, pointers, workspace), stream_.get()), "launch");
    stream_.wait();
    report("float32 offsets beyond 2^31 elements", 1, trial.faults(trial.results()));
  }

  template <class T>
  void groups(const std::string& dtype) {
    for (int strategy : tiles<T>()) one_tile<T>(dtype, strategy);
    mixed<T>(dtype + " mixed tiles, runs", 1, false, false);
    mixed<T>(dtype + " mixed tiles, single", 2, true, false);
    mixed<T>(dtype + " mixed tiles, runs, several a block", 3, false, true);
    mixed<T>(dtype + " mixed tiles, single, several a block", 4, true, true);
    k_ranges<T>(dtype + " parts of K");
    not_finite<T>(dtype + " NaN and Inf");
    insane<T>(dtype + " descriptors that lie");
    if (!options_.small) many_pointers<T>(dtype + " more pointers than parameters hold");
    if (options_.replays && !options_.small) repeats<T>(dtype + " 50 runs and replays, the same bits");
    if (sizeof(T) == 4) short_grid();
    if (sizeof(T) == 4 && options_.replays && !options_.small) far_apart();
  }

  CheckOptions options_;
  OwnStream stream_;
  int faults_ = 0, groups_ = 0;
};

}  // namespace vbgemm::driver
