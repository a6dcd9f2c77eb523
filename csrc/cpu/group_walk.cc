// Divides ragged products into pieces, and computes the pieces.
#include "cpu/group_walk.h"

#include <algorithm>

namespace vbgemm {
namespace {

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

char* element(const void* data, int64_t index, DType dtype) {
  return static_cast<char*>(const_cast<void*>(data)) + index * bytes_of(dtype);
}

// Returns the number of rows of a group: at most as many as its entry has after row `begin`. The last group of a batch's entry has all of
// them, whatever its size says, so that no entry's sizes lead to rows of another.
int64_t rows_of(const RaggedCall& call, int64_t group, int64_t begin) {
  const int64_t each = call.total_groups / call.entries, left = (group / each + 1) * call.entry_rows() - begin;
  if (call.entries > 1 && group % each == each - 1) return left;
  const void* const sizes = call.group_sizes;
  const int64_t size = call.wide_sizes ? static_cast<const int64_t*>(sizes)[group] : static_cast<const int32_t*>(sizes)[group];
  return std::clamp<int64_t>(size, 0, left);
}

// The products of a call's groups.
class Groups {
 public:
  Groups(const RaggedCall& call, GroupWalk& walk)
      : call_(call), walk_(walk), offset_(call.group_offset ? *static_cast<const int32_t*>(call.group_offset) : 0) {}

  void add_products() const {
    int64_t row = 0, complete = 0;  // complete: the matrices of a contraction that have their group
    for (int64_t group = 0; group < call_.total_groups; ++group) {
      const int64_t w = matrix_of(group), rows = rows_of(call_, group, row);
      if (call_.contraction && w >= 0) {
        add_zero_groups(complete, w);
        add_contraction(w, row, rows);
        complete = w + 1;
      }
      if (!call_.contraction) w < 0 ? add_zero_rows(row, row + rows) : add_rows(w, row, rows);
      row += rows;
    }
    call_.contraction ? add_zero_groups(complete, call_.groups) : add_zero_rows(row, call_.m);
  }

 private:
  // Returns the index of a group's matrix, or -1 if it has none.
  int64_t matrix_of(int64_t group) const {
    if (call_.entries > 1) {
      const int64_t each = call_.total_groups / call_.entries, entry = group / each, within = group % each;
      return within == 0 || within == each - 1 ? -1 : group - 2 * entry - 1;
    }
    const int64_t w = group - offset_;
    return w >= 0 && w < call_.groups ? w : -1;
  }
  void add_rows(int64_t w, int64_t row, int64_t rows) const {
    if (rows == 0) return;
    void* const weights = element(call_.rhs, w % call_.rhs_groups * call_.k * call_.n, call_.dtype);
    const Matrix b = call_.transpose_rhs ? Matrix{weights, 1, call_.k} : Matrix{weights, call_.n, 1};
    GroupProduct product{rows, call_.n, call_.k, lhs_from(row), b, rows_from(row), {}, {}};
    if (call_.bias) product.bias = {element(call_.bias, w * call_.n, call_.out_dtype), 0, 1};
    if (call_.row_scale) product.scale = {element(call_.row_scale, row, accumulator_of(call_.kind)), 1, 0};
    walk_.add(product);
  }
  void add_contraction(int64_t w, int64_t row, int64_t rows) const {
    const Matrix a = lhs_from(row);
    walk_.add(
        {call_.k, call_.n, rows, {a.data, 1, call_.k}, {element(call_.rhs, row * call_.n, call_.dtype), call_.n, 1}, result(w), {}, {}});
  }
  void add_zero_rows(int64_t begin, int64_t end) const {
    if (begin < end && !call_.undefined_rest) walk_.add({end - begin, call_.n, 0, lhs_from(0), lhs_from(0), rows_from(begin), {}, {}});
  }
  void add_zero_groups(int64_t begin, int64_t end) const {
    for (int64_t w = begin; w < end; ++w) walk_.add({call_.k, call_.n, 0, lhs_from(0), lhs_from(0), result(w), {}, {}});
  }

  Matrix lhs_from(int64_t row) const { return {element(call_.lhs, row % call_.lhs_rows * call_.k, call_.dtype), call_.k, 1}; }
  Matrix rows_from(int64_t row) const { return {element(call_.out, row * call_.n, call_.out_dtype), call_.n, 1}; }
  Matrix result(int64_t w) const { return {element(call_.out, w * call_.k * call_.n, call_.out_dtype), call_.n, 1}; }

  const RaggedCall& call_;
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
  if (results_of(call) * bytes_of(call.out_dtype) >= kCacheBytes) walk.allow_streaming();
  Groups(call, walk).add_products();
}

}  // namespace vbgemm
