// Stand-alone driver of the GPU kernels, without Python or JAX: checks them, and times plans made elsewhere or here.
//
//   gpu_driver --check [--small] [--exact] [--races] [--no-replays] [--seed N] [--kinds NAME...]
//                                                      small: few and tiny problems; exact: buffers without margins, for memcheck;
//                                                      races: none that is meant to be one
//   gpu_driver --cases FILE...    [options]            times the cases of the files
//   gpu_driver --workload FILE... [options] [--batch B] [--tile NAME,THREADS | --tile all] [--kind NAME] [--runs]
//                                                      times a uniform plan: the same tile for all, one tile a block
//                                                      kind: float32, ..., tf32, tf32x3; 'all': every tile that is built for it
//   options: --hot, --samples N, --no-stream (only graphs are timed), --footprint MB, --csv FILE (rows are appended),
//     --filter TEXT (part of "peer workload")
//
// Build (for AMD's GPUs tools/rocm/first_run.sh does it):
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -Icsrc -Itests/native -o build/gpu_driver benchmarks/gpu_driver.cu
//     csrc/gpu/host/launch.cu csrc/gpu/instances/{add_partial_sums,add_scaled,square_sums,simt_*,rows_*,tensor_*}.cu
//
// A case file is little-endian: the 8 bytes "VBGCASE3", int64 catalogue_hash() of the library that made its plans, then cases until the end
// of the file, each
//
//   char peer[64], workload[64]         zero-padded names
//   int32 kind                          catalogue.h's Kind
//   int32 num_problems, num_runs, num_tiles, num_blocks, num_launches, has_block_first, num_splits
//   Launch[num_launches]                12 bytes each, then zeros up to a multiple of 8
//   the descriptor blob of descriptor.h, without epilogues; block_first if has_block_first
//   then zeros up to a multiple of 8
//
// The operands of problem i are buffers 2i and 2i + 1, its result is buffer 2 num_problems + i; each holds batch x rows x columns elements.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu_driver/benchmark.h"
#include "gpu_driver/check.h"

namespace vbgemm::driver {
namespace {

struct CaseHeader {
  char peer[64], workload[64];
  int32_t kind, num_problems, num_runs, num_tiles, num_blocks, num_launches, has_block_first, num_splits;
};
static_assert(sizeof(CaseHeader) == 160);

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "gpu_driver: %s\n", why.c_str());
  std::exit(2);
}

class CaseFile {
 public:
  explicit CaseFile(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    char magic[8] = {};
    int64_t catalogue = 0;
    in_.read(magic, sizeof magic);
    in_.read(reinterpret_cast<char*>(&catalogue), sizeof catalogue);
    if (!in_ || std::memcmp(magic, "VBGCASE3", 8) != 0) refuse(path + " is not a case file");
    if (catalogue != catalogue_hash()) refuse(path + ": its plans were made with another tile catalogue");
  }

  bool next(Case& c) {
    CaseHeader header{};
    if (in_.peek() == std::ifstream::traits_type::eof()) return false;
    in_.read(reinterpret_cast<char*>(&header), sizeof header);
    c = {std::string(header.peer, strnlen(header.peer, 64)), std::string(header.workload, strnlen(header.workload, 64)), {}};
    if (header.kind < 0 || header.kind >= kKinds) refuse(path_ + ": a case has an unknown kind");
    c.plan.kind = static_cast<Kind>(header.kind);
    c.plan.out_dtype = result_of(c.plan.kind);
    c.plan.num_tiles = header.num_tiles;
    c.plan.num_blocks = header.num_blocks;
    read(c.plan.launches, header.num_launches);
    skip_padding();
    if (header.num_runs == 0) read(c.plan.tiles, header.num_tiles);
    read(c.plan.problems, header.num_problems);
    read(c.plan.runs, header.num_runs);
    read(c.plan.splits, header.num_splits);
    for (const SplitTile& tile : c.plan.splits) {
      c.plan.num_sums = std::max(c.plan.num_sums, tile.first + static_cast<int64_t>(tile.slices) * tile.slice_stride);
    }
    if (header.has_block_first) read(c.plan.block_first, header.num_blocks + 1);
    skip_padding();
    return true;
  }

 private:
  template <class T>
  void read(std::vector<T>& items, int64_t count) {
    if (!in_ || count < 0 || count > 1 << 26) refuse(path_ + " is cut short or damaged");
    items.resize(count);
    in_.read(reinterpret_cast<char*>(items.data()), count * sizeof(T));
    if (!in_) refuse(path_ + " is cut short");
  }
  void skip_padding() { in_.ignore((8 - static_cast<int64_t>(in_.tellg()) % 8) % 8); }

  std::string path_;
  std::ifstream in_;
};

// The first `batch` lines "M N K" of a workload file (0: all), every problem in the same tile.
Case uniform_case(const std::string& path, int batch, int tile_id, Kind kind, bool ready) {
  std::ifstream in(path);
  if (!in) refuse("cannot open " + path);
  std::string name = path.substr(path.find_last_of('/') + 1);
  name = name.substr(0, name.rfind(".txt")) + (batch > 0 ? "_b" + std::to_string(batch) : "");
  Case c{std::string("vbgemm_uniform_") + kTiles[tile_id].name + "_" + std::to_string(kTiles[tile_id].threads), name, {}};
  c.plan.kind = kind;
  c.plan.out_dtype = result_of(kind);
  std::vector<std::array<int, 3>> sizes;
  for (int m, n, k; (batch == 0 || static_cast<int>(sizes.size()) < batch) && in >> m >> n >> k;) sizes.push_back({m, n, k});
  if (static_cast<int>(sizes.size()) < batch) refuse(path + " has fewer than " + std::to_string(batch) + " lines");
  const int count = static_cast<int>(sizes.size());
  std::vector<Box> boxes;
  for (int i = 0; i < count; ++i) {
    const auto [m, n, k] = sizes[i];
    const auto row_major = [](int buffer, int64_t rows, int64_t cols) {
      return Operand{buffer, 0, 0, cols, 1, {rows * cols, rows * cols}};
    };
    c.plan.problems.push_back({m, n, k, 1, 1, 0, row_major(2 * i, m, k), row_major(2 * i + 1, k, n), row_major(2 * count + i, m, n)});
    boxes.push_back(whole(c.plan.problems, i, tile_id));
  }
  lay_out(c.plan, boxes, ready);
  return c;
}

struct Arguments {
  bool check = false, runs = false;
  CheckOptions checks;
  BenchmarkOptions benchmarks;
  std::vector<std::string> cases, workloads;
  std::string filter, tile = "large,256";
  int batch = 0;
  Kind kind = Kind::f32;
};

Kind kind_named(const std::string& name) {
  for (int i = 0; i < kKinds; ++i) {
    if (name == kArithmetics[i].name) return static_cast<Kind>(i);
  }
  refuse("unknown kind " + name);
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  for (size_t i = 0; i < words.size();) {
    if (arguments.checks.take(words, i)) continue;
    const std::string option = words[i++];
    const auto value = [&]() -> std::string { return i < words.size() ? words[i++] : throw std::runtime_error(option + " needs a value"); };
    const auto values = [&](std::vector<std::string>& list) {
      while (i < words.size() && words[i][0] != '-') list.push_back(words[i++]);
    };
    if (option == "--check")
      arguments.check = true;
    else if (option == "--cases")
      values(arguments.cases);
    else if (option == "--workload")
      values(arguments.workloads);
    else if (option == "--batch")
      arguments.batch = std::stoi(value());
    else if (option == "--tile")
      arguments.tile = value();
    else if (option == "--kind")
      arguments.kind = kind_named(value());
    else if (option == "--runs")
      arguments.runs = true;
    else if (option == "--hot")
      arguments.benchmarks.hot = true;
    else if (option == "--no-stream")
      arguments.benchmarks.stream = false;
    else if (option == "--samples")
      arguments.benchmarks.samples = std::stoi(value());
    else if (option == "--footprint")
      arguments.benchmarks.footprint = 1e6 * std::stod(value());
    else if (option == "--csv")
      arguments.benchmarks.csv = value();
    else if (option == "--filter")
      arguments.filter = value();
    else
      throw std::runtime_error("unknown option " + option + "; the head of benchmarks/gpu_driver.cu lists them");
  }
  return arguments;
}

// The catalogue's rows that --tile names.
std::vector<int> chosen_tiles(const Arguments& arguments) {
  std::vector<int> rows;
  for (int i = 0; i < kNumTiles; ++i) {
    const std::string name = std::string(kTiles[i].name) + "," + std::to_string(kTiles[i].threads);
    if (kTiles[i].is_gpu() && kTiles[i].built_for(arguments.kind) && (arguments.tile == "all" || arguments.tile == name)) rows.push_back(i);
  }
  if (rows.empty()) refuse("no tile " + arguments.tile + " for this kind");
  return rows;
}

int run(const Arguments& arguments) {
  bool right = true;
  const auto time = [&](const Case& c) {
    if ((c.peer + " " + c.workload).find(arguments.filter) != std::string::npos) right &= benchmark(c, arguments.benchmarks);
  };
  if (arguments.check) right &= Check(arguments.checks).run();
  for (const std::string& path : arguments.cases) {
    CaseFile file(path);
    for (Case c; file.next(c);) time(c);
  }
  for (const std::string& path : arguments.workloads) {
    for (int tile : chosen_tiles(arguments)) time(uniform_case(path, arguments.batch, tile, arguments.kind, !arguments.runs));
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace vbgemm::driver

int main(int count, char** words) {
  try {
    return vbgemm::driver::run(vbgemm::driver::parse({words + 1, words + count}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_driver: %s\n", error.what());
    return 2;
  }
}
