// The self-check: random problems through every tile, layout and kind. On a GPU `gpu_driver --check` runs it, without one the emulation.
#pragma once
#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "../kernels.h"
#include "check_addition.h"
#include "check_square_sums.h"
#include "trial.h"

namespace vbgemm::driver {

struct CheckOptions {
  bool small = false;   // few and tiny problems, for compute-sanitizer
  bool exact = false;   // buffers without margins, for tools that see every access beyond a buffer
  bool races = false;   // nothing that is a race by intention, for tools that find races in global memory
  bool replays = true;  // graphs and repeated runs
  uint64_t seed = 0;
  std::vector<std::string> kinds;  // none: all that have kernels

  // Moves `i` past an option that belongs here; false where words[i] doesn't.
  bool take(const std::vector<std::string>& words, size_t& i) {
    const std::string& option = words[i];
    if (option == "--small")
      small = true;
    else if (option == "--exact")
      exact = true;
    else if (option == "--races")
      races = true;
    else if (option == "--no-replays")
      replays = false;
    else if (option == "--seed" && i + 1 < words.size())
      seed = std::stoull(words[++i]);
    else if (option == "--kinds")
      while (i + 1 < words.size() && words[i + 1][0] != '-') kinds.push_back(words[++i]);
    else
      return false;
    ++i;
    return true;
  }
};

class Check {
 public:
  explicit Check(const CheckOptions& options) : options_(options), margin_(options.exact ? 0 : 64) {}

  // Prints a line a group; true where all passed.
  bool run() {
    groups<float>(Kind::f32);
    groups<double>(Kind::f64);
    groups<Complex<float>>(Kind::c64);
    groups<Complex<double>>(Kind::c128);
    groups<BFloat16>(Kind::bf16);
    groups<Float16>(Kind::f16);
    groups<float>(Kind::tf32);
    groups<float>(Kind::tf32x3);
    std::printf("%s: %d faults in %d groups\n", faults_ || !groups_ ? "FAIL" : "PASS", faults_, groups_);
    return faults_ == 0 && groups_ > 0;
  }

 private:
  void report(const std::string& name, size_t problems, int faults) {
    std::printf("%-4s %-64s %5zu problems %d faults\n", faults ? "FAIL" : "ok", name.c_str(), problems, faults);
    std::fflush(stdout);
    faults_ += faults;
    ++groups_;
  }

  uint64_t seed(int group) const { return 10000 * options_.seed + group; }

  std::string name() const { return kKindNames[static_cast<int>(kind_)]; }

  template <class T, class Out>
  std::string names() const {
    return name() +
           (Number<T>::kDType == Number<Out>::kDType ? "" : std::string(" to ") + kDTypeNames[static_cast<int>(Number<Out>::kDType)]);
  }

  // The kind's tiles whose kernels are there. (The emulation is built with some of them.)
  std::vector<int> tiles() const {
    std::vector<int> rows;
    for (int i = 0; i < kNumTiles; ++i) {
      if (has_code(kTiles[i]) && kTiles[i].built_for(kind_) && find_kernel(kind_, kernel_of(kTiles[i]))) rows.push_back(i);
    }
    return rows;
  }

  bool wanted() const {
    const std::vector<std::string>& kinds = options_.kinds;
    return !tiles().empty() && (kinds.empty() || std::find(kinds.begin(), kinds.end(), name()) != kinds.end());
  }

  // How tiles become runs and blocks.
  struct Layout {
    bool ready = false;    // tiles in place of runs
    bool several = false;  // tiles a block
  };

  template <class T, class Out>
  void run(Trial<T, Out>& trial, Layout layout) {
    if (layout.several) {
      lay_out(trial.plan(), trial.boxes(), layout.ready, [&trial] { return trial.between(1, 5); });
    } else {
      lay_out(trial.plan(), trial.boxes(), layout.ready);
    }
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
  }

  template <class T, class Out>
  void finish(const std::string& name, Trial<T, Out>& trial, Layout layout) {
    run(trial, layout);
    report(name, trial.plan().problems.size(), trial.faults(trial.results()));
  }

  // A graph that is recorded before its kernels have ever been launched.
  template <class T>
  void recorded_first() {
    require(load_kernels(kind_), "load kernels");
    Trial<T> trial(kind_, seed(15), margin_);
    for (int strategy : tiles()) trial.cover(trial.add(33, 45, 21, 1), strategy);
    lay_out(trial.plan(), trial.boxes(), false);
    trial.upload();
    const Graph graph(stream_, [&] { trial.enqueue(stream_); });
    graph.replay(stream_);
    stream_.wait();
    report(name() + " recorded before any launch", trial.plan().problems.size(), trial.faults(trial.results()));
  }

  // Sizes around a tile's edges, K around its steps.
  template <class T, class Out>
  void one_tile(int strategy, bool epilogues) {
    const TileShape& tile = kTiles[strategy];
    Trial<T, Out> trial(kind_, seed(1000 + strategy), margin_);
    for (int i = 0; i < (options_.small ? 3 : epilogues ? 8 : 16); ++i) {
      const int m = trial.one_of({1, 7, tile.m - 1, tile.m, tile.m + 1, options_.small ? tile.m : 2 * tile.m + 3});
      const int n = trial.one_of({1, 5, tile.n - 1, tile.n, tile.n + 1, options_.small ? tile.n : 2 * tile.n + 12});
      const int k =
          trial.one_of({0, 1, 3, tile.k - 1, tile.k, tile.k + 1, 2 * tile.k + 4, 5 * tile.k + 4, options_.small ? 17 : 13 * tile.k + 5});
      trial.cover(trial.add(m, n, k, trial.one_of({1, 1, 2, 3}), i % 4 == 0), strategy);
    }
    if (epilogues) trial.add_epilogues();
    finish(names<T, Out>() + " " + tile.name + "/" + std::to_string(tile.threads) + (epilogues ? " with epilogues" : ""), trial,
           {strategy % 2 == 1, strategy % 3 == 0});
  }

  // Problems of all sizes, some cut in two bands of rows with different tiles.
  template <class T, class Out = T>
  void mixed(const std::string& what, int group, Layout layout, bool epilogues = false) {
    Trial<T, Out> trial(kind_, seed(group), margin_);
    const std::vector<int> rows = tiles();
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
    if (epilogues) trial.add_epilogues();
    finish(names<T, Out>() + " mixed tiles, " + what, trial, layout);
  }

  template <class T>
  void k_ranges() {
    Trial<T> trial(kind_, seed(5), margin_);
    const std::vector<int> rows = tiles();
    for (int i = 0; i < (options_.small ? 4 : 24); ++i) {
      const int k = trial.between(0, 90);
      Box box = whole(trial.plan().problems, trial.add(trial.between(1, 70), trial.between(1, 70), k, 1), rows[i % rows.size()]);
      box.k_begin = trial.between(0, k);
      box.k_end = trial.between(box.k_begin, k);
      trial.boxes().push_back(box);
    }
    finish(name() + " parts of K", trial, {});
  }

  // From two shares to as many as all threads add up in parts, some of them empty.
  template <class T, class Out = T>
  void split_k(bool epilogues, bool several) {
    Trial<T, Out> trial(kind_, seed(20 + epilogues), margin_);
    const std::vector<int> rows = tiles();
    for (size_t i = 0; i < (options_.small ? 3 : rows.size() + 6); ++i) {
      const int strategy = rows[i % rows.size()], k = trial.between(0, options_.small ? 60 : 400);
      const int m = trial.between(1, kTiles[strategy].m + 5), n = trial.between(1, kTiles[strategy].n + 5);
      Box box = whole(trial.plan().problems, trial.add(m, n, k, trial.one_of({1, 1, 2})), strategy);
      box.shares = trial.one_of({1, 2, 3, 5, 15, 16, 17, 33, options_.small ? 4 : 40});
      trial.boxes().push_back(box);
    }
    if (!options_.small) {
      Box box = whole(trial.plan().problems, trial.add(5, 9, 1100, 1), rows.front());
      box.shares = 260;
      trial.boxes().push_back(box);
    }
    if (epilogues) trial.add_epilogues();
    finish(names<T, Out>() + " split K" + (epilogues ? " with epilogues" : ""), trial, {true, several});
  }

  // Products whose results are symmetric: whole and split, with tiles of all shapes.
  template <class T, class Out = T>
  void symmetric(bool ready, bool epilogues) {
    Trial<T, Out> trial(kind_, seed(40 + 2 * ready + epilogues), margin_);
    for (int strategy : tiles()) {
      const TileShape& tile = kTiles[strategy];
      if (!tile.tensor) continue;
      const int extent = trial.one_of({1, 17, tile.m + tile.n, 2 * std::max(tile.m, tile.n) + (options_.small ? 3 : 45)});
      const int problem = trial.add_symmetric(extent, trial.between(0, options_.small ? 40 : 200), trial.one_of({1, 1, 2}));
      trial.cover_symmetric(problem, strategy, ready ? trial.one_of({1, 2, 3}) : 1);
    }
    if (trial.boxes().empty()) return;
    if (epilogues) trial.add_epilogues();
    finish(names<T, Out>() + " symmetric" + (ready ? ", split" : "") + (epilogues ? " with epilogues" : ""), trial, {ready, false});
  }

  // A NaN or Inf reaches exactly the elements it should; the comparison with the expected bits sees both. Neither comes from the largest
  // numbers; those that tf32 rounds to infinity are left out, and epilogues, which overflow.
  template <class T>
  void not_finite(bool epilogues) {
    Trial<T> trial(kind_, seed(6), margin_);
    std::vector<double> values = {NAN, INFINITY, -INFINITY};
    if (kind_ != Kind::tf32 && !epilogues) values.push_back(-std::numeric_limits<float>::max());
    for (int strategy : tiles()) {
      for (size_t i = 0; i < values.size(); ++i) {
        const int problem = trial.add(33, 45, 21, 1);
        const Problem& p = trial.plan().problems[problem];
        if (strategy % 2) trial.set(p.b, 20, 7, 0);
        trial.set(strategy % 3 ? p.a : p.b, 3, 20, values[i]);
        if (i == 1) trial.set(p.b, 20, 9, values[i]);  // meets another, or one in its own row
        trial.set(p.b, 20, 8, 0.5);                    // a number that rounding leaves as it is
        trial.cover(problem, strategy);
      }
    }
    if (epilogues) trial.add_epilogues();
    finish(name() + " NaN and Inf" + (epilogues ? " with epilogues" : ""), trial, {true, false});
  }

  template <class T>
  void many_buffers() {
    Trial<T> trial(kind_, seed(7), margin_);
    const int light = tiles().front();
    for (int i = 0; i < kMaxParameterBuffers / 3 + 100; ++i) {
      trial.cover(trial.add(trial.between(1, 20), trial.between(1, 20), trial.between(0, 9), 1), light);
    }
    finish(name() + " more buffers than parameters hold", trial, {});
  }

  // Descriptors that lie: whatever they hold, nothing outside C (outside its buffer, with ready tiles) may be written (or, under memcheck,
  // anything outside be read).
  template <class T>
  void insane(bool ready, bool epilogues) {
    Trial<T> trial(kind_, seed(8), margin_);
    const std::vector<int> rows = tiles();
    for (int i = 0; i < 20; ++i) {
      trial.cover(trial.add(trial.between(0, 70), trial.between(0, 70), trial.between(0, 40), trial.between(0, 3)), rows[i % rows.size()]);
    }
    if (ready) {
      for (Box& box : trial.boxes()) box.shares = trial.between(1, 3);
    }
    lay_out(trial.plan(), trial.boxes(), ready, [&trial] { return trial.between(1, 3); });
    const auto lie = [&trial](auto& value, int one_in) {
      const int extreme = std::numeric_limits<int32_t>::max();
      if (trial.between(1, one_in) == 1) value = trial.one_of({-extreme - 1, -1, 0, 1, 7, 1000, extreme / 2, extreme});
    };
    // The image of a tile that has none is written where another tile, or the same, writes.
    const auto lie_of_image = [&lie, this](int32_t& mirrored) {
      if (!options_.races) lie(mirrored, 4);
    };
    for (TileRun& run : trial.plan().runs) {
      for (int32_t* field : {&run.problem, &run.strategy, &run.row, &run.col, &run.batch, &run.k_begin, &run.k_end, &run.first_tile,
                             &run.tiles_y, &run.tiles_x}) {
        lie(*field, 3);
      }
      lie_of_image(run.mirrored);
    }
    for (ReadyTile& tile : trial.plan().tiles) {
      TilePosition& at = tile.position;
      for (int32_t* field : {&at.strategy, &at.rows, &at.cols, &at.depth, &at.problem, &at.batch, &at.row, &at.col}) {
        lie(*field, 12);
      }
      lie_of_image(tile.part[2].mirrored);
      for (Part& part : tile.part) {
        lie(part.offset, 12);
        if (&part == &tile.part[2]) continue;  // a C that is walked otherwise, or another, may be written twice at a time
        for (int32_t* field : {&part.row_stride, &part.col_stride, &part.buffer}) lie(*field, 12);
      }
    }
    for (SplitTile& tile : trial.plan().splits) {
      lie(tile.first, 12);
      lie(tile.c.offset, 12);
      // Its rows and columns are C's: with more of them one element may be written twice at a time.
      TilePosition& at = tile.position;
      for (int32_t* field : {&tile.share_stride, &tile.shares, &tile.pitch, &at.problem, &at.batch, &at.row, &at.col}) lie(*field, 12);
      lie_of_image(tile.c.mirrored);
    }
    for (int32_t& first : trial.plan().block_first) lie(first, 3);
    if (epilogues) {
      trial.add_epilogues();
      for (Epilogue& e : trial.plan().epilogues) {
        for (int32_t* field : {&e.alpha.buffer, &e.beta.buffer, &e.source.buffer, &e.bias.buffer}) *field = std::max(*field, 0) + 1000;
        e.activation = static_cast<Activation>(1 << trial.between(0, 30));
      }
    }
    for (Launch& launch : trial.plan().launches) launch.num_blocks += 3, launch.first_block -= 1;
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
    const auto results = trial.results();
    report(name() + (ready ? " ready tiles" : " runs") + " that lie" + (epilogues ? ", epilogues too" : ""), trial.plan().problems.size(),
           ready ? trial.strays_outside(results) : trial.strays(results));
  }

  template <class T>
  void repeats() {
    Trial<T> trial(kind_, seed(10), margin_);
    const std::vector<int> rows = tiles();
    for (int i = 0; i < 30; ++i) {
      trial.cover(trial.add(trial.between(1, 150), trial.between(1, 150), trial.between(1, 150), 1), rows[i % rows.size()]);
    }
    for (size_t i = 0; i < trial.boxes().size(); ++i) trial.boxes()[i].shares = 1 + i % 4;
    run(trial, {true, false});
    const auto first = trial.results();
    int faults = trial.faults(first);
    const Graph graph(stream_, [&] { trial.enqueue(stream_); });
    for (int i = 0; i < 50; ++i) {
      trial.restore();
      if (i % 2) {
        trial.enqueue(stream_);
      } else {
        graph.replay(stream_);
      }
      stream_.wait();
      faults += trial.results() != first;
    }
    report(name() + " 50 runs and replays, the same bits", 30, faults);
  }

  // Rows more than 2^31 elements apart: the offsets do not fit into 32 bits.
  void far_apart() {
    constexpr int64_t kStride = (int64_t{1} << 30) + 7;
    constexpr int kRows = 4, kCols = 40, kDepth = 37;
    if (free_device_memory() < sizeof(float) * (kRows * kStride + (1 << 20))) {
      std::printf("skip float32 offsets beyond 2^31: %zu bytes of memory are free\n", free_device_memory());
      return;
    }
    Trial<float> trial(Kind::f32, seed(11), margin_);
    trial.cover(trial.add(kRows, kCols, kDepth, 1, true), find_tile("medium", 128, Kind::f32));
    trial.upload();
    DeviceMemory sparse(sizeof(float) * kRows * kStride);
    const Problem& dense = trial.plan().problems[0];
    for (int row = 0; row < kRows; ++row) {
      sparse.write(trial.elements<float>(dense.a) + row * kDepth, kDepth * sizeof(float), row * kStride * sizeof(float));
    }
    HostPlan plan = trial.plan();
    plan.problems[0].a.row_stride = kStride;
    lay_out(plan, trial.boxes(), true);
    Buffers buffers = trial.device_buffers();
    buffers.data[dense.a.buffer] = sparse.data();
    buffers.elements[dense.a.buffer] = kRows * kStride;
    const DevicePlan device(plan);
    const DeviceMemory none(size_t{0});
    require(launch(call_of(plan, device, buffers, none), stream_.get()), "launch");
    stream_.wait();
    report("float32 offsets beyond 2^31 elements", 1, trial.faults(trial.results()));
  }

  template <class T>
  void additions() {
    const auto run = [this](const char* what, AdditionTrial<T> trial) {
      const int faults = trial.faults(stream_);
      report(name() + what, trial.members(), faults);
    };
    run(" arrays added", additions_of_all_sizes<T>(seed(16), margin_));
    if (!options_.small) run(" more arrays added than parameters hold", more_additions_than_a_launch_holds<T>(seed(17), margin_));
  }

  template <class T>
  void sums_of_squares() {
    const auto run = [this](const char* what, const SquareSumsTrial<T>& trial) {
      report(name() + what, trial.arrays(), trial.faults(stream_));
    };
    run(" squares summed", square_sums_of_all_sizes<T>(seed(18), margin_));
    if (!options_.small) run(" more squares summed than parameters hold", more_square_sums_than_a_launch_holds<T>(seed(19), margin_));
  }

  template <class T>
  void groups(Kind kind) {
    kind_ = kind;
    if (!wanted()) return;
    using Sum = Accumulator<T>;
    recorded_first<T>();
    for (int strategy : tiles()) one_tile<T, T>(strategy, false);
    for (int strategy : tiles()) one_tile<T, T>(strategy, true);
    mixed<T>("runs", 1, {false, false});
    mixed<T>("ready tiles", 2, {true, false});
    mixed<T>("runs, several a block", 3, {false, true});
    mixed<T>("ready tiles, several a block", 4, {true, true});
    mixed<T>("with epilogues", 12, {false, true}, true);
    if (sizeof(Sum) != sizeof(T)) {
      mixed<T, Sum>("ready tiles, several a block", 13, {true, true});
      mixed<T, Sum>("with epilogues", 14, {false, true}, true);
    }
    k_ranges<T>();
    split_k<T>(false, false);
    split_k<T, Sum>(true, true);
    if (kWaveSize == 32) {  // those of 64 don't store the image
      symmetric<T>(false, false);
      symmetric<T, Sum>(false, true);
      symmetric<T>(true, false);
      symmetric<T, Sum>(true, true);
    }
    not_finite<T>(false);
    not_finite<T>(true);
    for (const bool ready : {false, true}) {
      for (const bool epilogues : {false, true}) insane<T>(ready, epilogues);
    }
    if (!options_.small) many_buffers<T>();
    if constexpr (!kIsComplex<T>) {
      if (kind == kind_of(Number<T>::kDType)) {
        additions<T>();
        sums_of_squares<T>();
      }
    }
    if (options_.replays && !options_.small) repeats<T>();
    if (kind == Kind::f32 && options_.replays && !options_.small) far_apart();
  }

  CheckOptions options_;
  int margin_;
  OwnStream stream_;
  Kind kind_ = Kind::f32;  // of the groups that are being run
  int faults_ = 0, groups_ = 0;
};

}  // namespace vbgemm::driver
