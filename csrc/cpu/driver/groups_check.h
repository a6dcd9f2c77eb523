// Checks random calls of the CPU whose group sizes are data against float64: ragged ones, and packed rows of different lengths.
#pragma once
#include "../group_walk.h"
#include "cpu/driver/pool.h"
#include "cpu/driver/ragged_check.h"

namespace vbgemm::driver {

inline void check_packed(const std::vector<DType>& dtypes, Pool* pool) {
  const DType dtype = dtypes[uniform(0, static_cast<int64_t>(dtypes.size()) - 1)];
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
  const std::vector<DType> dtypes = ragged_dtypes();
  for (int round = 0; round < 20 * rounds; ++round) {
    Pool* const used = chance(0.5) ? &pool : nullptr;
    const RandomRagged random({dtypes, 900, 300, 300});
    run(random.call(), used);
    random.check();
    check_packed(dtypes, used);
  }
  std::printf("groups: %d rounds, %d failures\n", rounds, ragged_failures);
}

}  // namespace vbgemm::driver
