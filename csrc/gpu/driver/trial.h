// A random call and what it must give: bit for bit the sum in increasing k that the ordinary kernels promise, and close to float64, which
// is all that those on tensor cores promise. Operands have NaN on both sides, results a pattern that must survive, so that a stray read or
// write shows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../add_shares.h"
#include "../deep_tile.h"
#include "expected_epilogue.h"
#include "host_plan.h"
#include "number.h"

namespace vbgemm::driver {

// T: the operands' elements, Out: the results'.
template <class T, class Out = T>
class Trial {
 public:
  using Sum = Accumulator<T>;

  // margin: elements on either side of a buffer; 0 leaves that to a memory checker.
  Trial(Kind kind, uint64_t seed, int margin) : random_(seed), margin_(margin) {
    plan_.kind = kind;
    plan_.out_dtype = Number<Out>::kDType;
  }

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int one_of(std::initializer_list<int> values) { return values.begin()[between(0, static_cast<int>(values.size()) - 1)]; }

  HostPlan& plan() { return plan_; }
  std::vector<Box>& boxes() { return boxes_; }

  // A problem with random layouts: each operand row-major, transposed, padded or strided both ways, at an aligned or an odd offset;
  // batches with one or two strides, some of them 0.
  int add(int m, int n, int k, int batch, bool plain = false) {
    Problem p{};
    p.m = m, p.n = n, p.k = k, p.batch = batch;
    p.inner_batch = batch % 2 == 0 && between(0, 1) ? batch / 2 : std::max(batch, 1);
    p.a = place<T>(m, k, p, plain, true);
    fill<T>(p.a);
    p.b = place<T>(k, n, p, plain, true);
    fill<T>(p.b);
    p.c = place<Out>(m, n, p, plain, false);
    plan_.problems.push_back(p);
    return static_cast<int>(plan_.problems.size()) - 1;
  }
  // The same where B is A's transpose.
  int add_symmetric(int m, int k, int batch) {
    const int problem = add(m, m, k, batch);
    Problem& p = plan_.problems[problem];
    p.b = p.a;
    std::swap(p.b.row_stride, p.b.col_stride);
    return problem;
  }
  // Tiles below the diagonal of C are left out, those above it mirrored.
  void cover_symmetric(int problem, int strategy, int shares) {
    const TileShape& shape = kTiles[strategy];
    const Box all = whole(plan_.problems, problem, strategy);
    for (int y = 0; y < all.tiles_y; ++y) {
      for (int x = 0; x < all.tiles_x; ++x) {
        Box box = all;
        box.tiles_y = box.tiles_x = 1, box.row = y * shape.m, box.col = x * shape.n;
        box.shares = shares;
        box.mirrored = box.row + shape.m <= box.col;
        if (box.row < box.col + shape.n) boxes_.push_back(box);
      }
    }
  }
  void cover(int problem, int strategy) { boxes_.push_back(whole(plan_.problems, problem, strategy)); }

  // The problems so far get an epilogue each, of every kind in turn.
  void add_epilogues() {
    for (const Problem& p : plan_.problems) plan_.epilogues.push_back(epilogue_of(p));
  }

  // One element of an operand, by op(X)'s row and column in batch 0.
  void set(const Operand& x, int row, int col, Wide value) {
    const int64_t at = x.offset + row * x.row_stride + col * x.col_stride;
    elements<T>(x)[at] = Number<T>::from(value);
  }
  template <class E>
  E* elements(const Operand& x) {
    return reinterpret_cast<E*>(buffers_[x.buffer].data()) + margin_;
  }
  template <class E>
  const E* elements(const Operand& x) const {
    return reinterpret_cast<const E*>(buffers_[x.buffer].data()) + margin_;
  }

  void upload() {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      memory_.emplace_back(buffers_[i]);
      const auto bytes = static_cast<int64_t>(element_bytes_[i]);
      device_buffers_.add(memory_[i].data() + margin_ * bytes, static_cast<int64_t>(buffers_[i].size()) / bytes - 2 * margin_);
    }
    workspace_.emplace_back(workspace_bytes(plan_.kind, static_cast<int>(buffers_.size()), plan_.num_sums));
    device_.emplace_back(plan_);
  }
  void enqueue(const OwnStream& stream) {
    require(launch(call_of(plan_, device_[0], device_buffers_, workspace_[0]), stream.get()), "launch");
  }
  // Every buffer as it was before the call.
  void restore() {
    for (size_t i = 0; i < buffers_.size(); ++i) memory_[i].write(buffers_[i].data());
  }
  // The bytes of each problem's result buffer, margins included.
  using Results = std::vector<std::vector<char>>;
  Results results() const {
    Results all;
    for (const Problem& p : plan_.problems) {
      all.emplace_back(buffers_[p.c.buffer].size());
      memory_[p.c.buffer].read(all.back().data());
    }
    return all;
  }
  const Buffers& device_buffers() const { return device_buffers_; }
  const Descriptors& descriptors() const { return device_[0].descriptors; }

  // Faults of the results: elements that are not what was promised, and anything written elsewhere.
  int faults(Results results) const {
    int faults = 0;
    for (const Box& box : boxes_) {
      const TileShape& shape = kTiles[box.strategy];
      const Problem& p = plan_.problems[box.problem];
      const int rows = std::min(p.m, box.row + box.tiles_y * shape.m), cols = std::min(p.n, box.col + box.tiles_x * shape.n);
      for (int batch = box.batch; batch < box.batch + box.batches; ++batch) {
        for (int row = box.row; row < rows; ++row) {
          for (int col = box.col; col < cols; ++col) {
            const auto check = [&](int64_t offset) {
              char* element = results[box.problem].data() + (margin_ + offset) * sizeof(Out);
              Out found;
              std::memcpy(&found, element, sizeof found);
              if (!right(box, batch, row, col, found) && faults++ < kFaultsShown) show(box, batch, row, col, found);
              std::memcpy(element, elements<Out>(p.c) + offset, sizeof found);  // what remains must be untouched
            };
            check(offset_of(p.c, p, batch, row, col));
            if (box.mirrored) check(offset_of(p.c, p, batch, col, row));
          }
        }
      }
    }
    for (size_t i = 0; i < results.size(); ++i) faults += results[i] != buffers_[plan_.problems[i].c.buffer];
    return faults;
  }

  // Only what must hold for any tiles: nothing before or behind a buffer is written.
  int strays_outside(const Results& results) const {
    int faults = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      const std::vector<char>& before = buffers_[plan_.problems[i].c.buffer];
      const size_t margin = margin_ * sizeof(Out);
      faults += !std::equal(before.begin(), before.begin() + margin, results[i].begin());
      faults += !std::equal(before.end() - margin, before.end(), results[i].end() - margin);
    }
    return faults;
  }

  // Only what must hold for any runs: nothing outside the elements of C is written.
  int strays(Results results) const {
    int faults = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      const Problem& p = plan_.problems[i];
      const std::vector<char>& before = buffers_[p.c.buffer];
      for (int batch = 0; batch < p.batch; ++batch) {
        for (int row = 0; row < p.m; ++row) {
          for (int col = 0; col < p.n; ++col) {
            const size_t at = (margin_ + offset_of(p.c, p, batch, row, col)) * sizeof(Out);
            std::copy_n(before.begin() + at, sizeof(Out), results[i].begin() + at);
          }
        }
      }
      faults += results[i] != before;
    }
    return faults;
  }

 private:
  static constexpr int kFaultsShown = 3;

  void show(const Box& box, int batch, int row, int col, Out found) const {
    const Problem& p = plan_.problems[box.problem];
    Wide exact = 0;
    for (int k = box.k_begin; k < box.k_end; ++k) {
      exact += multiplied(Number<T>::wide(elements<T>(p.a)[offset_of(p.a, p, batch, row, k)]),
                          Number<T>::wide(elements<T>(p.b)[offset_of(p.b, p, batch, k, col)]));
    }
    std::printf("  problem %d, %d x %d x %d, tile %s/%d, batch %d, row %d, column %d: sum %.9g, result %.9g\n", box.problem, p.m, p.n, p.k,
                kTiles[box.strategy].name, kTiles[box.strategy].threads, batch, row, col, exact.real(), Number<Out>::wide(found).real());
    const auto strides = [](const char* name, const Operand& x) {
      std::printf("    %s from %lld by %lld, %lld\n", name, static_cast<long long>(x.offset), static_cast<long long>(x.row_stride),
                  static_cast<long long>(x.col_stride));
    };
    strides("a", p.a), strides("b", p.b), strides("c", p.c);
  }

  // Each part's shares in order, then the parts.
  static Sum added_by_parts(const std::vector<Sum>& sums) {
    const size_t parts = parts_of(static_cast<int>(sums.size()));
    Sum total{};
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = sums.size() * part / parts, end = sums.size() * (part + 1) / parts;
      Sum sum = sums[begin];
      for (size_t i = begin + 1; i < end; ++i) sum = sum + sums[i];
      total = part == 0 ? sum : total + sum;
    }
    return total;
  }

  // As tiles add up what they share out among groups of threads (deep_tile.h): neighbours within a wave, then the waves.
  static Sum added_by_groups(std::vector<Sum> sums, size_t of_wave) {
    for (size_t distance = 1; distance < of_wave; distance *= 2) {
      for (size_t i = 0; i < sums.size(); i += 2 * distance) sums[i] = sums[i] + sums[i + distance];
    }
    Sum total = sums[0];
    for (size_t i = of_wave; i < sums.size(); i += of_wave) total = total + sums[i];
    return total;
  }

  // Which group of a tile's threads takes a step of K: the waves take turns, and share out their steps among their groups.
  static int group_of(const DeepShares& shares, int waves, int k) {
    return k / shares.depth % waves * shares.groups + k % shares.depth % shares.groups;
  }

  static Sum number(T x) { return Number<Sum>::from(Number<T>::wide(x)); }

  bool right(const Box& box, int batch, int row, int col, Out found) const {
    const Problem& p = plan_.problems[box.problem];
    const T* a = elements<T>(p.a);
    const T* b = elements<T>(p.b);
    std::vector<Sum> sums;  // of each share
    Wide wide = 0;
    double size = 0;
    const bool deep = kTiles[box.strategy].owned == Owned::steps;
    const DeepShares shares = deep_shares<T>(kTiles[box.strategy]);
    const int waves = kTiles[box.strategy].threads / kWaveSize;
    for (int share = 0; share < box.shares; ++share) {
      std::vector<Sum> of_group(deep ? waves * shares.groups : 1);
      for (int k = box.share_begin(share); k < box.share_begin(share + 1); ++k) {
        const Sum x = number(a[offset_of(p.a, p, batch, row, k)]), y = number(b[offset_of(p.b, p, batch, k, col)]);
        Sum& sum = of_group[deep ? group_of(shares, waves, k - box.share_begin(share)) : 0];
        sum = fused(x, y, sum);
        const Wide product = multiplied(Number<Sum>::wide(x), Number<Sum>::wide(y));
        wide += product;
        size += std::fabs(product.real()) + std::fabs(product.imag());
      }
      sums.push_back(deep ? added_by_groups(of_group, shares.groups) : of_group[0]);
    }
    const Sum sum = added_by_parts(sums);
    const double length = box.k_end - box.k_begin + 4;
    if (std::isfinite(size) && std::abs(Number<Sum>::wide(sum) - wide) > 2 * length * Number<Sum>::kEpsilon * size) return false;
    if (kTiles[box.strategy].tensor && std::isfinite(size)) {
      // The units neither promise an order nor to round each addition.
      const double tolerance =
          size * (rounding_of(plan_.kind) + tensor_sum_error(plan_.kind, box.k_end - box.k_begin) * Number<Sum>::kEpsilon);
      if (plan_.epilogues.empty()) {
        const double spacing = sizeof(Out) < sizeof(Sum) ? Number<Out>::kEpsilon * std::abs(wide) + kSmallest : 0;
        return std::abs(Number<Out>::wide(found) - wide) <= tolerance + spacing;
      }
      return close_to_epilogue(problem_epilogue(box, batch, row, col), wide.real(), tolerance, found);
    }
    if (plan_.epilogues.empty()) return same(found, Number<Out>::from(Number<Sum>::wide(sum)));
    return expected_epilogue(problem_epilogue(box, batch, row, col), sum, found);
  }

  EpilogueTerms<Sum, Out> problem_epilogue(const Box& box, int batch, int row, int col) const {
    const Problem& p = plan_.problems[box.problem];
    const Epilogue& e = plan_.epilogues[box.problem];
    const auto read = [&](const Operand& x) { return x.buffer < 0 ? Out{} : elements<Out>(x)[offset_of(x, p, batch, row, col)]; };
    const auto scalar = [&](const Scalar& s) {
      return s.buffer < 0 ? Number<Sum>::from({s.real, s.imag})
                          : reinterpret_cast<const Sum*>(buffers_[s.buffer].data())[margin_ + s.offset];
    };
    return {e, scalar(e.alpha), scalar(e.beta), read(e.source), read(e.bias)};
  }

  // A buffer for rows x cols matrices of E, its margins and what no matrix holds filled with a pattern: NaN in an input.
  template <class E>
  Operand place(int rows, int cols, const Problem& p, bool plain, bool input) {
    Operand x{};
    const int layout = plain ? 0 : between(0, 5);
    const int64_t pad = between(0, 1) ? 4 : between(0, 5);
    x.row_stride = cols, x.col_stride = 1;                                                 // row-major
    if (layout == 2) x.row_stride = 1, x.col_stride = rows;                                // transposed
    if (layout == 3) x.row_stride = cols + pad;                                            // a view with a longer row
    if (layout == 4) x.row_stride = 1, x.col_stride = rows + pad;                          // the same, transposed
    if (layout == 5) x.row_stride = 3 * static_cast<int64_t>(cols) + 1, x.col_stride = 3;  // contiguous in no way
    x.offset = plain ? 0 : one_of({0, 0, 4, 1, 3});
    const int64_t extent = std::max(rows - 1, 0) * x.row_stride + std::max(cols - 1, 0) * x.col_stride + 1;
    x.batch_stride[1] = input && !plain && between(0, 3) == 0 ? 0 : extent + pad;
    x.batch_stride[0] = input && !plain && between(0, 3) == 0 ? 0 : p.inner_batch * (extent + pad);
    const int outer = p.inner_batch ? std::max(p.batch / p.inner_batch, 1) : 1;
    const int64_t size = x.offset + (outer - 1) * x.batch_stride[0] + std::max(p.inner_batch - 1, 0) * x.batch_stride[1] + extent;
    x.buffer = add_buffer<E>(size, input ? NAN : -777.0);
    return x;
  }

  template <class E>
  int add_buffer(int64_t size, double pattern) {
    const E element = Number<E>::from(pattern);
    std::vector<char> bytes((size + 2 * margin_) * sizeof(E));
    for (size_t i = 0; i < bytes.size(); i += sizeof(E)) std::memcpy(bytes.data() + i, &element, sizeof(E));
    buffers_.push_back(std::move(bytes));
    element_bytes_.push_back(sizeof(E));
    return static_cast<int>(buffers_.size()) - 1;
  }

  Wide random_number() {
    std::uniform_real_distribution<double> value(-1, 1);
    return {value(random_), value(random_)};
  }

  // Random numbers all over an operand's buffer but its margins.
  template <class E>
  void fill(const Operand& x) {
    const int64_t size = static_cast<int64_t>(buffers_[x.buffer].size() / sizeof(E)) - 2 * margin_;
    for (int64_t i = 0; i < size; ++i) elements<E>(x)[i] = Number<E>::from(random_number());
  }

  // Known, or an element of a buffer among NaNs.
  Scalar scalar_of(Wide value) {
    const Sum number = Number<Sum>::from(value);
    if (between(0, 1)) {
      const Wide rounded = Number<Sum>::wide(number);
      return {rounded.real(), rounded.imag(), -1, 0, 0};
    }
    Scalar s{NAN, NAN, 0, 0, between(0, 3)};
    s.buffer = add_buffer<Sum>(4, NAN);
    reinterpret_cast<Sum*>(buffers_[s.buffer].data())[margin_ + s.offset] = number;
    return s;
  }

  Epilogue epilogue_of(const Problem& p) {
    Epilogue e{};
    e.source.buffer = e.bias.buffer = -1;
    e.alpha = scalar_of(between(0, 1) ? Wide(1) : random_number());
    const int kind = between(0, 3);
    e.beta = scalar_of(kind < 2 ? Wide(0) : random_number());
    if (kind == 1) e.source = place<Out>(p.m, p.n, p, false, true);  // NaN, which a beta of 0 must not read
    if (kind == 2) e.source = place<Out>(p.m, p.n, p, false, true), fill<Out>(e.source);
    if (kind == 3) e.source = p.c, fill<Out>(p.c);  // in place
    if (between(0, 2)) {
      e.bias = place<Out>(p.m, p.n, p, false, true);
      fill<Out>(e.bias);
      (between(0, 1) ? e.bias.row_stride : e.bias.col_stride) *= between(0, 1);  // broadcast along one of them, or along none
    }
    if (!kIsComplex<Out>) e.activation = static_cast<Activation>(between(0, 5));
    return e;
  }

  std::mt19937_64 random_;
  const int margin_;
  HostPlan plan_;
  std::vector<Box> boxes_;
  std::vector<std::vector<char>> buffers_;
  std::vector<size_t> element_bytes_;  // by buffer
  std::vector<DeviceMemory> memory_, workspace_;
  Buffers device_buffers_;
  std::vector<DevicePlan> device_;
};

}  // namespace vbgemm::driver
