// A random call on the device, and whether its results are right: bit for bit for the ordinary kernels, and close to float64 for
// tensor-core kernels, which promise no more.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gpu_driver/expected_epilogue.h"
#include "gpu_driver/expected_sum.h"
#include "gpu_driver/random_call.h"

namespace vbgemm::driver {

template <class T, class Out = T, class Right = T>
class Trial : public RandomCall<T, Out, Right> {
 public:
  using Base = RandomCall<T, Out, Right>;
  using Sum = Accumulator<T>;
  using Base::Base;

  void upload() {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      memory_.emplace_back(buffers_[i]);
      const auto bytes = static_cast<int64_t>(element_bytes_[i]);
      device_buffers_.add(memory_[i].data() + margin_ * bytes, static_cast<int64_t>(buffers_[i].size()) / bytes - 2 * margin_);
    }
    device_buffers_.num_operands = this->num_operands();
    workspace_.emplace_back(workspace_of(plan_, static_cast<int>(buffers_.size())));
    device_.emplace_back(plan_);
  }
  void enqueue(const OwnStream& stream) {
    require(launch(call_of(plan_, device_[0], device_buffers_, workspace_[0]), stream.get()), "launch");
  }
  // Restores every buffer to its contents before the call.
  void restore() {
    for (size_t i = 0; i < buffers_.size(); ++i) memory_[i].write(buffers_[i].data());
  }
  // The bytes of each problem's result buffer, including its margins.
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
  template <class E>
  const E* elements(const Operand& x) const {
    return Base::template elements<E>(x);
  }

  // Counts faults of the results: wrong elements, and writes outside of the results.
  int faults(Results results) const {
    int faults = 0;
    for (const Box& box : boxes_) {
      const TileShape& shape = kTiles[box.tile_id];
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
              std::memcpy(element, elements<Out>(p.c) + offset, sizeof found);  // what remains in the results must be untouched
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

  // Checks only what must hold for arbitrary tiles: no operand is written, and nothing before or after a result.
  int strays_outside(const Results& results) const {
    int faults = changed_operands();
    for (size_t i = 0; i < results.size(); ++i) {
      const std::vector<char>& before = buffers_[plan_.problems[i].c.buffer];
      const size_t margin = margin_ * sizeof(Out);
      faults += !std::equal(before.begin(), before.begin() + margin, results[i].begin());
      faults += !std::equal(before.end() - margin, before.end(), results[i].end() - margin);
    }
    return faults;
  }

  // Checks only what must hold for arbitrary runs: nothing outside the elements of C is written.
  int strays(Results results) const {
    int faults = changed_operands();
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
  using Base::boxes_, Base::buffers_, Base::element_bytes_, Base::margin_, Base::plan_;

  int changed_operands() const {
    int changed = 0;
    for (int i = 0; i < this->num_operands(); ++i) {
      std::vector<char> now(buffers_[i].size());
      memory_[i].read(now.data());
      changed += now != buffers_[i];
    }
    return changed;
  }

  ExpectedSum<T, Right> expected_sum(const Box& box, int batch, int row, int col) const {
    const Problem& p = plan_.problems[box.problem];
    return {p, box, elements<T>(p.a), elements<Right>(p.b), batch, row, col};
  }

  void show(const Box& box, int batch, int row, int col, Out found) const {
    const Problem& p = plan_.problems[box.problem];
    const Wide exact = expected_sum(box, batch, row, col).wide;
    std::printf("  problem %d, %d x %d x %d, tile %s/%d, batch %d, row %d, column %d: sum %.9g, result %.9g\n", box.problem, p.m, p.n, p.k,
                kTiles[box.tile_id].name, kTiles[box.tile_id].threads, batch, row, col, exact.real(), Number<Out>::wide(found).real());
    const auto strides = [](const char* name, const Operand& x) {
      std::printf("    %s from %lld by %lld, %lld\n", name, static_cast<long long>(x.offset), static_cast<long long>(x.row_stride),
                  static_cast<long long>(x.col_stride));
    };
    strides("a", p.a), strides("b", p.b), strides("c", p.c);
  }

  bool right(const Box& box, int batch, int row, int col, Out found) const {
    const ExpectedSum<T, Right> expected = expected_sum(box, batch, row, col);
    const Wide wide = expected.wide;
    const double size = expected.size, length = box.k_end - box.k_begin + 4;
    if (std::isfinite(size) && std::abs(Number<Sum>::wide(expected.sum) - wide) > 2 * length * Number<Sum>::kEpsilon * size) return false;
    if (kTiles[box.tile_id].tensor && std::isfinite(size) && !is_integer(kDTypeOf<T>)) {
      // Tensor cores promise neither an order of additions nor to round each one.
      const double tolerance =
          size * (rounding_of(plan_.kind) + tensor_sum_error(plan_.kind, box.k_end - box.k_begin) * Number<Sum>::kEpsilon);
      if (plan_.epilogues.empty()) {
        const double spacing = sizeof(Out) < sizeof(Sum) ? Number<Out>::kEpsilon * std::abs(wide) + Number<Out>::kSmallest : 0;
        return std::abs(Number<Out>::wide(found) - wide) <= tolerance + spacing;
      }
      return close_to_epilogue(problem_epilogue(box, batch, row, col), wide.real(), tolerance, found);
    }
    if (plan_.epilogues.empty()) return same(found, Number<Out>::from(Number<Sum>::wide(expected.sum)));
    return expected_epilogue(problem_epilogue(box, batch, row, col), expected.sum, found);
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

  std::vector<DeviceMemory> memory_, workspace_;
  Buffers device_buffers_;
  std::vector<DevicePlan> device_;
};

}  // namespace vbgemm::driver
