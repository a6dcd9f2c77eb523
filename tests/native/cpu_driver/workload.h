// Random problems with their buffers, plans for them, and the calls that compute them.
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cpu/walk.h"
#include "cpu_driver/memory.h"
#include "cpu_driver/number.h"

namespace vbgemm::driver {

// The owner of a call's memory. Elements of a buffer that no problem addresses are NaN in operands and kUntouched in results.
inline constexpr unsigned char kUntouched = 0xA5;
inline constexpr int64_t kGuard = 256;  // bytes before and after each result
struct Workload {
  Kind kind;
  DType out_dtype;
  std::vector<Problem> problems;
  std::vector<Bytes> buffers;                 // of exactly the size that the problems address
  int num_operands = 0;                       // buffers that are not results
  std::vector<std::pair<int, int>> k_ranges;  // one for each problem
  std::vector<Epilogue> epilogues;            // one for each problem, or none
  std::vector<Bytes> initial;                 // results before the call, if it reads them

  DType lhs() const { return arithmetic_of(kind).lhs; }
  DType rhs() const { return arithmetic_of(kind).rhs; }
  DType sum() const { return accumulator_of(kind); }
};
struct PlanData {
  std::vector<TileRun> runs;
  std::vector<ReadyTile> tiles;  // in place of runs, if K is split
  std::vector<SplitTile> splits;
  std::vector<int32_t> block_first;
  int32_t num_tiles = 0;
  int64_t num_sums = 0;
};

inline int64_t element_of(const Operand& x, const Problem& p, int64_t batch, int64_t i, int64_t j) {
  return x.offset + batch / p.inner_batch * x.batch_stride[0] + batch % p.inner_batch * x.batch_stride[1] + i * x.row_stride +
         j * x.col_stride;
}

// Lays out an operand of rows x cols x batch in a new buffer: in any order, padded, strided or broadcast, and at an offset.
inline Operand lay_out(Workload& w, DType dtype, const Problem& p, int64_t rows, int64_t cols, bool result, bool plain) {
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
        double value = normal(rng) * (is_integer(dtype) ? 60 : 1);
        if (wild && chance(0.01)) value = chance(0.3) ? NAN : chance(0.5) ? INFINITY : -INFINITY;
        const Wide number(value, is_complex(dtype) ? normal(rng) : 0);
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
inline void put_random(DType dtype, unsigned char* p) {
  std::normal_distribution<> normal;
  put(dtype, p, {normal(rng), is_complex(dtype) ? normal(rng) : 0});
}
inline std::vector<Bytes> results(const Workload& w) { return {w.buffers.begin() + w.num_operands, w.buffers.end()}; }

// Returns 1, 0 or any number, known at trace time or in a buffer of its own.
inline Scalar random_scalar(Workload& w) {
  std::normal_distribution<> normal;
  const bool any = chance(0.6);
  const auto factor = [&] { return is_integer(w.sum()) ? std::round(normal(rng)) : normal(rng); };
  const Wide value = any ? Wide(factor(), is_complex(w.lhs()) && chance(0.7) ? normal(rng) : 0) : Wide(chance(0.5), 0);
  Scalar scalar{value.real(), value.imag(), -1, 0, 0};
  if (chance(0.5)) return scalar;
  const DType dtype = w.sum();
  scalar = {1e9, 1e9, static_cast<int32_t>(w.buffers.size()), 0, uniform(0, 3)};
  w.buffers.emplace_back((scalar.offset + 1) * size_of(dtype), 0xFF);
  put(dtype, &w.buffers.back()[scalar.offset * size_of(dtype)], value);
  return scalar;
}
inline Wide value_of(const Workload& w, const Scalar& scalar) {
  const DType dtype = w.sum();
  unsigned char bytes[16];
  if (scalar.buffer < 0) put(dtype, bytes, {scalar.real, scalar.imag});
  return get(dtype, scalar.buffer < 0 ? bytes : &w.buffers[scalar.buffer][scalar.offset * size_of(dtype)]);
}

// Returns an addend shaped like C, or broadcast to it. nan: it consists of values that must not be used.
inline Operand random_addend(Workload& w, const Problem& p, bool nan) {
  const bool one_row = chance(0.4), one_column = chance(0.3);
  Operand x = lay_out(w, w.out_dtype, p, one_row ? std::min(p.m, 1) : p.m, one_column ? std::min(p.n, 1) : p.n, false, false);
  if (one_row) x.row_stride = 0;
  if (one_column) x.col_stride = 0;
  if (nan) std::fill(w.buffers[x.buffer].begin(), w.buffers[x.buffer].end(), 0xFF);
  return x;
}

inline constexpr int32_t kItself = -2;  // as a source: C itself
inline Epilogue random_epilogue(Workload& w, const Problem& p) {
  Epilogue e{random_scalar(w), random_scalar(w), {}, {}, Activation::none, 0};
  e.source.buffer = e.bias.buffer = -1;
  if (chance(0.3)) {
    e.source.buffer = kItself;
  } else if (chance(0.7)) {
    e.source = random_addend(w, p, value_of(w, e.beta) == 0.0);
  }
  if (chance(0.5)) e.bias = random_addend(w, p, false);
  if (!is_complex(w.sum()) && !is_integer(w.sum())) e.activation = static_cast<Activation>(uniform(0, kActivations - 1));
  return e;
}

inline int random_size(int64_t limit) {
  constexpr int kSizes[] = {0, 1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 37, 48, 64, 97, 113, 127, 128, 129, 199, 257};
  return static_cast<int>(std::min(chance(0.5) ? uniform(1, 70) : kSizes[uniform(0, std::size(kSizes) - 1)], limit));
}

// tall: many rows, few columns and a short K, or few of everything; most of them without gaps.
inline Workload random_workload(Kind kind, DType out_dtype, int count, bool tall = false) {
  Workload w{kind, out_dtype, {}, {}, 0, {}, {}, {}};
  std::vector<bool> plain;
  for (int i = 0; i < count; ++i) {
    Problem p{};
    p.m = random_size(300), p.n = random_size(300), p.k = chance(0.1) ? static_cast<int>(uniform(250, 800)) : random_size(300);
    if (tall) {
      p.m = static_cast<int>(chance(0.5) ? 16 * uniform(1, 40) : uniform(1, 400)), p.k = random_size(70);
      p.n = static_cast<int>(chance(0.6) ? uniform(1, 9) : 8 * uniform(1, 4));
      if (chance(0.4)) p.m = static_cast<int>(uniform(1, 66)), p.n = static_cast<int>(uniform(1, 66));
    }
    plain.push_back(tall && chance(0.7));
    p.batch = chance(0.7) ? 1 : static_cast<int>(uniform(0, 6));
    p.inner_batch = static_cast<int>(uniform(1, 3));
    if (static_cast<double>(p.m) * p.n * p.k * p.batch > 4e6) p.batch = 1;
    p.a = lay_out(w, w.lhs(), p, p.m, p.k, false, plain.back());
    p.b = lay_out(w, w.rhs(), p, p.k, p.n, false, plain.back());
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
    p.c = lay_out(w, out_dtype, p, p.m, p.n, true, plain[i]);
    if (!finishing || w.epilogues[i].source.buffer != kItself) continue;
    w.epilogues[i].source = p.c;
    for_each_element(p, [&](int64_t b, int64_t row, int64_t col) {
      put_random(out_dtype, &w.buffers[p.c.buffer][element_of(p.c, p, b, row, col) * size_of(out_dtype)]);
    });
  }
  w.initial = results(w);
  return w;
}

// Covers all problems with tiles: boxes of tiles or single tiles, in any order, with several or one in a block. tile_id < 0: any tiles.
inline PlanData make_plan(const Workload& w, int tile_id, bool boxes, bool shuffle, int tiles_a_block) {
  PlanData plan;
  for (size_t i = 0; i < w.problems.size(); ++i) {
    const Problem& p = w.problems[i];
    const int row = tile_id >= 0 ? tile_id : static_cast<int>(uniform(0, kNumTiles - 1));
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

inline Part part_of(const Operand& x, const Problem& p, int64_t batch, int64_t row, int64_t col) {
  return {element_of(x, p, batch, row, col), static_cast<int32_t>(x.row_stride), static_cast<int32_t>(x.col_stride), x.buffer, 0};
}

// Covers all problems with ready tiles, in any order. Most tiles have up to `most` K slices, some of which are empty. A slice is a block,
// with one tile or several tiles that continue each other.
inline PlanData make_split_plan(const Workload& w, int tile_id, int most) {
  PlanData whole = make_plan(w, tile_id, false, false, 0), plan;
  std::vector<std::vector<ReadyTile>> blocks;
  for (const TileRun& run : whole.runs) {
    const Problem& p = w.problems[run.problem];
    const TileShape& shape = kTiles[run.tile_id];
    const int rows = std::min(shape.m, p.m - run.row), cols = std::min(shape.n, p.n - run.col), depth = run.k_end - run.k_begin;
    const int slices = chance(0.8) ? static_cast<int>(uniform(1, most)) : 1, step = (depth + slices - 1) / slices;
    const TilePosition place{run.tile_id, rows, cols, step, run.problem, run.batch, run.row, run.col};
    const Part c = part_of(p.c, p, run.batch, run.row, run.col);
    if (slices > 1) plan.splits.push_back({place, c, plan.num_sums, shape.m * shape.n, slices, shape.n, 0});
    for (int slice = 0; slice < slices; ++slice) {
      const int k = run.k_begin + std::min(slice * step, depth);
      ReadyTile tile{place, {part_of(p.a, p, run.batch, run.row, k), part_of(p.b, p, run.batch, k, run.col), c}, 0};
      tile.position.depth = std::min(step, run.k_end - k);
      if (slices > 1) tile.part[2] = {plan.num_sums, shape.n, 1, kStoreToWorkspace, 0}, plan.num_sums += shape.m * shape.n;
      blocks.emplace_back();
      const int end = k + tile.position.depth, pieces = chance(0.5) ? static_cast<int>(uniform(1, 4)) : 1;
      for (int piece = 0, at = k; piece < pieces; ++piece) {
        const int next = piece + 1 == pieces ? end : static_cast<int>(uniform(at, end));
        ReadyTile part = tile;
        part.position.depth = next - at;
        part.part[0] = part_of(p.a, p, run.batch, run.row, at), part.part[1] = part_of(p.b, p, run.batch, at, run.col);
        if (piece + 1 < pieces) part.part[2].buffer = kKeepAccumulators;
        blocks.back().push_back(part), at = next;
      }
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), rng);
  plan.block_first = {0};
  for (const std::vector<ReadyTile>& block : blocks) {
    plan.tiles.insert(plan.tiles.end(), block.begin(), block.end());
    plan.block_first.push_back(static_cast<int32_t>(plan.tiles.size()));
  }
  plan.num_tiles = static_cast<int32_t>(plan.tiles.size());
  return plan;
}

struct WorkloadCall {
  CpuCall call;
  std::vector<void*> pointers;
  std::vector<int64_t> elements;
  Bytes sums;
};
inline WorkloadCall make_call(Workload& w, const PlanData& plan) {
  WorkloadCall result;
  for (size_t i = 0; i < w.buffers.size(); ++i) {
    result.pointers.push_back(w.buffers[i].data());
    result.elements.push_back(w.buffers[i].size() / size_of(static_cast<int>(i) < w.num_operands ? w.lhs() : w.out_dtype));
  }
  result.sums = Bytes(plan.num_sums * accumulator_bytes(w.kind), 0xFF);
  const int32_t blocks = plan.block_first.empty() ? plan.num_tiles : static_cast<int32_t>(plan.block_first.size()) - 1;
  Descriptors descriptors{};
  descriptors.problems = w.problems.data();
  descriptors.epilogues = w.epilogues.empty() ? nullptr : w.epilogues.data();
  descriptors.runs = plan.runs.data();
  descriptors.tiles = plan.tiles.empty() ? nullptr : plan.tiles.data();
  descriptors.splits = plan.splits.data();
  descriptors.num_splits = static_cast<int32_t>(plan.splits.size());
  descriptors.block_first = plan.block_first.empty() ? nullptr : plan.block_first.data();
  descriptors.num_problems = static_cast<int32_t>(w.problems.size());
  descriptors.num_runs = static_cast<int32_t>(plan.runs.size());
  descriptors.num_tiles = plan.num_tiles;
  descriptors.num_blocks = blocks;
  result.call = {w.kind,
                 w.out_dtype,
                 descriptors,
                 result.pointers.data(),
                 result.elements.data(),
                 w.num_operands,
                 static_cast<int32_t>(w.buffers.size()),
                 result.sums.data(),
                 plan.num_sums,
                 false};
  result.call.may_stream = fills_caches(result.call);
  return result;
}
inline void clear_results(Workload& w) { std::copy(w.initial.begin(), w.initial.end(), w.buffers.begin() + w.num_operands); }

}  // namespace vbgemm::driver
