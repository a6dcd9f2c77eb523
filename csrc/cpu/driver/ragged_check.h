// Checks random ragged calls against float64: group sizes of any value, windows of the groups, batches that share operands, and packed rows
// of different lengths. Results are in memory that ends where an unmapped page begins.
#pragma once
#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

#include "../group_walk.h"
#include "cpu/driver/check.h"
#include "cpu/driver/memory.h"
#include "cpu/driver/number.h"
#include "cpu/driver/pool.h"

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
  std::vector<Number> values;
  std::vector<double> sizes;

  Numbers(DType dtype, int64_t count) : dtype(dtype), bytes(count * size_of(dtype)), values(count), sizes(count) {
    for (int64_t i = 0; i < count; ++i) {
      const double part[2] = {uniform(-8, 8) / 8.0, is_complex(dtype) ? uniform(-8, 8) / 8.0 : 0};
      set(i, {part[0], part[1]});
    }
  }
  void set(int64_t i, Number x) { put(dtype, &bytes[i * size_of(dtype)], x), values[i] = x, sizes[i] = std::abs(x); }
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

inline void expect(const char* what, const Numbers& got, int64_t index, Number sum, double magnitude, int64_t terms) {
  const Number x = get(got.dtype, &got.bytes[index * size_of(got.dtype)]);
  const DType wide = accumulator_of(got.dtype);
  const double tolerance = (terms + 8) * magnitude * epsilon(wide) + 2 * std::abs(sum) * epsilon(got.dtype);
  for (int part = 0; part < 2; ++part) {
    const double y = part ? x.imag() : x.real(), t = part ? sum.imag() : sum.real();
    if (!agrees(y, t, tolerance)) ragged_fail(what, got.dtype, index, y, t);
  }
}

// Returns a dtype for which ragged products have kernels; 8-bit types have none.
inline DType random_ragged_dtype() {
  for (;;) {
    const Arithmetic& arithmetic = kArithmetics[uniform(0, kKinds - 1)];
    if (arithmetic.lhs == arithmetic.rhs && bytes_of(arithmetic.lhs) > 1) return arithmetic.lhs;
  }
}

inline void check_ragged(Pool* pool) {
  const DType dtype = random_ragged_dtype();
  const bool narrow = accumulator_of(dtype) != dtype, real = !is_complex(dtype);
  RaggedCall call{};
  call.dtype = dtype, call.out_dtype = narrow && chance(0.3) ? DType::f32 : dtype, call.kind = kind_of(dtype, dtype);
  call.contraction = chance(0.4), call.transpose_rhs = !call.contraction && chance(0.5);
  const int64_t most = chance(0.1) ? 300 : 40;
  call.m = uniform(1, 3 * most), call.k = uniform(1, most), call.n = uniform(1, most), call.groups = uniform(1, 9);
  const bool windowed = chance(0.3), finishes = !call.contraction && chance(0.5);
  call.total_groups = windowed ? uniform(1, 12) : call.groups;
  call.batch[0] = chance(0.2) ? uniform(1, 3) : 1, call.batch[1] = chance(0.2) ? uniform(1, 3) : 1;
  if (finishes && real) call.activation = static_cast<Activation>(uniform(0, 5));
  const int64_t weights = call.groups * call.k * call.n, entries = call.batch[0] * call.batch[1];
  const int64_t result = call.contraction ? weights : call.m * call.n;
  const bool shares_lhs = chance(0.3), shares_rhs = chance(0.3), shares_sizes = chance(0.3);
  const auto strided = [&](RaggedOperand& x, const Bytes& bytes, bool shared, int64_t elements) {
    x = {bytes.data(), {shared ? 0 : call.batch[1] * elements, shared ? 0 : elements}};
  };
  const int64_t rhs_elements = call.contraction ? call.m * call.n : weights;
  Numbers lhs(dtype, (shares_lhs ? 1 : entries) * call.m * call.k), rhs(dtype, (shares_rhs ? 1 : entries) * rhs_elements);
  Numbers bias(call.out_dtype, call.groups * call.n), scale(accumulator_of(dtype), call.m), out(call.out_dtype, entries * result);
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < (shares_sizes ? 1 : entries); ++i) {
    for (const int64_t size : random_sizes(call.total_groups, call.m)) drawn.push_back(size);
  }
  const SizesOfGroups sizes(drawn);
  const auto offset = static_cast<int32_t>(windowed ? (chance(0.1) ? (chance(0.5) ? INT32_MIN : INT32_MAX) : uniform(-3, 12)) : 0);
  Bytes offset_bytes(4);
  std::memcpy(offset_bytes.data(), &offset, 4);
  strided(call.lhs, lhs.bytes, shares_lhs, call.m * call.k), strided(call.rhs, rhs.bytes, shares_rhs, rhs_elements);
  strided(call.group_sizes, sizes.bytes, shares_sizes, call.total_groups);
  call.wide_sizes = sizes.wide;
  const bool has_bias = finishes && chance(0.7), has_scale = finishes && real && chance(0.7);
  if (has_bias) strided(call.bias, bias.bytes, true, 0);
  if (has_scale) strided(call.row_scale, scale.bytes, true, 0);
  if (windowed) strided(call.group_offset, offset_bytes, true, 0);
  call.out = out.bytes.data();
  if (!windowed && entries == 1 && !call.contraction && chance(0.5)) {
    // Weights of groups without rows must never be read.
    int64_t row = 0;
    for (int64_t group = 0; group < call.groups; ++group) {
      const int64_t rows = std::clamp<int64_t>(sizes.values[group], 0, call.m - row);
      if (rows == 0) rhs.fill(group * call.k * call.n, (group + 1) * call.k * call.n, NAN);
      row += rows;
    }
    lhs.fill(row * call.k, call.m * call.k, NAN);
  }
  run(call, pool);

  for (int64_t entry = 0; entry < entries; ++entry) {
    const int64_t a0 = shares_lhs ? 0 : entry * call.m * call.k, b0 = shares_rhs ? 0 : entry * rhs_elements;
    const int64_t s0 = shares_sizes ? 0 : entry * call.total_groups, c0 = entry * result;
    std::vector<bool> written(result);
    int64_t row = 0;
    for (int64_t group = 0; group < call.total_groups; ++group) {
      const int64_t rows = std::clamp<int64_t>(sizes.values[s0 + group], 0, call.m - row), w = group - int64_t{offset};
      if (w >= 0 && w < call.groups && call.contraction) {
        for (int64_t i = 0; i < call.k * call.n; ++i) {
          Number sum = 0;
          double magnitude = 0;
          for (int64_t r = row; r < row + rows; ++r) {
            const int64_t x = a0 + r * call.k + i / call.n, y = b0 + r * call.n + i % call.n;
            sum += lhs.values[x] * rhs.values[y], magnitude += lhs.sizes[x] * rhs.sizes[y];
          }
          expect("contraction", out, c0 + w * call.k * call.n + i, sum, magnitude, rows);
          written[w * call.k * call.n + i] = true;
        }
      } else if (w >= 0 && w < call.groups) {
        for (int64_t i = row * call.n; i < (row + rows) * call.n; ++i) {
          const int64_t r = i / call.n, col = i % call.n;
          Number sum = 0;
          double magnitude = 0;
          for (int64_t k = 0; k < call.k; ++k) {
            const int64_t x = a0 + r * call.k + k;
            const int64_t y = b0 + w * call.k * call.n + (call.transpose_rhs ? col * call.k + k : k * call.n + col);
            sum += lhs.values[x] * rhs.values[y], magnitude += lhs.sizes[x] * rhs.sizes[y];
          }
          if (has_bias) sum += bias.values[w * call.n + col], magnitude += std::abs(bias.values[w * call.n + col]);
          if (call.activation != Activation::none) sum = activate(sum.real(), call.activation), magnitude = 2 * magnitude + 1;
          if (has_scale) sum *= scale.values[r];
          expect("rows", out, c0 + i, sum, magnitude, call.k);
          written[i] = true;
        }
      }
      row += rows;
    }
    for (int64_t i = 0; i < result; ++i) {
      if (!written[i]) expect("zeros", out, c0 + i, 0, 0, 0);
    }
  }
}

inline void check_packed(Pool* pool) {
  const DType dtype = random_ragged_dtype();
  PackedCall call{};
  call.dtype = call.out_dtype = dtype, call.kind = kind_of(dtype, dtype), call.contraction = chance(0.4),
  call.transpose_rhs = !call.contraction && chance(0.5);
  call.groups = uniform(1, 6), call.rows = uniform(1, 60), call.entries = 1;
  std::vector<int64_t> shapes;
  int64_t widest[2] = {0, 0};
  for (int64_t i = 0; i < 2 * call.groups; ++i) {
    shapes.push_back(chance(0.1) ? 0 : uniform(1, 40));
    widest[i % 2] = std::max(widest[i % 2], shapes.back());
  }
  const auto room = [&](int64_t width) {
    return std::max<int64_t>(1, chance(0.7) ? call.rows * width : uniform(1, call.rows * width + 1));
  };
  call.x_size = room(widest[0]), call.y_size = room(widest[1]), call.shapes = shapes.data();
  Numbers x(dtype, call.x_size), y(dtype, call.y_size);
  const SizesOfGroups sizes(random_sizes(call.groups, call.rows));
  std::vector<Numbers> weights;
  std::vector<RaggedOperand> operands;
  for (int64_t i = 0; i < call.groups; ++i) weights.emplace_back(dtype, shapes[2 * i] * shapes[2 * i + 1]);
  for (const Numbers& w : weights) operands.push_back({w.bytes.data(), {0, 0}});
  call.x = {x.bytes.data(), {0, 0}}, call.y = {y.bytes.data(), {0, 0}}, call.group_sizes = {sizes.bytes.data(), {0, 0}};
  call.weights = operands.data(), call.wide_sizes = sizes.wide;
  run(call, pool);

  std::vector<bool> written(call.y_size);
  int64_t row = 0, x0 = 0, y0 = 0;
  for (int64_t group = 0; group < call.groups; ++group) {
    const int64_t k = shapes[2 * group], n = shapes[2 * group + 1];
    const int64_t rows = std::clamp<int64_t>(sizes.values[group], 0, call.rows - row);
    const auto exists = [&](int64_t r) { return x0 + (r + 1) * k <= call.x_size && y0 + (r + 1) * n <= call.y_size; };
    for (int64_t i = 0; i < (call.contraction ? k * n : rows * n); ++i) {
      Number sum = 0;
      double magnitude = 0;
      if (!call.contraction && !exists(i / n)) break;
      for (int64_t j = 0; j < (call.contraction ? rows : k); ++j) {
        if (call.contraction && !exists(j)) break;
        const Number a = x.values[call.contraction ? x0 + j * k + i / n : x0 + i / n * k + j];
        const Number b =
            call.contraction ? y.values[y0 + j * n + i % n] : weights[group].values[call.transpose_rhs ? i % n * k + j : j * n + i % n];
        sum += a * b, magnitude += std::abs(a) * std::abs(b);
      }
      expect("packed", call.contraction ? weights[group] : y, call.contraction ? i : y0 + i, sum, magnitude, rows + k);
      if (!call.contraction) written[y0 + i] = true;
    }
    row += rows, x0 += rows * k, y0 += rows * n;
  }
  for (int64_t i = 0; i < call.y_size && !call.contraction; ++i) {
    if (!written[i]) expect("packed zeros", y, i, 0, 0, 0);
  }
}

inline void check_groups(int rounds) {
  Pool pool(2);
  for (int round = 0; round < 20 * rounds; ++round) {
    Pool* const used = chance(0.5) ? &pool : nullptr;
    check_ragged(used);
    check_packed(used);
  }
  std::printf("groups: %d rounds, %d failures\n", rounds, ragged_failures);
}

}  // namespace vbgemm::driver
