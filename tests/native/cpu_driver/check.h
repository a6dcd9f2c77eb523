// Checks random calls against float64, and corrupt calls, which must not touch anything outside their results.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cpu_driver/pool.h"
#include "cpu_driver/workload.h"
#include "expected_activation.h"

namespace vbgemm::driver {

inline int failures = 0;
inline void fail(const Workload& w, const Problem& p, const char* what, int64_t i = 0, int64_t j = 0, double got = 0, double expected = 0) {
  if (++failures > 20) return;
  std::printf("FAIL %s -> %s m %d n %d k %d batch %d, A strides %ld %ld, B %ld %ld, C %ld %ld: %s at (%ld, %ld): %g, expected %g\n",
              name_of(w.kind), name_of(w.out_dtype), p.m, p.n, p.k, p.batch, p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride,
              p.c.row_stride, p.c.col_stride, what, i, j, got, expected);
}

// Scales as the kernel does in the presence of infinities: a real factor scales both parts, a complex factor is multiplied by the
// schoolbook rule.
inline Wide scaled(Wide x, Wide by) {
  const double re = by.real(), im = by.imag();
  if (im == 0) return {re * x.real(), re * x.imag()};
  return {re * x.real() - im * x.imag(), re * x.imag() + im * x.real()};
}

// One part of a number may be NaN while the other is not.
inline double finite_size(Wide x) {
  return (std::isfinite(x.real()) ? std::fabs(x.real()) : 0) + (std::isfinite(x.imag()) ? std::fabs(x.imag()) : 0);
}

// Applies the epilogue to a sum and to the bound on its error.
inline void expect_epilogue(const Workload& w, const Epilogue& e, const Problem& p, int64_t batch, int64_t i, int64_t j, double (&value)[2],
                            double& tolerance) {
  const auto addend = [&](const Operand& x) {
    const Bytes& from = x.buffer < w.num_operands ? w.buffers[x.buffer] : w.initial[x.buffer - w.num_operands];
    return get(w.out_dtype, &from[element_of(x, p, batch, i, j) * size_of(w.out_dtype)]);
  };
  const Wide alpha = value_of(w, e.alpha), beta = value_of(w, e.beta);
  if (alpha == 0.0) value[0] = value[1] = 0;  // the sum is ignored, even if it is NaN
  double magnitude = std::abs(alpha) * finite_size({value[0], value[1]});
  tolerance = alpha == 0.0 ? 0 : tolerance * std::abs(alpha);
  Wide x = scaled({value[0], value[1]}, alpha);
  if (e.source.buffer >= 0 && beta != 0.0) {
    x += scaled(addend(e.source), beta);
    magnitude += std::abs(beta) * finite_size(addend(e.source));
  }
  if (e.bias.buffer >= 0) x += addend(e.bias), magnitude += finite_size(addend(e.bias));
  value[0] = activated(e.activation, x.real()), value[1] = x.imag();
  // No activation is steeper than 1.13, and none adds more than a few roundings of its argument.
  tolerance = 1.13 * tolerance + 8 * magnitude * epsilon(w.sum()) + 4 * finite_size(value[0]) * epsilon(w.sum());
}

// For a type without infinities: whether a number of this size may have become NaN, because it is too large.
inline bool may_be_too_large(DType dtype, double size) {
  const DTypeInfo& info = info_of(dtype);
  return !is_integer(dtype) && !info.has_infinities && size > ShortFormat(dtype).decode(ShortFormat(dtype).too_large() - 1);
}

// The numbers of an operand, `across` lines along K; each is needed many times, and decoding takes longer than multiplying.
struct OperandNumbers {
  std::vector<Wide> values;
  std::vector<double> sizes;  // their absolute values

  template <class ElementOf>
  OperandNumbers(DType dtype, const Bytes& bytes, int64_t across, int64_t depth, const ElementOf& element) {
    values.reserve(across * depth), sizes.reserve(across * depth);
    for (int64_t line = 0; line < across; ++line) {
      for (int64_t k = 0; k < depth; ++k) {
        values.push_back(get(dtype, &bytes[element(line, k) * size_of(dtype)]));
        sizes.push_back(std::abs(values.back()));
      }
    }
  }
};

inline void check_results(const Workload& w) {
  const int out_size = size_of(w.out_dtype);
  const double accumulator = epsilon(w.sum());
  for (size_t index = 0; index < w.problems.size(); ++index) {
    const Problem& p = w.problems[index];
    Bytes outside = w.buffers[p.c.buffer];
    const int64_t k_begin = w.k_ranges[index].first, depth = w.k_ranges[index].second - k_begin;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const OperandNumbers rows(w.lhs(), w.buffers[p.a.buffer], p.m, depth,
                                [&](int64_t i, int64_t k) { return element_of(p.a, p, batch, i, k_begin + k); });
      const OperandNumbers cols(w.rhs(), w.buffers[p.b.buffer], p.n, depth,
                                [&](int64_t j, int64_t k) { return element_of(p.b, p, batch, k_begin + k, j); });
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          double re = 0, im = 0, re_im = 0, im_re = 0, absolute = 0;
          for (int64_t k = 0; k < depth; ++k) {
            const Wide a = rows.values[i * depth + k], b = cols.values[j * depth + k];
            re += a.real() * b.real(), im += a.imag() * b.imag(), re_im += a.real() * b.imag(), im_re += a.imag() * b.real();
            absolute += rows.sizes[i * depth + k] * cols.sizes[j * depth + k];
          }
          const int64_t at = element_of(p.c, p, batch, i, j) * out_size;
          const Wide got = get(w.out_dtype, &w.buffers[p.c.buffer][at]);
          double tolerance = absolute * (depth + 2) * accumulator;
          double expected[2] = {re - im, re_im + im_re};
          const double found[2] = {got.real(), got.imag()};
          if (!w.epilogues.empty()) expect_epilogue(w, w.epilogues[index], p, batch, i, j, expected, tolerance);
          for (int part = 0; part <= is_complex(w.lhs()); ++part) {
            // Integers wrap around, and the results' type may have no infinity.
            if (is_integer(w.out_dtype) || !std::isfinite(expected[part])) expected[part] = rounded(w.out_dtype, expected[part]).real();
            if (std::isnan(found[part]) && may_be_too_large(w.out_dtype, std::fabs(expected[part]) + tolerance)) continue;
            const double rounding = std::fabs(expected[part]) * epsilon(w.out_dtype) + smallest(w.out_dtype);
            if (!agrees(found[part], expected[part], tolerance + rounding)) fail(w, p, "wrong", i, j, found[part], expected[part]);
          }
          std::fill_n(outside.begin() + at, out_size, kUntouched);
        }
      }
    }
    if (std::any_of(outside.begin(), outside.end(), [](unsigned char byte) { return byte != kUntouched; })) {
      fail(w, p, "written outside of C");
    }
  }
}

// Returns the results with all NaNs made equal: which of two NaNs a processor propagates depends on their order, and therefore on the plan.
inline std::vector<Bytes> canonical_results(const Workload& w) {
  std::vector<Bytes> all = results(w);
  for (const Problem& p : w.problems) {
    for_each_element(p, [&](int64_t batch, int64_t i, int64_t j) {
      unsigned char* at = &all[p.c.buffer - w.num_operands][element_of(p.c, p, batch, i, j) * size_of(w.out_dtype)];
      const Wide x = get(w.out_dtype, at);
      if (std::isnan(x.real()) || std::isnan(x.imag())) {
        put(w.out_dtype, at, {std::isnan(x.real()) ? NAN : x.real(), std::isnan(x.imag()) ? NAN : x.imag()});
      }
    });
  }
  return all;
}

inline void check_random(Kind kind, DType out_dtype, Pool& pool, bool tall) {
  Workload w = random_workload(kind, out_dtype, static_cast<int>(uniform(1, 5)), tall);
  std::vector<Bytes> first;
  for (int variant = 0; variant < 4; ++variant) {
    clear_results(w);
    const PlanData plan =
        make_plan(w, chance(0.5) ? -1 : kNumTiles - 1, chance(0.5), chance(0.5), chance(0.5) ? 0 : static_cast<int>(uniform(1, 4)));
    WorkloadCall call = make_call(w, plan);
    call.call.may_stream = chance(0.5);
    run(call.call, chance(0.7) ? &pool : nullptr);
    if (variant == 0) {
      check_results(w);
      first = canonical_results(w);
    } else {
      const std::vector<Bytes> again = canonical_results(w);
      for (size_t i = 0; i < w.problems.size(); ++i) {
        if (first[i] != again[i]) fail(w, w.problems[i], "bits depend on the plan");
      }
    }
  }
}

// Checks split-K: results are right, and their bits do not depend on which thread computes which K slice.
inline void check_split(Kind kind, DType out_dtype, Pool& pool) {
  Workload w = random_workload(kind, out_dtype, static_cast<int>(uniform(1, 3)));
  const PlanData plan = make_split_plan(w, chance(0.5) ? -1 : kNumTiles - 1, chance(0.8) ? 5 : 40);
  run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
  check_results(w);
  const std::vector<Bytes> first = results(w);
  clear_results(w);
  run(make_call(w, plan).call, &pool);
  if (results(w) != first) fail(w, w.problems[0], "bits of split K depend on the threads");
}

// Corrupt ready tiles must not write to operands, nor (which AddressSanitizer sees) touch anything outside the buffers.
inline void check_ready_nonsense(Kind kind) {
  Workload w = random_workload(kind, accumulator_of(kind), 3);
  PlanData plan = make_split_plan(w, -1, 4);
  const std::vector<Bytes> operands(w.buffers.begin(), w.buffers.begin() + w.num_operands);
  const auto lie = [](auto& value) {
    constexpr int kExtreme = INT32_MAX;
    const int lies[] = {-kExtreme - 1, -1, 0, 1, 7, 1000, kExtreme / 2, kExtreme};
    if (uniform(1, 12) == 1) value = lies[uniform(0, std::size(lies) - 1)];
  };
  const auto lie_of_place = [&](TilePosition& at) {
    for (int32_t* field : {&at.tile_id, &at.rows, &at.cols, &at.depth, &at.problem, &at.batch, &at.row, &at.col}) lie(*field);
  };
  for (ReadyTile& tile : plan.tiles) {
    lie_of_place(tile.position);
    for (Part& part : tile.part) {
      lie(part.offset);
      for (int32_t* field : {&part.row_stride, &part.col_stride, &part.buffer}) lie(*field);
    }
    // With strides of 0 any length stays inside a buffer: 2^31 steps would be computed, which takes minutes.
    const auto& [a, b, c] = tile.part;
    const auto shorten = [](int32_t& length, int32_t stride, int32_t other) {
      if (stride == 0 && other == 0) length = std::min(length, 1000);
    };
    shorten(tile.position.depth, a.col_stride, b.row_stride);
    shorten(tile.position.rows, a.row_stride, c.row_stride);
    shorten(tile.position.cols, b.col_stride, c.col_stride);
  }
  for (SplitTile& tile : plan.splits) {
    lie_of_place(tile.position);
    lie(tile.first), lie(tile.c.offset);
    for (int32_t* field : {&tile.slice_stride, &tile.slices, &tile.pitch, &tile.c.row_stride, &tile.c.col_stride, &tile.c.buffer}) {
      lie(*field);
    }
  }
  run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
  if (!std::equal(operands.begin(), operands.end(), w.buffers.begin())) fail(w, w.problems[0], "nonsense written to an operand");
}

// Corrupt descriptors may produce any values, but only inside C.
inline void check_nonsense(Kind kind) {
  Workload w = random_workload(kind, accumulator_of(kind), 3);
  const DType dtype = w.out_dtype;
  PlanData plan;
  auto number = [] {
    return static_cast<int32_t>(chance(0.6) ? uniform(-3, 9) : chance(0.5) ? uniform(-300, 300) : uniform(INT32_MIN, INT32_MAX));
  };
  plan.num_tiles = static_cast<int32_t>(uniform(0, 30));
  plan.runs.resize(chance(0.5) ? plan.num_tiles : uniform(0, plan.num_tiles));
  for (TileRun& run : plan.runs) {
    run = {number(), number(), number(), number(), number(), number(), number(), number(), number(), number(), number(), number()};
    if (chance(0.5)) run.problem = static_cast<int32_t>(uniform(0, 2)), run.tile_id = static_cast<int32_t>(uniform(0, kNumTiles - 1));
  }
  if (chance(0.5)) plan.block_first = {number(), number(), number(), number()};
  run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
  for (const Problem& p : w.problems) {
    Bytes outside = w.buffers[p.c.buffer];
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          std::fill_n(outside.begin() + element_of(p.c, p, batch, i, j) * size_of(dtype), size_of(dtype), kUntouched);
        }
      }
    }
    if (std::any_of(outside.begin(), outside.end(), [](unsigned char byte) { return byte != kUntouched; })) {
      fail(w, p, "nonsense written outside of C");
    }
  }
}

// Checks that all values of a short type pass unchanged, and that sums of two values are rounded to nearest even.
inline void check_short_floats(DType dtype) {
  const int size = size_of(dtype), count = 1 << (8 * size);
  const ShortFormat format(dtype);
  const auto bits_at = [&](const Bytes& bytes, int64_t i) { return size == 1 ? bytes[i] : read<uint16_t>(&bytes[2 * i]); };
  Workload w{kind_of(dtype, dtype), dtype, {}, {}, 2, {{0, 2}}, {}, {}};
  Problem p{};
  p.m = count, p.n = 1, p.k = 2, p.batch = p.inner_batch = 1;
  p.a = {0, 0, 0, 1, count, {0, 0}}, p.b = {1, 0, 0, 1, 1, {0, 0}}, p.c = {2, 0, 0, 1, 1, {0, 0}};
  w.problems = {p};
  for (const double scale : {0.0, 1.0}) {
    w.buffers = {Bytes(2 * count * size), Bytes(2 * size), Bytes(count * size)};
    for (int i = 0; i < count; ++i) {
      std::memcpy(&w.buffers[0][size * i], &i, size);
      put(dtype, &w.buffers[0][size * (count + i)], std::ldexp(std::isfinite(format.decode(i)) ? uniform(-9, 9) : 0, -4));
    }
    put(dtype, &w.buffers[1][0], 1.0);
    put(dtype, &w.buffers[1][size], scale);
    const PlanData plan = make_plan(w, kNumTiles - 1, true, false, 0);
    run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
    for (int i = 0; i < count; ++i) {
      const float a = static_cast<float>(format.decode(i));
      const float b = static_cast<float>(get(dtype, &w.buffers[0][size * (count + i)]).real() * scale);
      const int got = bits_at(w.buffers[2], i), expected = format.encode(static_cast<double>(a + b));
      const bool both_nan = std::isnan(format.decode(expected)) && std::isnan(format.decode(got));
      const bool zeros = a + b == 0 && (got & (format.sign() - 1)) == 0;  // -0 + 0 is 0
      if (got != expected && !both_nan && !zeros) fail(w, p, "a short float rounded wrongly", i, 0, got, expected);
    }
  }
}

// Checks each activation for numbers of all magnitudes, to within a few units in the last place.
inline void check_activations(DType dtype) {
  std::vector<double> inputs = {0, -0.0, NAN, INFINITY, -INFINITY, 1e30, -1e30};
  for (int i = 0; i < 4000; ++i) inputs.push_back(std::ldexp(uniform(-(1 << 20), 1 << 20), static_cast<int>(-uniform(13, 60))));
  for (int i = 0; i < 4000; ++i) inputs.push_back(std::ldexp(uniform(-(1 << 20), 1 << 20), -16));
  const int count = static_cast<int>(inputs.size());
  for (int32_t number = 1; number < kActivations; ++number) {
    const auto activation = static_cast<Activation>(number);
    Workload w{kind_of(dtype, dtype), dtype, {}, {}, 2, {{0, 1}}, {}, {}};
    Problem p{};
    p.m = 1, p.n = count, p.k = 1, p.batch = p.inner_batch = 1;
    p.a = {0, 0, 0, 1, 1, {0, 0}}, p.b = {1, 0, 0, count, 1, {0, 0}}, p.c = {2, 0, 0, count, 1, {0, 0}};
    w.problems = {p};
    Epilogue e{{1, 0, -1, 0, 0}, {0, 0, -1, 0, 0}, {}, {}, activation, 0};
    e.source.buffer = e.bias.buffer = -1;
    w.epilogues = {e};
    const int size = size_of(dtype);
    w.buffers = {Bytes(size), Bytes(count * size), Bytes(count * size)};
    put(dtype, &w.buffers[0][0], 1.0);
    for (int i = 0; i < count; ++i) put(dtype, &w.buffers[1][i * size], inputs[i]);
    const PlanData plan = make_plan(w, kNumTiles - 1, true, false, 0);
    run(make_call(w, plan).call, static_cast<Pool*>(nullptr));
    for (int i = 0; i < count; ++i) {
      const double x = get(dtype, &w.buffers[1][i * size]).real(), expected = activated(activation, x);
      const double got = get(dtype, &w.buffers[2][i * size]).real();
      // The sigmoid of a large negative number magnifies the rounding error of its argument, which in gelu is not x itself.
      const double slope = activation == Activation::gelu && x < 0 ? 1 + 2 * (std::fabs(x) + 0.05 * std::fabs(x * x * x)) : 1;
      const double smallest = dtype == DType::f32 ? 0x1p-148 : 0x1p-1073;
      if (!agrees(got, expected, 8 * slope * epsilon(dtype) * std::fabs(expected) + smallest * std::fmax(1, std::fabs(x)))) {
        fail(w, p, "activation", static_cast<int64_t>(activation), i, got, expected);
      }
    }
  }
}

inline void check(int rounds) {
  Pool pool(2);
  for (DType dtype : {DType::f32, DType::f64}) check_activations(dtype);
  for (int i = 0; i < kDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (size_of(dtype) <= 2 && !is_integer(dtype)) check_short_floats(dtype);
  }
  for (int round = 0; round < rounds && !failures; ++round) {
    for (int i = 0; i < kKinds; ++i) {
      const Kind kind = static_cast<Kind>(i);
      if (plain_kind_of(kind) != kind) continue;  // these arithmetics exist on GPUs only
      for (int result = 0; result < kDTypes; ++result) {
        const DType out_dtype = static_cast<DType>(result);
        if (!arithmetic_of(kind).gives(out_dtype)) continue;
        for (const bool tall : {false, true}) check_random(kind, out_dtype, pool, tall);
        check_split(kind, out_dtype, pool);
      }
      check_nonsense(kind);
      check_ready_nonsense(kind);
    }
  }
  std::printf("check: %d rounds, %d failures\n", rounds, failures);
}

}  // namespace vbgemm::driver
