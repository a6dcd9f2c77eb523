// Divides ragged products into pieces, and computes the pieces.
#include "cpu/group_walk.h"

#include <algorithm>

namespace vbgemm {
namespace {

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

char* element(const void* data, int64_t index, DType dtype) {
  return static_cast<char*>(const_cast<void*>(data)) + index * bytes_of(dtype);
}

// Returns the number of rows of a group, at most as many as there are after row `begin`.
int64_t rows_of(const RaggedCall& call, int64_t group, int64_t begin) {
  const void* const sizes = call.group_sizes.data;
  const int64_t size = call.wide_sizes ? static_cast<const int64_t*>(sizes)[group] : static_cast<const int32_t*>(sizes)[group];
  return std::clamp<int64_t>(size, 0, call.m - begin);
}

// One entry of a call: its operands, and the products of its groups.
class Entry {
 public:
  Entry(const RaggedCall& entry, GroupWalk& walk)
      : call_(entry), walk_(walk), offset_(entry.group_offset.data ? *static_cast<const int32_t*>(entry.group_offset.data) : 0) {}

  void add_products() const {
    const int64_t first = std::clamp<int64_t>(offset_, 0, call_.total_groups);
    const int64_t last = std::clamp<int64_t>(offset_ + call_.groups, first, call_.total_groups);
    int64_t row = 0;
    for (int64_t group = 0; group < first; ++group) row += rows_of(call_, group, row);
    if (call_.contraction) {
      const int64_t before = std::clamp<int64_t>(first - offset_, 0, call_.groups), behind = before + last - first;
      add_zero_groups(0, before);
      for (int64_t group = first; group < last; ++group) row = add_contraction(group - offset_, row, rows_of(call_, group, row));
      add_zero_groups(behind, call_.groups);
    } else {
      if (!call_.undefined_rest) add_zero_rows(0, row);
      for (int64_t group = first; group < last; ++group) row = add_rows(group - offset_, row, rows_of(call_, group, row));
      if (!call_.undefined_rest) add_zero_rows(row, call_.m);
    }
  }

 private:
  int64_t add_rows(int64_t w, int64_t row, int64_t rows) const {
    if (rows == 0) return row;
    void* const weights = element(call_.rhs.data, w * call_.k * call_.n, call_.dtype);
    const Matrix b = call_.transpose_rhs ? Matrix{weights, 1, call_.k} : Matrix{weights, call_.n, 1};
    GroupProduct product{rows, call_.n, call_.k, lhs_from(row), b, rows_from(row), {}, {}};
    if (call_.bias.data) product.bias = {element(call_.bias.data, w * call_.n, call_.out_dtype), 0, 1};
    if (call_.row_scale.data) product.scale = {element(call_.row_scale.data, row, accumulator_of(call_.kind)), 1, 0};
    walk_.add(product);
    return row + rows;
  }
  int64_t add_contraction(int64_t w, int64_t row, int64_t rows) const {
    const Matrix a = lhs_from(row);
    walk_.add({call_.k,
               call_.n,
               rows,
               {a.data, 1, call_.k},
               {element(call_.rhs.data, row * call_.n, call_.dtype), call_.n, 1},
               result(w),
               {},
               {}});
    return row + rows;
  }
  void add_zero_rows(int64_t begin, int64_t end) const {
    if (begin < end) walk_.add({end - begin, call_.n, 0, lhs_from(0), lhs_from(0), rows_from(begin), {}, {}});
  }
  void add_zero_groups(int64_t begin, int64_t end) const {
    for (int64_t w = begin; w < end; ++w) walk_.add({call_.k, call_.n, 0, lhs_from(0), lhs_from(0), result(w), {}, {}});
  }

  Matrix lhs_from(int64_t row) const { return {element(call_.lhs.data, row * call_.k, call_.dtype), call_.k, 1}; }
  Matrix rows_from(int64_t row) const { return {element(call_.out, row * call_.n, call_.out_dtype), call_.n, 1}; }
  Matrix result(int64_t w) const { return {element(call_.out, w * call_.k * call_.n, call_.out_dtype), call_.n, 1}; }

  const RaggedCall call_;
  GroupWalk& walk_;
  const int64_t offset_;
};

Matrix from(const Matrix& x, int64_t row, int64_t col, DType dtype) {
  return {x.data ? element(x.data, row * x.row_stride + col * x.col_stride, dtype) : nullptr, x.row_stride, x.col_stride};
}

// Pieces have the sizes of the catalogue's CPU tiles, which suit a core's caches. A piece with few rows gets more columns, and vice versa.
constexpr int64_t kPiecesPerThread = 8;

// The number of parts into which a length is divided. A length that exceeds `part` only slightly is not divided.
int64_t parts(int64_t length, int64_t part) { return std::max<int64_t>(1, ceil_div(length - part / 4, part)); }

// The number of parts into which the rows and the columns of a product are divided.
struct PieceCounts {
  int64_t rows, cols;
};
PieceCounts piece_counts(const GroupProduct& p, int64_t rows, int64_t cols) {
  const int64_t area = rows * cols;
  if (p.m * 4 <= rows) cols = area / (rows / 4);
  if (p.n * 4 <= cols) rows = area / (cols / 4);
  return {parts(p.m, rows), parts(p.n, cols)};
}

}  // namespace

void GroupWalk::add(const GroupProduct& product) {
  products_.push_back(product);
  const double m = product.m, n = product.n, k = product.k;
  work_ += m * n * k + kWorkPerMove * (m * n + m * k + k * n);
}

void GroupWalk::cut(int64_t threads) {
  first_piece_.resize(products_.size() + 1);
  for (int index = kNumTiles - 1; index >= 0; --index) {  // largest first
    const TileShape& tile = kTiles[index];
    if (tile.is_gpu() || is_far_longer(tile)) continue;
    rows_ = tile.m, cols_ = tile.n;
    int64_t count = 0;
    for (size_t i = 0; i < products_.size(); ++i) {
      first_piece_[i] = count;
      const PieceCounts parts = piece_counts(products_[i], rows_, cols_);
      count += parts.rows * parts.cols;
    }
    first_piece_.back() = count;
    if (threads <= 1 || count >= kPiecesPerThread * threads) return;
  }
}

void GroupWalk::run(int64_t begin, int64_t end) const {
  thread_local Scratch scratch;
  auto product = std::upper_bound(first_piece_.begin(), first_piece_.end(), begin) - first_piece_.begin() - 1;
  for (int64_t piece = begin; piece < end; ++piece) {
    while (piece >= first_piece_[product + 1]) ++product;
    const GroupProduct& p = products_[product];
    const PieceCounts parts = piece_counts(p, rows_, cols_);
    // The row index varies fastest: consecutive pieces use the same columns of b, which stay in a cache.
    const int64_t index = piece - first_piece_[product], y = index % parts.rows, x = index / parts.rows;
    const int64_t row = p.m * y / parts.rows, rows = p.m * (y + 1) / parts.rows - row;
    const int64_t col = p.n * x / parts.cols, cols = p.n * (x + 1) / parts.cols - col;
    const Arithmetic& arithmetic = arithmetic_of(kind_);
    const Matrix scale = from(p.scale, row, col, arithmetic.accumulator());
    Finish finish{{1, 0}, {0, 0}, {}, from(p.bias, row, col, out_dtype_), activation_, scale};
    const bool finishes = p.k > 0 && (finish.bias.data || finish.scale.data || activation_ != Activation::none);
    kernels().multiply({kind_, out_dtype_, rows, cols, p.k, from(p.a, row, 0, arithmetic.lhs), from(p.b, 0, col, arithmetic.rhs),
                        from(p.c, row, col, out_dtype_), finishes ? &finish : nullptr, p.m, p.n, may_stream_},
                       scratch);
  }
}

void add_products(const RaggedCall& call, GroupWalk& walk) {
  const int64_t bytes = call.batch[0] * call.batch[1] * results_of(call) * bytes_of(call.out_dtype);
  if (bytes >= kCacheBytes) walk.allow_streaming();
  for (int64_t outer = 0; outer < call.batch[0]; ++outer) {
    for (int64_t inner = 0; inner < call.batch[1]; ++inner) Entry(entry_of(call, outer, inner), walk).add_products();
  }
}

}  // namespace vbgemm
