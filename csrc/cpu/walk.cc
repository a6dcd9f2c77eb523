// The walk over a plan: turns each tile's descriptor into a product that the kernels compute, and checks it on the way.
#include "cpu/walk.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "cpu/kernels.h"

namespace vbgemm {
namespace {

struct Range {
  int64_t begin, end;
};

Range cut(int64_t begin, int64_t end, int64_t size) {
  const int64_t first = std::clamp<int64_t>(begin, 0, std::max<int64_t>(size, 0));
  return {first, std::clamp<int64_t>(end, first, std::max(size, first))};
}

// The origin of a part of a problem's C: the matrix's offset in the batch, and the part's offset in the matrix.
struct Origin {
  int64_t outer, inner, row, col;
};
Origin origin(const Problem& problem, int64_t batch, int64_t row, int64_t col) {
  if (batch == 0) return {0, 0, row, col};  // the common case, without a division
  const int64_t inner = std::max(problem.inner_batch, 1);
  return {batch / inner, batch % inner, row, col};
}

void place(const CpuCall& call, DType dtype, const Operand& x, const Origin& at, int64_t row, int64_t col, Matrix& to) {
  int64_t element = x.offset + row * x.row_stride + col * x.col_stride;
  if (at.outer || at.inner) element += at.outer * x.batch_stride[0] + at.inner * x.batch_stride[1];
  to.data = static_cast<char*>(call.buffers[x.buffer]) + element * bytes_of(dtype);
  to.row_stride = x.row_stride, to.col_stride = x.col_stride;
}

// Reads a scalar: a number known at trace time, or an element of a buffer of accumulators.
void read_scalar(const CpuCall& call, const Scalar& scalar, double (&to)[2]) {
  to[0] = scalar.real, to[1] = scalar.imag;
  if (scalar.buffer < 0) return;
  const DTypeInfo& info = info_of(accumulator_of(call.kind));
  const char* from = static_cast<const char*>(call.buffers[scalar.buffer]) + scalar.offset * info.bytes;
  to[1] = 0;
  for (int part = 0; part < info.parts; ++part) {
    const int size = info.bytes / info.parts;
    float single;
    int32_t integer;
    if (size == 8) {
      std::memcpy(&to[part], from + part * size, size);
    } else if (info.exponent_bits == 0) {
      std::memcpy(&integer, from, size), to[part] = integer;
    } else {
      std::memcpy(&single, from + part * size, size), to[part] = single;
    }
  }
}

// Returns the run that holds a tile: the last run that begins at or before the tile.
const TileRun& run_of(const Descriptors& plan, int64_t tile) {
  if (plan.num_runs == plan.num_tiles) return plan.runs[tile];
  const TileRun* after =
      std::upper_bound(plan.runs + 1, plan.runs + plan.num_runs, tile, [](int64_t t, const TileRun& run) { return t < run.first_tile; });
  return after[-1];
}

// Reads the epilogue of a part of a problem's C.
const Finish* read_epilogue(const CpuCall& call, int32_t index, const Origin& at, Finish& finish) {
  const Epilogue& epilogue = call.plan.epilogues[index];
  read_scalar(call, epilogue.alpha, finish.alpha);
  read_scalar(call, epilogue.beta, finish.beta);
  finish.source = finish.bias = {};
  if (epilogue.source.buffer >= 0) place(call, call.out_dtype, epilogue.source, at, at.row, at.col, finish.source);
  if (epilogue.bias.buffer >= 0) place(call, call.out_dtype, epilogue.bias, at, at.row, at.col, finish.bias);
  finish.activation = epilogue.activation;
  return &finish;
}

// The properties shared by all products of a call.
Product product_of_call(const CpuCall& call) {
  Product product{};
  product.kind = call.kind, product.out_dtype = call.out_dtype, product.may_stream = call.may_stream;
  return product;
}

// Sets `product` to a tile's product, and returns whether there is anything to compute. The handler has checked the problem table against
// the buffers; here a tile is clipped to its problem, whatever its descriptor holds.
bool prepare_tile(Product& product, const CpuCall& call, int64_t tile, Finish& finish) {
  const Descriptors& plan = call.plan;
  const TileRun& run = run_of(plan, tile);
  if (run.problem < 0 || run.problem >= plan.num_problems || run.tile_id < 0 || run.tile_id >= kNumTiles) return false;

  const Problem& problem = plan.problems[run.problem];
  const TileShape& shape = kTiles[run.tile_id];
  int64_t batch = run.batch, row = run.row, col = run.col;
  if (plan.num_runs != plan.num_tiles) {
    const int64_t place = tile - run.first_tile;
    if (run.tiles_y <= 0 || run.tiles_x <= 0 || place < 0) return false;
    batch += place / run.tiles_x / run.tiles_y;
    row += place / run.tiles_x % run.tiles_y * shape.m, col += place % run.tiles_x * shape.n;
  }
  if (batch < 0 || batch >= problem.batch || row < 0 || row >= problem.m || col < 0 || col >= problem.n) return false;
  const int32_t k_begin = std::max(std::min(run.k_begin, problem.k), 0), k_end = std::max(std::min(run.k_end, problem.k), k_begin);

  const Arithmetic& arithmetic = arithmetic_of(call.kind);
  const Origin at = origin(problem, batch, row, col);
  product.m = std::min<int64_t>(shape.m, problem.m - row), product.n = std::min<int64_t>(shape.n, problem.n - col);
  product.k = k_end - k_begin;
  place(call, arithmetic.lhs, problem.a, at, row, k_begin, product.a);
  place(call, arithmetic.rhs, problem.b, at, k_begin, col, product.b);
  place(call, call.out_dtype, problem.c, at, row, col, product.c);
  product.finish = plan.epilogues ? read_epilogue(call, run.problem, at, finish) : nullptr;
  product.whole_m = problem.m, product.whole_n = problem.n;
  return true;
}

// Whether a tile's position lies inside C of an existing problem.
bool exists(const Descriptors& plan, const TilePosition& at) {
  if (at.problem < 0 || at.problem >= plan.num_problems || at.rows <= 0 || at.cols <= 0 || at.depth < 0) return false;
  const Problem& p = plan.problems[at.problem];
  return at.batch >= 0 && at.batch < p.batch && at.row >= 0 && at.col >= 0 && int64_t{at.row} + at.rows <= p.m &&
         int64_t{at.col} + at.cols <= p.n;
}

// Returns the epilogue of a tile, or null if the plan has none.
const Finish* epilogue_of(const CpuCall& call, const TilePosition& at, Finish& finish) {
  if (!call.plan.epilogues) return nullptr;
  return read_epilogue(call, at.problem, origin(call.plan.problems[at.problem], at.batch, at.row, at.col), finish);
}

// Returns a part of one of the buffers [first, last), or nothing if it exceeds the buffer.
std::optional<Matrix> part_of(const CpuCall& call, DType dtype, const Part& x, int64_t rows, int64_t cols, int32_t first, int32_t last) {
  if (x.buffer < first || x.buffer >= last || x.offset < 0 || x.row_stride < 0 || x.col_stride < 0) return {};
  if (rows == 0 || cols == 0) return Matrix{call.buffers[x.buffer], x.row_stride, x.col_stride};
  const __int128 end = static_cast<__int128>(x.offset) + (rows - 1) * x.row_stride + (cols - 1) * x.col_stride;
  if (end >= call.elements[x.buffer]) return {};
  return Matrix{static_cast<char*>(call.buffers[x.buffer]) + x.offset * bytes_of(dtype), x.row_stride, x.col_stride};
}

// Returns rows of accumulators in the workspace, or null if they exceed it.
char* sums_at(const CpuCall& call, int64_t first, int64_t rows, int64_t pitch, int64_t cols) {
  if (first < 0 || pitch < 0 || static_cast<__int128>(first) + (rows - 1) * pitch + cols > call.num_sums) return nullptr;
  return static_cast<char*>(call.sums) + first * accumulator_bytes(call.kind);
}

// A ready tile is checked against the buffers that it names, not against its problem.
std::optional<Factors> factors_of(const CpuCall& call, const ReadyTile& tile) {
  const TilePosition& at = tile.position;
  if (!exists(call.plan, at)) return {};
  const Arithmetic& arithmetic = arithmetic_of(call.kind);
  const std::optional<Matrix> a = part_of(call, arithmetic.lhs, tile.part[0], at.rows, at.depth, 0, call.num_operands);
  const std::optional<Matrix> b = part_of(call, arithmetic.rhs, tile.part[1], at.depth, at.cols, 0, call.num_operands);
  if (!a || !b) return {};
  return Factors{at.depth, *a, *b};
}

std::optional<Product> product_of_ready_tile(const CpuCall& call, const ReadyTile& tile, Finish& finish) {
  const TilePosition& at = tile.position;
  const std::optional<Factors> factors = factors_of(call, tile);
  if (!factors) return {};
  const Part& c_part = tile.part[2];
  const Problem& problem = call.plan.problems[at.problem];
  Product product{call.kind, call.out_dtype, at.rows,   at.cols,   factors->k, factors->a, factors->b,
                  {},        nullptr,        problem.m, problem.n, false};
  if (c_part.buffer == kStoreToWorkspace) {
    char* const sums = sums_at(call, c_part.offset, at.rows, c_part.row_stride, at.cols);
    if (!sums || c_part.col_stride != 1) return {};
    product.out_dtype = accumulator_of(call.kind), product.c = {sums, c_part.row_stride, 1};
    return product;
  }
  const std::optional<Matrix> c = part_of(call, call.out_dtype, c_part, at.rows, at.cols, call.num_operands, call.num_buffers);
  if (!c) return {};
  product.c = *c, product.finish = epilogue_of(call, at, finish);
  product.may_stream = call.may_stream;
  return product;
}

void add_split(const CpuCall& call, const SplitTile& split) {
  const TilePosition& at = split.position;
  if (!exists(call.plan, at) || split.slices < 1 || split.slice_stride < (split.slices > 1) || split.pitch < at.cols) return;
  const std::optional<Matrix> c = part_of(call, call.out_dtype, split.c, at.rows, at.cols, call.num_operands, call.num_buffers);
  const int64_t slice_length = int64_t{at.rows - 1} * split.pitch + at.cols;
  const char* const sums = sums_at(call, split.first, split.slices, split.slice_stride, slice_length);
  if (!c || !sums) return;
  Finish finish;
  const Finish* epilogue = epilogue_of(call, at, finish);
  kernels().add_partial_sums(
      {call.kind, call.out_dtype, at.rows, at.cols, sums, split.pitch, split.slices, split.slice_stride, *c, epilogue});
}

// Multiplies a ready tile, or the sum of consecutive ready tiles that `last` completes. Nothing is written if one of them does not have the
// size of the last one's part of C.
void multiply_ready_tiles(const CpuCall& call, const ReadyTile* first, const ReadyTile* last, Scratch& scratch) {
  thread_local std::vector<Factors> more;
  Finish finish;
  std::optional<Product> product = product_of_ready_tile(call, *last, finish);
  if (!product) return;
  if (first == last) return kernels().multiply(*product, scratch);
  more.clear();
  for (const ReadyTile* tile = first; tile < last; ++tile) {
    const bool same_size = tile->position.rows == product->m && tile->position.cols == product->n;
    const std::optional<Factors> factors = factors_of(call, *tile);
    if (!same_size || !factors) return;
    more.push_back(*factors);
  }
  more.push_back({product->k, product->a, product->b});
  product->k = more[0].k, product->a = more[0].a, product->b = more[0].b;
  kernels().multiply_sum(*product, more.data() + 1, static_cast<int64_t>(more.size()) - 1, scratch);
}

}  // namespace

bool fills_caches(const CpuCall& call) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < call.num_buffers; ++i) {
    const DType dtype = i < call.num_operands ? arithmetic_of(call.kind).lhs : call.out_dtype;
    bytes += call.elements[i] * bytes_of(dtype);
  }
  return bytes >= kCacheBytes;
}

void run_blocks(const CpuCall& call, int64_t begin, int64_t end) {
  thread_local Scratch scratch;
  const Descriptors& plan = call.plan;
  const auto multiply = kernels().multiply;
  Product product = product_of_call(call);
  if (!plan.tiles && plan.num_runs <= 0) return;
  for (int64_t block = begin; block < end; ++block) {
    const Range tiles = plan.block_first ? cut(plan.block_first[block], plan.block_first[block + 1], plan.num_tiles)
                                         : Range{block, std::min<int64_t>(block + 1, plan.num_tiles)};
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      if (plan.tiles) {
        const int64_t first = tile;
        while (tile + 1 < tiles.end && plan.tiles[tile].part[2].buffer == kKeepAccumulators) ++tile;
        multiply_ready_tiles(call, plan.tiles + first, plan.tiles + tile, scratch);
        continue;
      }
      Finish finish;
      if (prepare_tile(product, call, tile, finish)) multiply(product, scratch);
    }
  }
}

void add_splits(const CpuCall& call, int64_t begin, int64_t end) {
  for (int64_t split = begin; split < end; ++split) add_split(call, call.plan.splits[split]);
}

int64_t threads_for_blocks(const CpuCall& call, int64_t available) {
  const int64_t most = std::min<int64_t>(available, call.plan.num_blocks);
  if (most <= 1) return most;
  double work = 0;
  for (int32_t i = 0; i < call.plan.num_problems && work < most * kWorkPerThread; ++i) {
    const Problem& p = call.plan.problems[i];
    const double m = p.m, n = p.n, k = p.k;
    work += p.batch * (m * n * k + kWorkPerMove * (m * n + m * k + k * n));
  }
  return threads_for(work, most);
}

int64_t threads_for_splits(const CpuCall& call, int64_t available) {
  return threads_for(kWorkPerMove * call.num_sums, std::min<int64_t>(available, call.plan.num_splits));
}

}  // namespace vbgemm
