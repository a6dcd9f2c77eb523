// Checks random ragged calls against float64: group sizes of any value, windows of the groups, and batches that share factors. Operands
// and results are in memory that ends where an unmapped page begins.
#pragma once
#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "cpu_driver/memory.h"
#include "cpu_driver/number.h"
#include "expected_activation.h"
#include "ragged.h"

namespace vbgemm::driver {

inline int ragged_failures = 0;
inline void ragged_fail(const char* what, DType dtype, int64_t index, double got, double expected) {
  if (++ragged_failures > 20) return;
  std::printf("FAIL %s, %s: element %ld is %g, expected %g\n", what, name_of(dtype), index, got, expected);
}

// Elements in guarded memory, the same numbers in float64, and their absolute values.
struct Numbers {
  DType dtype;
  Bytes bytes;
  std::vector<Wide> values;
  std::vector<double> sizes;

  Numbers(DType dtype, int64_t count) : dtype(dtype), bytes(count * bits_of(dtype) / 8), values(count), sizes(count) {
    const int64_t most = int64_t{1} << (std::min(bits_of(dtype), 8) - 1);  // of integers
    for (int64_t i = 0; i < count; ++i) {
      const double part[2] = {is_integer(dtype) ? uniform(-most, most - 1) : uniform(-8, 8) / 8.0,
                              is_complex(dtype) ? uniform(-8, 8) / 8.0 : 0};
      set(i, {part[0], part[1]});
    }
  }
  void set(int64_t i, Wide x) {
    values[i] = x, sizes[i] = std::abs(x);
    if (bits_of(dtype) >= 8) return put(dtype, &bytes[i * size_of(dtype)], x);
    // Two share a byte, the first in its low half.
    const int shift = static_cast<int>(4 * (i % 2)), integer = std::isfinite(x.real()) ? static_cast<int>(x.real()) : 7;
    bytes[i / 2] = static_cast<unsigned char>((bytes[i / 2] & 0xf0 >> shift) | (integer & 0xf) << shift);
  }
  void fill(int64_t begin, int64_t end, double x) {
    for (int64_t i = begin; i < end; ++i) set(i, {x, x});
  }
};

// Group sizes in one of the two integer types.
struct SizesOfGroups {
  std::vector<int64_t> values;
  bool wide;
  Bytes bytes;

  explicit SizesOfGroups(std::vector<int64_t> given) : values(std::move(given)), wide(chance(0.5)), bytes(values.size() * (wide ? 8 : 4)) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!wide) values[i] = std::clamp<int64_t>(values[i], INT32_MIN, INT32_MAX);
      const auto narrow = static_cast<int32_t>(values[i]);
      std::memcpy(&bytes[i * (wide ? 8 : 4)], wide ? static_cast<const void*>(&values[i]) : &narrow, wide ? 8 : 4);
    }
  }
};

inline std::vector<int64_t> random_sizes(int64_t groups, int64_t rows) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t usual = uniform(0, 2 * rows / groups + 1);
    const int64_t odd[] = {-1, INT64_MIN, INT64_MAX, INT32_MAX, rows, 0};
    sizes.push_back(chance(0.15) ? odd[uniform(0, 5)] : usual);
  }
  return sizes;
}

inline void expect(const char* what, const Numbers& got, int64_t index, Wide sum, double magnitude, int64_t terms) {
  const Wide x = get(got.dtype, &got.bytes[index * size_of(got.dtype)]);
  const DType wide = accumulator_of(got.dtype);
  const double tolerance = (terms + 8) * magnitude * epsilon(wide) + 2 * std::abs(sum) * epsilon(got.dtype);
  for (int part = 0; part < (is_complex(got.dtype) ? 2 : 1); ++part) {
    const double y = part ? x.imag() : x.real(), t = part ? sum.imag() : sum.real();
    if (!agrees(y, t, tolerance)) ragged_fail(what, got.dtype, index, y, t);
  }
}

// Which calls are drawn.
struct RaggedRange {
  std::vector<DType> dtypes;  // that have kernels
  int64_t m, k, n;            // at most
  // Null: calls for the CPU. Otherwise the kernels that are linked: half of the calls that a pipelined kernel takes are for it, and the
  // others for the tiles of the catalogue; all are for the pipelined kernel if there are none.
  std::vector<int32_t> (*tiles_of)(Kind) = nullptr;
  bool (*has_pipeline)(Kind, bool contraction, bool transpose_rhs) = nullptr;
  bool is_mixed = false;  // ragged rows of 16-bit types have narrower weights
};

inline std::vector<DType> ragged_dtypes() {
  std::vector<DType> dtypes;
  for (const Arithmetic& one : kArithmetics) {
    const bool known = std::find(dtypes.begin(), dtypes.end(), one.lhs) != dtypes.end();
    if (one.lhs == one.rhs && bytes_of(one.lhs) > 1 && !known) dtypes.push_back(one.lhs);
  }
  return dtypes;
}

// The arithmetics of 8-bit factors, of which there are pipelined kernels alone.
inline std::vector<Kind> scaled_kinds(DType lhs) {
  std::vector<Kind> kinds;
  for (int i = 0; i < kKinds; ++i) {
    if (has_scales(static_cast<Kind>(i)) && kArithmetics[i].lhs == lhs) kinds.push_back(static_cast<Kind>(i));
  }
  return kinds;
}

// A random call and its operands.
class RandomRagged {
 public:
  explicit RandomRagged(const RaggedRange& range)
      : call_(drawn(range)),
        lhs_(call_.dtype, 0),
        rhs_(lhs_),
        second_(lhs_),
        bias_(lhs_),
        scale_(lhs_),
        lhs_scale_(lhs_),
        rhs_scale_(lhs_),
        out_(lhs_) {
    const bool real = !is_complex(call_.dtype), finishes = call_.gated || (!call_.contraction && chance(0.5));
    if (finishes && real) call_.activation = static_cast<Activation>(uniform(0, kActivations - 1));
    if (call_.plan.shape != RaggedShape::none &&
        has_ragged_pipeline(call_.kind, call_.rhs_dtype, call_.contraction, call_.transpose_rhs, true, RaggedShape::wide) && chance(0.4)) {
      draw_gather();
    }
    if (!has_ragged_pipeline(call_.kind, call_.rhs_dtype, call_.contraction, call_.transpose_rhs, !gather_.empty(), call_.plan.shape) &&
        call_.plan.shape == RaggedShape::wide_pair) {
      call_.plan.shape = RaggedShape::wide;
    }
    const int64_t weights = (call_.contraction ? call_.m : call_.rhs_groups * call_.rhs_k()) * call_.rhs_columns();
    lhs_ = operand(call_.lhs, call_.dtype, call_.lhs_rows * call_.lhs_columns());
    rhs_ = operand(call_.rhs, call_.rhs_dtype, weights);
    if (call_.is_mixed() && !is_integer(call_.rhs_dtype) && call_.activation == Activation::none && chance(0.5)) {
      rhs_.set(uniform(0, weights - 1), NAN);
    }
    if (has_second()) second_ = operand(call_.second, call_.rhs_dtype, weights);
    if (has_scales()) draw_scales();
    if (finishes && chance(0.7)) bias_ = operand(call_.bias, call_.out_dtype, call_.groups * call_.columns());
    if (finishes && real && call_.plan.tile < 0 && chance(0.7))
      scale_ = operand(call_.row_scale, ragged_accumulator_of(call_.kind), call_.m);
    out_ = Numbers(call_.out_dtype, results_of(call_));
    call_.out = out_.bytes.data();
    if (call_.plan.shape != RaggedShape::none && call_.contraction && call_.out_dtype == DType::f32 && chance(0.5)) {
      call_.accumulator = call_.out;
    }
    start_ = out_.bytes;
    if (!call_.accumulator) std::fill(start_.begin(), start_.end(), 0xFF);  // NaN
    draw_groups();
    if (!call_.group_offset && call_.entries == 1 && chance(0.5)) hide_what_is_never_read();
    workspace_ = Bytes(ragged_workspace_bytes(call_), 99);
    call_.workspace = workspace_.data(), call_.workspace_bytes = static_cast<int64_t>(workspace_.size());
  }
  RandomRagged(const RandomRagged&) = delete;
  RandomRagged& operator=(const RandomRagged&) = delete;

  const RaggedCall& call() const { return call_; }
  const Bytes& results() const { return out_.bytes; }
  // Writes what the results are added to, or else NaN.
  void spoil_results() { std::copy(start_.begin(), start_.end(), out_.bytes.begin()); }

  // What was drawn, in a line.
  void describe() const {
    const RaggedCall& c = call_;
    std::printf(
        "  of %s, %s: m %ld, k %ld, n %ld, groups %ld (%ld), rows of lhs %ld, entries %ld, shape %d, tile %d,%s%s%s halves %s, activation "
        "%d,%s%s",
        arithmetic_of(c.kind).name, name_of(c.rhs_dtype), c.m, c.k, c.n, c.groups, c.rhs_groups, c.lhs_rows, c.entries,
        static_cast<int>(c.plan.shape), c.plan.tile, c.contraction ? " contraction," : "", c.transpose_rhs ? " transposed," : "",
        c.gated ? " gated," : "", kRaggedHalvesNames[static_cast<int>(c.halves)], static_cast<int>(c.activation), c.bias ? " bias," : "",
        c.row_scale ? " row scale," : "");
    std::printf(" scales' blocks %ld, %ld x %ld\n", c.lhs_scale ? c.lhs_blocks : 0, c.rhs_scale ? c.rhs_k_blocks : 0, c.rhs_column_blocks);
  }

  void check() const {
    std::vector<bool> written(results_of(call_));
    int64_t row = 0;
    for (int64_t group = 0; group < call_.total_groups; ++group) {
      const int64_t rows = rows_of(group, row), matrix = matrix_of(group);
      if (matrix >= 0 && matrix < call_.groups) {
        if (call_.contraction) check_contraction(matrix, row, rows, written);
        if (!call_.contraction) check_rows(matrix, row, rows, written);
      }
      row += rows;
    }
    for (int64_t i = 0; i < results_of(call_); ++i) {
      if (written[i]) continue;
      if (call_.undefined_rest) {
        expect_as_before(i);
      } else {
        expect("no products", out_, i, start(i), 0, 0);
      }
    }
  }

 private:
  // That an element of the results is what was in its memory before the call.
  void expect_as_before(int64_t index) const {
    const int64_t size = size_of(call_.out_dtype), begin = index * size;
    if (std::memcmp(&out_.bytes[begin], &start_[begin], size) != 0)
      ragged_fail("an undefined row was written", call_.out_dtype, index, 0, 0);
  }

  // To what an element of the results is added.
  Wide start(int64_t index) const { return call_.accumulator ? out_.values[index] : Wide{0}; }

  static RaggedCall drawn(const RaggedRange& range) {
    RaggedCall call{};
    call.dtype = range.dtypes[uniform(0, static_cast<int64_t>(range.dtypes.size()) - 1)];
    call.out_dtype = accumulator_of(call.dtype) != call.dtype && chance(0.3) ? DType::f32 : call.dtype;
    call.kind = kind_of(call.dtype, call.dtype), call.rhs_dtype = call.dtype;
    call.contraction = chance(0.4), call.transpose_rhs = !call.contraction && chance(0.5);
    const bool has_tf32 = range.tiles_of && (range.has_pipeline(Kind::tf32, false, true) || !range.tiles_of(Kind::tf32).empty());
    if (has_tf32 && call.dtype == DType::f32 && (range.tiles_of(call.kind).empty() || chance(0.5))) {
      call.kind = Kind::tf32;  // of which the operands here have no more bits
      if (range.tiles_of(call.kind).empty()) call.contraction = false, call.transpose_rhs = true;
    }
    if (bytes_of(call.dtype) == 1) {
      std::vector<Kind> kinds = scaled_kinds(call.dtype);
      kinds.erase(std::remove_if(kinds.begin(), kinds.end(), [&](Kind kind) { return !range.has_pipeline(kind, false, true); }),
                  kinds.end());
      call.kind = kinds[uniform(0, static_cast<int64_t>(kinds.size()) - 1)];
      call.out_dtype = chance(0.5) ? DType::f32 : DType::bf16;
      call.contraction = call.contraction && range.has_pipeline(call.kind, true, true), call.transpose_rhs = true;
      call.rhs_dtype = arithmetic_of(call.kind).rhs;
    }
    if (range.is_mixed) {
      constexpr DType kWeights[] = {DType::s8, DType::e4m3, DType::s4};
      call.contraction = false, call.transpose_rhs = true, call.rhs_dtype = kWeights[uniform(0, 2)];
    }
    call.plan = drawn_plan(range, call);
    const bool pipelined = call.plan.shape != RaggedShape::none;
    if (range.is_mixed && pipelined) call.plan.shape = RaggedShape::wide;
    call.gated = pipelined && !call.contraction && chance(0.3);
    // Two sums of int8, multiplied, exceed float16.
    if (call.is_mixed() && call.gated && call.dtype == DType::f16) call.out_dtype = DType::f32;
    const int64_t multiple = pipelined ? 128 / bits_of(call.rhs_dtype) : 1;
    const auto size = [&](int64_t most) { return multiple * uniform(1, std::max<int64_t>(most / multiple, 1)); };
    const int64_t part = chance(0.1) ? 1 : 6;  // most are small
    const bool along_k = call.contraction && call.transpose_rhs;
    const int64_t part_of_k = call.is_mixed() ? uniform(1, 2) : part;  // several steps of a stage, and blocks of scales
    call.m = along_k ? size(range.m / part) : uniform(1, range.m / part);
    call.k = size(range.k / part_of_k), call.n = size(range.n / part);
    if (pipelined && !along_k && !call.is_mixed() && chance(0.3)) draw_halves(call);
    call.groups = call.total_groups = uniform(1, 9);
    call.fast_accumulation = vbgemm::has_scales(call.kind) && chance(0.5);
    call.undefined_rest = !call.contraction && chance(0.3);
    call.lhs_rows = call.m, call.rhs_groups = call.groups, call.entries = 1;
    if (chance(0.4)) draw_entries(call);
    return call;
  }

  // Makes the call one of a batch, whose entries may share lhs or rhs.
  static void draw_entries(RaggedCall& call) {
    const bool along_k = call.contraction && call.transpose_rhs;
    call.entries = uniform(2, 4);
    const int64_t rows = along_k ? kScaledDepth * uniform(1, 3) : tiles_over(call.m, call.entries), matrices = uniform(1, 4);
    call.m = call.lhs_rows = rows * call.entries, call.groups = call.rhs_groups = matrices * call.entries;
    call.total_groups = (matrices + 2) * call.entries;
    const bool scaled = vbgemm::has_scales(call.kind) || bytes_of(call.rhs_dtype) == 1;
    if (!scaled && chance(0.3)) call.lhs_rows = rows;
    if (!call.contraction && chance(0.3)) call.rhs_groups = matrices;
  }

  static void draw_halves(RaggedCall& call) {
    const auto in_halves = [&](int64_t size) {
      const int both = 2 * ragged_half_elements(call.kind);
      return tiles_over(size, both) * both;
    };
    if (call.contraction) {
      call.halves = static_cast<RaggedHalves>(uniform(static_cast<int64_t>(RaggedHalves::lhs_first), kRaggedHalves - 1));
    } else if (call.gated || chance(0.5)) {
      call.halves = RaggedHalves::columns;
      if (!call.gated) call.n = in_halves(call.n);
    } else {
      call.halves = RaggedHalves::k;
      call.k = in_halves(call.k);
    }
  }

  static RaggedPlan drawn_plan(const RaggedRange& range, const RaggedCall& call) {
    if (!range.tiles_of) return {RaggedShape::none, 0, -1};
    const std::vector<int32_t> tiles = bytes_of(call.rhs_dtype) == 1 ? std::vector<int32_t>() : range.tiles_of(call.kind);
    if (tiles.empty() || (range.has_pipeline(call.kind, call.contraction, call.transpose_rhs) && chance(0.5))) {
      return {static_cast<RaggedShape>(uniform(1, kRaggedShapes - 1)), chance(0.5), -1};
    }
    return {RaggedShape::none, 0, tiles[uniform(0, static_cast<int64_t>(tiles.size()) - 1)]};
  }

  Numbers operand(const void*& x, DType dtype, int64_t elements) const {
    Numbers numbers(dtype, elements);
    x = numbers.bytes.data();
    return numbers;
  }

  // Indices, of which some are out of range.
  void draw_gather() {
    call_.lhs_rows = uniform(1, 2 * call_.m);
    for (int64_t i = 0; i < call_.m; ++i) gather_.push_back(static_cast<int32_t>(uniform(-3, call_.lhs_rows + 2)));
    gather_bytes_ = Bytes(gather_.size() * sizeof(int32_t));
    std::memcpy(gather_bytes_.data(), gather_.data(), gather_bytes_.size());
    call_.gather = gather_bytes_.data();
  }
  void draw_scales() {
    const auto blocks = [](int64_t size, int each) { return chance(0.3) ? 1 : tiles_over(size, each); };
    const auto scales = [&](const void*& x, int64_t elements) {
      Numbers numbers = operand(x, DType::f32, elements);
      for (size_t i = 0; i < numbers.values.size(); ++i) numbers.set(static_cast<int64_t>(i), uniform(1, 16) / 8.0);
      return numbers;
    };
    call_.rhs_k_blocks = blocks(call_.contraction ? call_.m : call_.k, kScaledDepth);
    if (!call_.is_mixed() && chance(0.8)) {
      call_.lhs_blocks = blocks(call_.k, call_.contraction ? kScaledColumns : kScaledDepth);
      lhs_scale_ = scales(call_.lhs_scale, (call_.contraction ? call_.rhs_k_blocks : call_.lhs_rows) * call_.lhs_blocks);
    }
    if (chance(0.8)) {
      const bool in_both_halves = call_.gated && call_.n % kScaledColumns;
      call_.rhs_column_blocks = in_both_halves ? 1 : blocks(call_.columns(), kScaledColumns);
      if (!call_.contraction && chance(0.5)) {
        call_.rhs_column_blocks = call_.columns();
        if (!call_.is_mixed()) call_.rhs_k_blocks = 1;
      }
      rhs_scale_ = scales(call_.rhs_scale, (call_.contraction ? 1 : call_.groups) * call_.rhs_k_blocks * call_.rhs_column_blocks);
    }
  }
  // The product of the scales of elements (row, k) of lhs and (k, col) of a matrix of rhs.
  double scale_of(int64_t matrix, int64_t row, int64_t col, int64_t k) const {
    double scale = 1;
    if (call_.lhs_scale) {
      const int64_t block = call_.lhs_blocks > 1 ? k / kScaledDepth : 0;
      scale *= lhs_scale_.values[row * call_.lhs_blocks + block].real();
    }
    if (call_.rhs_scale) {
      const int64_t deep = call_.rhs_k_blocks > 1 ? k / kScaledDepth : 0;
      const int64_t across = has_column_scales(call_) ? col : call_.rhs_column_blocks > 1 ? col / kScaledColumns : 0;
      const int64_t block = (matrix * call_.rhs_column_blocks + across) * call_.rhs_k_blocks + deep;
      scale *= rhs_scale_.values[block].real();
    }
    return scale;
  }
  // The same of a contraction, of elements (row, i) of lhs and (row, j) of rhs.
  double scale_of_columns(int64_t row, int64_t i, int64_t j) const {
    const int64_t deep = call_.rhs_k_blocks > 1 ? row / kScaledDepth : 0;
    const auto scale = [&](const void* x, const Numbers& numbers, int64_t blocks, int64_t col) {
      const int64_t across = blocks > 1 ? col / kScaledColumns : 0;
      return x ? numbers.values[across * call_.rhs_k_blocks + deep].real() : 1;
    };
    return scale(call_.lhs_scale, lhs_scale_, call_.lhs_blocks, i) * scale(call_.rhs_scale, rhs_scale_, call_.rhs_column_blocks, j);
  }
  int64_t lhs_row(int64_t row) const {
    return gather_.empty() ? row % call_.lhs_rows : std::clamp<int64_t>(gather_[row], 0, call_.lhs_rows - 1);
  }

  void draw_groups() {
    if (call_.entries == 1 && chance(0.3)) {
      call_.total_groups = uniform(1, 12);
      offset_ = static_cast<int32_t>(chance(0.1) ? (chance(0.5) ? INT32_MIN : INT32_MAX) : uniform(-3, 12));
      std::memcpy(offset_bytes_.data(), &offset_, sizeof offset_);
      call_.group_offset = offset_bytes_.data();
    }
    sizes_.emplace(call_.entries > 1 ? sizes_of_entries() : random_sizes(call_.total_groups, call_.m));
    call_.group_sizes = sizes_->bytes.data();
    call_.wide_sizes = sizes_->wide;
  }

  // The sizes of the groups of all entries: those of an entry sum to its number of rows.
  std::vector<int64_t> sizes_of_entries() const {
    const int64_t each = call_.total_groups / call_.entries, rounding = along_k() ? kScaledDepth : 1;
    std::vector<int64_t> sizes;
    for (int64_t entry = 0; entry < call_.entries; ++entry) {
      int64_t left = call_.entry_rows() / rounding;
      for (int64_t i = 0; i < each; ++i) {
        const int64_t size = i + 1 == each || chance(0.05) ? left
                             : chance(0.2)                 ? 0
                                                           : uniform(0, std::min(left, 3 * call_.entry_rows() / rounding / each));
        sizes.push_back(size * rounding), left -= size;
      }
    }
    return sizes;
  }

  // Fills with NaN the weights of groups without rows, and the rows without a group: of a contraction, those of both operands, which may be
  // copied with the last group's.
  void hide_what_is_never_read() {
    const int64_t weights = call_.contraction ? 0 : call_.rhs_k() * call_.rhs_columns();
    int64_t row = 0;
    for (int64_t group = 0; group < call_.groups; ++group) {
      const int64_t rows = rows_of(group, row);
      if (rows == 0) rhs_.fill(group * weights, (group + 1) * weights, NAN);
      if (rows == 0 && has_second()) second_.fill(group * weights, (group + 1) * weights, NAN);
      row += rows;
    }
    if (along_k()) {
      for (int64_t i = 0; i < call_.k; ++i) lhs_.fill(i * call_.m + row, (i + 1) * call_.m, NAN);
      for (int64_t i = 0; i < call_.n; ++i) rhs_.fill(i * call_.m + row, (i + 1) * call_.m, NAN);
      return;
    }
    if (gather_.empty()) lhs_.fill(row * call_.lhs_columns(), call_.m * call_.lhs_columns(), NAN);
    if (call_.contraction) rhs_.fill(row * call_.rhs_columns(), call_.m * call_.rhs_columns(), NAN);
  }

  // The index of a group's matrix; out of range if it has none.
  int64_t matrix_of(int64_t group) const {
    if (call_.entries == 1) return group - int64_t{offset_};
    const int64_t each = call_.total_groups / call_.entries, within = group % each - 1, matrices = each - 2;
    return within < 0 || within == matrices ? -1 : group / each * matrices + within;
  }
  int64_t rows_of(int64_t group, int64_t row) const {
    const int64_t size = std::clamp<int64_t>(sizes_->values[group], 0, call_.m - row);
    return along_k() ? std::min(tiles_over(size, kScaledDepth) * kScaledDepth, call_.m - row) : size;
  }

  void check_contraction(int64_t matrix, int64_t row, int64_t rows, std::vector<bool>& written) const {
    const int64_t k = call_.k, n = call_.n, lhs_columns = call_.lhs_columns(), rhs_columns = call_.rhs_columns();
    const int64_t left = call_.halves == RaggedHalves::lhs_second ? k : 0, right = call_.halves == RaggedHalves::rhs_second ? n : 0;
    for (int64_t i = 0; i < k * n; ++i) {
      Wide sum = start(matrix * k * n + i);
      double magnitude = std::abs(sum);
      for (int64_t r = row; r < row + rows; ++r) {
        const int64_t x = along_k() ? i / n * call_.m + r : lhs_row(r) * lhs_columns + left + i / n;
        const int64_t y = along_k() ? i % n * call_.m + r : r * rhs_columns + right + i % n;
        const double scale = has_scales() ? scale_of_columns(r, i / n, i % n) : 1;
        sum += lhs_.values[x] * rhs_.values[y] * scale, magnitude += lhs_.sizes[x] * rhs_.sizes[y] * scale;
      }
      expect("contraction", out_, matrix * k * n + i, sum, magnitude, rows);
      written[matrix * k * n + i] = true;
    }
  }

  void check_rows(int64_t matrix, int64_t row, int64_t rows, std::vector<bool>& written) const {
    for (int64_t i = row * call_.n; i < (row + rows) * call_.n; ++i) {
      const int64_t r = i / call_.n, col = i % call_.n;
      double magnitude = 0;
      Wide sum = product(matrix, r, col, magnitude);
      if (call_.activation != Activation::none) sum = activated(call_.activation, sum.real()), magnitude = 2 * magnitude + 1;
      if (call_.gated) {
        double other = 0;
        const Wide up = product(matrix, r, call_.n + col, other);
        magnitude = magnitude * std::abs(up) + std::abs(sum) * other, sum *= up;
      }
      if (call_.row_scale) sum *= scale_.values[r];
      // int8 is summed exactly within a block.
      expect("rows", out_, i, sum, magnitude, call_.kind == Kind::s8 ? tiles_over(call_.k, kScaledDepth) : call_.k);
      written[i] = true;
    }
  }
  // An element of lhs op(rhs) + bias. The product of absolute values is added to `magnitude`.
  Wide product(int64_t matrix, int64_t row, int64_t col, double& magnitude) const {
    const int64_t k = call_.k, rhs_k = call_.rhs_k(), rhs_columns = call_.rhs_columns();
    const int64_t x = lhs_row(row) * k;
    Wide sum = 0;
    for (int64_t i = 0; i < k; ++i) {
      const bool behind = has_second() && (i >= rhs_k || col >= rhs_columns);
      const Numbers& weights = behind ? second_ : rhs_;
      const int64_t y = matrix % call_.rhs_groups * rhs_k * rhs_columns;
      const int64_t z = y + (call_.transpose_rhs ? col % rhs_columns * rhs_k + i % rhs_k : i % rhs_k * rhs_columns + col % rhs_columns);
      const double scale = has_scales() ? scale_of(matrix, lhs_row(row), col, i) : 1;
      sum += lhs_.values[x + i] * weights.values[z] * scale, magnitude += lhs_.sizes[x + i] * weights.sizes[z] * scale;
    }
    if (!call_.bias) return sum;
    const Wide bias = bias_.values[matrix * call_.columns() + col];
    magnitude += std::abs(bias);
    return sum + bias;
  }

  // Whether a contraction has its factors as (columns, rows).
  bool along_k() const { return call_.contraction && call_.transpose_rhs; }
  bool has_scales() const { return vbgemm::has_scales(call_.kind) || call_.is_mixed(); }
  bool has_second() const { return call_.halves == RaggedHalves::columns || call_.halves == RaggedHalves::k; }

  RaggedCall call_;
  Numbers lhs_, rhs_, second_, bias_, scale_, lhs_scale_, rhs_scale_, out_;
  std::optional<SizesOfGroups> sizes_;
  int32_t offset_ = 0;
  std::vector<int32_t> gather_;
  Bytes offset_bytes_ = Bytes(4), gather_bytes_, start_, workspace_;
};

}  // namespace vbgemm::driver
