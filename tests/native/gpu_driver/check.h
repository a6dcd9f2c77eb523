// The self-check: random problems through every tile, layout and arithmetic. `gpu_driver --check` runs it on a GPU, the emulation without
// one.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu/tile/kernels.h"
#include "gpu_driver/check_addition.h"
#include "gpu_driver/check_averages.h"
#include "gpu_driver/check_options.h"
#include "gpu_driver/check_square_sums.h"
#include "gpu_driver/far_apart.h"
#include "gpu_driver/lies.h"
#include "gpu_driver/trial.h"

namespace vbgemm::driver {

// The types of an arithmetic: of its operands, its sums, and its results, which by default have the operands' type if both sides have the
// same.
template <Kind kKind_>
struct OfKind {
  static constexpr Kind kKind = kKind_;
  using Left = LeftOf<kKind>;
  using Right = RightOf<kKind>;
  using Sum = Accumulator<Left>;
  using Own = std::conditional_t<arithmetic_of(kKind).lhs == arithmetic_of(kKind).rhs, Left, Sum>;
};
template <class Types, class Out = typename Types::Own>
using TrialOf = Trial<typename Types::Left, Out, typename Types::Right>;

class Check {
 public:
  explicit Check(const CheckOptions& options) : options_(options), margin_(options.exact ? 0 : 64) {}

  // Prints one line for each group of checks; returns true if all passed.
  bool run() {
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, ...) groups<OfKind<Kind::id>>();
#include "dtypes.def"
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

  std::string name() const { return name_of(kind_); }

  template <class Types, class Out>
  std::string names() const {
    return name() + (std::is_same_v<typename Types::Own, Out> ? "" : std::string(" to ") + name_of(kDTypeOf<Out>));
  }

  // The tiles of the arithmetic whose kernels are linked. (The emulation is built with some of them.)
  std::vector<int> tiles() const {
    std::vector<int> rows;
    for (int i = 0; i < kNumTiles; ++i) {
      const TileShape& tile = kTiles[i];
      const bool runs = has_code(tile, kind_, kCdna) || has_code(tile, plain_kind_of(kind_), kCdna);  // as find_kernel chooses
      if (runs && tile.built_for(kind_) && find_kernel(kind_, kernel_of(tile))) rows.push_back(i);
    }
    return rows;
  }

  bool wanted() const {
    const std::vector<std::string>& kinds = options_.kinds;
    return !tiles().empty() && (kinds.empty() || std::find(kinds.begin(), kinds.end(), name()) != kinds.end());
  }

  // How tiles are arranged in runs and blocks.
  struct Arrangement {
    bool ready = false;    // ready tiles in place of runs
    bool several = false;  // several tiles in a block
  };

  template <class OneTrial>
  void run(OneTrial& trial, Arrangement layout) {
    if (layout.several) {
      trial.lay_out(layout.ready, [&trial] { return trial.between(1, 5); });
    } else {
      trial.lay_out(layout.ready);
    }
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
  }

  template <class OneTrial>
  void finish(const std::string& name, OneTrial& trial, Arrangement layout) {
    run(trial, layout);
    report(name, trial.plan().problems.size(), trial.faults(trial.results()));
  }

  // Records a graph before its kernels have ever been launched.
  template <class Types>
  void recorded_first() {
    require(load_kernels(kind_), "load kernels");
    TrialOf<Types> trial(kind_, seed(15), margin_);
    for (int tile_id : tiles()) trial.cover(trial.add(33, 45, 21, 1), tile_id);
    trial.lay_out(false);
    trial.upload();
    const Graph graph(stream_, [&] { trial.enqueue(stream_); });
    graph.replay(stream_);
    stream_.wait();
    report(name() + " recorded before any launch", trial.plan().problems.size(), trial.faults(trial.results()));
  }

  // Sizes close to a tile's edges, and K close to multiples of its steps.
  template <class Types, class Out>
  void one_tile(int tile_id, bool epilogues) {
    const TileShape& tile = kTiles[tile_id];
    TrialOf<Types, Out> trial(kind_, seed(1000 + tile_id), margin_);
    for (int i = 0; i < (options_.small ? 3 : epilogues ? 8 : 16); ++i) {
      const int m = trial.one_of({1, 7, tile.m - 1, tile.m, tile.m + 1, options_.small ? tile.m : 2 * tile.m + 3});
      const bool plain = i % 4 == 0;  // with whole vectors in each row of C, a tile's last ones left out
      const int any_n = trial.one_of({1, 5, tile.n - 1, tile.n, tile.n + 1, options_.small ? tile.n : 2 * tile.n + 12});
      const int n = plain ? std::max(8, tile.n - 8) : any_n;
      const int small_k = tile.partition == ThreadPartition::rows ? 9 * tile.k + 3 : 17;  // for row tiles, deeper than shared memory holds
      const int deep = options_.small ? small_k : 13 * tile.k + 5;
      const int k = trial.one_of({0, 1, 3, tile.k - 1, tile.k, tile.k + 1, 2 * tile.k + 4, 5 * tile.k + 4, deep});
      trial.cover(trial.add(m, n, k, trial.one_of({1, 1, 2, 3}), plain), tile_id);
    }
    if (epilogues) trial.add_epilogues();
    finish(names<Types, Out>() + " " + tile.name + "/" + std::to_string(tile.threads) + (epilogues ? " with epilogues" : ""), trial,
           {tile_id % 2 == 1, tile_id % 3 == 0});
  }

  static constexpr int kRuns = 1, kReadyTiles = 2;  // groups

  // Problems of all sizes, some of them divided into two bands of rows with different tiles.
  template <class Types, class Out = typename Types::Own>
  void mixed(const std::string& what, int group, Arrangement layout, bool epilogues = false) {
    TrialOf<Types, Out> trial(kind_, seed(group), margin_);
    const std::vector<int> rows = tiles();
    // In the emulation, more thread blocks than a launch may have; where the check is to be small, of runs and of ready tiles once each.
    const bool two_launches = !options_.races && (!options_.small || group == kRuns || group == kReadyTiles);
    trial.cover(trial.add(2, 3, 4, two_launches ? 310 : 3), rows.front());
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
        rest.row = kTiles[box.tile_id].m;
        rest.tiles_y = tiles_along(m - rest.row, kTiles[rest.tile_id].m);
        trial.boxes().push_back(rest);
      }
      trial.boxes().push_back(box);
    }
    if (epilogues) trial.add_epilogues();
    finish(names<Types, Out>() + " mixed tiles, " + what, trial, layout);
  }

  template <class Types>
  void k_ranges() {
    TrialOf<Types> trial(kind_, seed(5), margin_);
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

  // Split-K, from two slices to so many that all threads of a block add them up in parts; some slices are empty.
  template <class Types, class Out = typename Types::Own>
  void split_k(bool epilogues, bool several) {
    TrialOf<Types, Out> trial(kind_, seed(20 + epilogues), margin_);
    const std::vector<int> rows = tiles();
    for (size_t i = 0; i < (options_.small ? 3 : rows.size() + 6); ++i) {
      const int tile_id = rows[i % rows.size()], k = trial.between(0, options_.small ? 60 : 400);
      const int m = trial.between(1, kTiles[tile_id].m + 5), n = trial.between(1, kTiles[tile_id].n + 5);
      Box box = whole(trial.plan().problems, trial.add(m, n, k, trial.one_of({1, 1, 2})), tile_id);
      box.slices = trial.one_of({1, 2, 3, 5, 15, 16, 17, 33, options_.small ? 4 : 40});
      trial.boxes().push_back(box);
    }
    if (!options_.small) {
      Box box = whole(trial.plan().problems, trial.add(5, 9, 1100, 1), rows.front());
      box.slices = 260;
      trial.boxes().push_back(box);
    }
    if (epilogues) trial.add_epilogues();
    finish(names<Types, Out>() + " split K" + (epilogues ? " with epilogues" : ""), trial, {true, several});
  }

  // Problems that TMA can copy and some that it cannot, of different K, by pipelined tiles: whole and as K slices, several to a thread
  // block.
  template <class Types, class Out = typename Types::Own>
  void large(int tile_id, bool epilogues) {
    TrialOf<Types, Out> trial(kind_, seed(60 + epilogues), margin_);
    for (int i = 0; i < (options_.small ? 7 : 25); ++i) {
      trial.align_rows(i % 3 > 0);           // TMA copies only aligned rows, and the kernel's other way must alternate with it
      const int odd = trial.between(1, 24);  // of these widths most are no multiple of the 16 bytes that TMA stores at a time
      const int m = trial.one_of({72, 129, 131, 136, 264, 264, 384}), n = trial.one_of({8, 200, 256, 264, 300, odd, 256 + odd});
      const int k = trial.one_of({8, 64, 72, 128, 384, 640, 64 + odd});
      Box box = whole(trial.plan().problems, trial.add(m, n, k, i % 4 ? 1 : 3), tile_id);
      box.slices = trial.one_of({1, 1, 1, k % 128 ? 1 : 2, 3});
      trial.boxes().push_back(box);
    }
    if (epilogues) trial.add_epilogues();
    finish(names<Types, Out>() + " " + kTiles[tile_id].name + ", large products" + (epilogues ? " with epilogues" : ""), trial,
           {true, epilogues});
  }

  // Products in rows of whole vectors, by the kernel for those; or the same tiles with corrupt records.
  template <class Types>
  void aligned(Kernel kernel, bool corrupt) {
    const TileShape& tile = kTiles[aligned_row(kernel)];
    TrialOf<Types> trial(kind_, seed(80 + 2 * static_cast<int>(kernel) + corrupt), margin_);
    trial.align_rows(true);
    for (int i = 0; i < (options_.small ? 4 : 16); ++i) {
      const int m = trial.one_of({1, 7, tile.m - 1, tile.m, tile.m + 1}), n = trial.one_of({8, tile.n - 8, tile.n, tile.n + 8});
      const int k = trial.one_of({8, 56, 64, 72, options_.small ? 136 : 520});
      trial.cover(trial.add(m, n, k, trial.one_of({1, 1, 2, 3}), /*plain=*/true), aligned_row(kernel));
    }
    trial.lay_out(/*ready=*/true);
    for (Launch& launch : trial.plan().launches) launch.kernel = static_cast<int32_t>(kernel);
    if (corrupt) corrupt_plan(trial, /*of_images=*/!options_.races);
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
    const auto results = trial.results();
    report(name() + " " + kKernelNames[static_cast<int>(kernel)] + (corrupt ? " with records that lie" : ""), trial.plan().problems.size(),
           corrupt ? trial.strays_outside(results) : trial.faults(results));
  }

  // Products whose results are symmetric, with and without split-K, by tiles of all shapes.
  template <class Types, class Out = typename Types::Own>
  void symmetric(bool ready, bool epilogues) {
    TrialOf<Types, Out> trial(kind_, seed(40 + 2 * ready + epilogues), margin_);
    for (int tile_id : tiles()) {
      const TileShape& tile = kTiles[tile_id];
      if (!stores_mirrored(tile)) continue;
      for (int split = 0; split <= ready; ++split) {
        const int extent = trial.one_of({1, 17, tile.m + tile.n, 2 * std::max(tile.m, tile.n) + (options_.small ? 3 : 45)});
        const int problem = trial.add_symmetric(extent, trial.between(0, options_.small ? 40 : 200), trial.one_of({1, 1, 2}));
        trial.cover_symmetric(problem, tile_id, split ? trial.one_of({2, 3}) : 1);
      }
    }
    if (trial.boxes().empty()) return;
    if (epilogues) trial.add_epilogues();
    finish(names<Types, Out>() + " symmetric" + (ready ? ", split" : "") + (epilogues ? " with epilogues" : ""), trial, {ready, false});
  }

  // A NaN or Inf must reach exactly the elements that depend on it, which the comparison of bits verifies. Neither may come from large
  // finite numbers. So numbers that tf32 rounds to infinity are left out, as are epilogues, which overflow.
  template <class Types>
  void not_finite(bool epilogues) {
    TrialOf<Types> trial(kind_, seed(6), margin_);
    std::vector<double> values = {NAN, INFINITY, -INFINITY};
    if (kind_ != Kind::tf32 && !epilogues) values.push_back(-std::numeric_limits<float>::max());
    for (int tile_id : tiles()) {
      for (size_t i = 0; i < values.size(); ++i) {
        const int problem = trial.add(33, 45, 21, 1);
        const Problem& p = trial.plan().problems[problem];
        if (tile_id % 2) trial.set(p.b, 20, 7, 0);
        trial.set(tile_id % 3 ? p.a : p.b, 3, 20, values[i]);
        if (i == 1) trial.set(p.b, 20, 9, values[i]);  // multiplies another special value, or one in its own row
        trial.set(p.b, 20, 8, 0.5);                    // a number that rounding leaves unchanged
        trial.cover(problem, tile_id);
      }
    }
    if (epilogues) trial.add_epilogues();
    finish(name() + " NaN and Inf" + (epilogues ? " with epilogues" : ""), trial, {true, false});
  }

  template <class Types>
  void many_buffers() {
    TrialOf<Types> trial(kind_, seed(7), margin_);
    const int light = tiles().front();
    for (int i = 0; i < kMaxParameterBuffers / 3 + 100; ++i) {
      trial.cover(trial.add(trial.between(1, 20), trial.between(1, 20), trial.between(0, 9), 1), light);
    }
    finish(name() + " more buffers than parameters hold", trial, {});
  }

  // Whatever the descriptors hold, nothing may be written outside C (outside the results' buffers, for ready tiles), and nothing outside
  // the buffers may be read, which only memcheck sees.
  template <class Types>
  void insane(bool ready, bool epilogues) {
    TrialOf<Types> trial(kind_, seed(8), margin_);
    const std::vector<int> rows = tiles();
    const int extent = options_.small ? 35 : 70, count = std::max(20, static_cast<int>(rows.size()));
    for (int i = 0; i < count; ++i) {
      // A race is one of a thread block, or of two that have the same tile, so that a tool that finds races needs no batches.
      const int batch = options_.races ? 1 : trial.between(0, 3);
      trial.cover(trial.add(trial.between(0, extent), trial.between(0, extent), trial.between(0, 40), batch), rows[i % rows.size()]);
    }
    if (ready) {
      for (Box& box : trial.boxes()) box.slices = trial.between(1, 3);
    }
    if (epilogues) trial.add_epilogues();
    trial.lay_out(ready, [&trial] { return trial.between(1, 3); });
    corrupt_plan(trial, /*of_images=*/!options_.races);
    corrupt_epilogues(trial);
    trial.upload();
    trial.enqueue(stream_);
    stream_.wait();
    const auto results = trial.results();
    report(name() + (ready ? " ready tiles" : " runs") + " that lie" + (epilogues ? ", epilogues too" : ""), trial.plan().problems.size(),
           ready ? trial.strays_outside(results) : trial.strays(results));
  }

  template <class Types>
  void repeats() {
    TrialOf<Types> trial(kind_, seed(10), margin_);
    const std::vector<int> rows = tiles();
    for (int i = 0; i < 30; ++i) {
      trial.cover(trial.add(trial.between(1, 150), trial.between(1, 150), trial.between(1, 150), 1), rows[i % rows.size()]);
    }
    for (size_t i = 0; i < trial.boxes().size(); ++i) trial.boxes()[i].slices = 1 + i % 4;
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

  // Checks a tile of each family, because each family has its own way to address A.
  void rows_far_apart() {
    const size_t available = free_device_memory();
    if (available < kFarApartBytes + (1 << 20)) {
      std::printf("skip float32 offsets beyond 2^31: %zu bytes of memory are free\n", available);
      return;
    }
    struct KindAndTile {
      Kind kind;
      const char* tile;
    };
    DeviceMemory sparse(kFarApartBytes);
    for (const auto& [kind, tile] :
         {KindAndTile{Kind::f32, "medium"}, {Kind::f32, "rows-256x40"}, {Kind::f32, "deep-8x8"}, {Kind::tf32, "mma-64x64"}}) {
      const int faults = far_apart_faults(kind, find_tile(tile, 128, kind), sparse, stream_, seed(11), margin_);
      report(std::string("float32 offsets beyond 2^31 elements, ") + tile, 1, faults);
    }
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
    const auto average = [this](const char* what, const AveragesTrial<T>& trial) {
      report(name() + what, trial.members(), trial.faults(stream_));
    };
    average(" arrays averaged", averages_of_all_sizes<T>(seed(20), margin_));
    if (!options_.small) average(" more arrays averaged than parameters hold", more_averages_than_a_launch_holds<T>(seed(21), margin_));
  }

  // Checks results of the other types that the arithmetic can give.
  template <class Types, class Out>
  void other_results() {
    if constexpr (!std::is_same_v<Out, typename Types::Own> && arithmetic_of(Types::kKind).gives(kDTypeOf<Out>)) {
      mixed<Types, Out>("ready tiles, several a block", 13, {true, true});
      mixed<Types, Out>("with epilogues", 14, {false, true}, true);
    }
  }

  template <class Types>
  void groups() {
    kind_ = Types::kKind;
    if (!wanted()) return;
    using T = typename Types::Left;
    using Sum = typename Types::Sum;
    using Own = typename Types::Own;
    recorded_first<Types>();
    for (int tile_id : tiles()) one_tile<Types, Own>(tile_id, false);
    for (int tile_id : tiles()) one_tile<Types, Own>(tile_id, true);
    for (int tile_id : tiles()) {
      if (kTiles[tile_id].partition != ThreadPartition::warpgroup_rows) continue;
      for (bool epilogues : {false, true}) large<Types>(tile_id, epilogues);
    }
    for (int kernel = 0; kernel < kKernels; ++kernel) {
      if (aligned_row(static_cast<Kernel>(kernel)) < 0 || !find_kernel(kind_, static_cast<Kernel>(kernel))) continue;
      if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {  // others have none
        for (bool corrupt : {false, true}) aligned<Types>(static_cast<Kernel>(kernel), corrupt);
      }
    }
    mixed<Types>("runs", kRuns, {false, false});
    mixed<Types>("ready tiles", kReadyTiles, {true, false});
    mixed<Types>("runs, several a block", 3, {false, true});
    mixed<Types>("ready tiles, several a block", 4, {true, true});
    mixed<Types>("with epilogues", 12, {false, true}, true);
#define DTYPE(id, ...) other_results<Types, Element<DType::id>>();
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
    k_ranges<Types>();
    split_k<Types>(false, false);
    split_k<Types, Sum>(true, true);
    if (kWaveSize == 32) {  // kernels with waves of 64 do not store the transpose
      symmetric<Types>(false, false);
      symmetric<Types, Sum>(false, true);
      symmetric<Types>(true, false);
      symmetric<Types, Sum>(true, true);
    }
    if (!is_integer(kDTypeOf<T>) && !options_.races) {  // races do not depend on the values
      not_finite<Types>(false);
      not_finite<Types>(true);
    }
    for (const bool ready : {false, true}) {
      for (const bool epilogues : {false, true}) insane<Types>(ready, epilogues);
    }
    if (!options_.small) many_buffers<Types>();
    if constexpr (has_array_kernels(kDTypeOf<T>)) {
      if (kind_ == plain_kind_of(kind_)) {
        additions<T>();
        sums_of_squares<T>();
      }
    }
    if (options_.replays && !options_.small) repeats<Types>();
    if (kind_ == Kind::f32 && options_.replays && !options_.small) rows_far_apart();
  }

  CheckOptions options_;
  int margin_;
  OwnStream stream_;
  Kind kind_ = Kind::f32;  // the arithmetic of the groups that are running
  int faults_ = 0, groups_ = 0;
};

}  // namespace vbgemm::driver
