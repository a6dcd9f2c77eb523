// A random call on the host: problems with operands and results in all layouts, and epilogues. Operands are surrounded by NaN, and results
// by a pattern that must not change, so that a stray read or write shows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include "gpu_driver/host_plan.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

// T: element type of the left operands; Out: of the results; Right: of the right operands.
template <class T, class Out = T, class Right = T>
class RandomCall {
 public:
  using Sum = Accumulator<T>;

  // margin: elements on either side of a buffer; with 0, a memory checker has to see accesses beyond it.
  RandomCall(Kind kind, uint64_t seed, int margin) : margin_(margin), random_(seed) {
    plan_.kind = kind;
    plan_.out_dtype = kDTypeOf<Out>;
  }

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int one_of(std::initializer_list<int> values) { return values.begin()[between(0, static_cast<int>(values.size()) - 1)]; }

  HostPlan& plan() { return plan_; }
  std::vector<Box>& boxes() { return boxes_; }

  // Whether from now on rows begin at multiples of 16 bytes wherever the sizes permit that.
  void align_rows(bool yes) { aligned_ = yes; }

  // Adds a problem with random layouts. Each operand is row-major, transposed, padded or strided in both dimensions, at an aligned or an
  // odd offset; batches have one or two strides, some of which are 0.
  int add(int m, int n, int k, int batch, bool plain = false) {
    Problem p{};
    p.m = m, p.n = n, p.k = k, p.batch = batch;
    p.inner_batch = batch % 2 == 0 && between(0, 1) ? batch / 2 : std::max(batch, 1);
    p.a = place<T>(m, k, p, plain, true);
    fill<T>(p.a, m, k, p);
    p.b = place<Right>(k, n, p, plain, true);
    fill<Right>(p.b, k, n, p);
    p.c = place<Out>(m, n, p, plain, false);
    plan_.problems.push_back(p);
    return static_cast<int>(plan_.problems.size()) - 1;
  }
  // As add, where B is the transpose of A.
  int add_symmetric(int m, int k, int batch) {
    const int problem = add(m, m, k, batch);
    Problem& p = plan_.problems[problem];
    p.b = p.a;
    std::swap(p.b.row_stride, p.b.col_stride);
    return problem;
  }
  // Covers a symmetric C: tiles below its diagonal are left out, and those above it are mirrored.
  void cover_symmetric(int problem, int tile_id, int slices) {
    const TileShape& shape = kTiles[tile_id];
    const Box all = whole(plan_.problems, problem, tile_id);
    for (int y = 0; y < all.tiles_y; ++y) {
      for (int x = 0; x < all.tiles_x; ++x) {
        Box box = all;
        box.tiles_y = box.tiles_x = 1, box.row = y * shape.m, box.col = x * shape.n;
        box.slices = slices;
        box.mirrored = box.row + shape.m <= box.col;
        if (box.row < box.col + shape.n) boxes_.push_back(box);
      }
    }
  }
  void cover(int problem, int tile_id) { boxes_.push_back(whole(plan_.problems, problem, tile_id)); }

  // Gives an epilogue to each of the problems so far, of every kind in turn.
  void add_epilogues() {
    for (const Problem& p : plan_.problems) plan_.epilogues.push_back(epilogue_of(p));
  }

  // To be called when the call has all its problems and epilogues: puts the operands first, as in every call, and turns boxes into tiles.
  void lay_out(bool ready, const std::function<int()>& block_size = nullptr) {
    put_operands_first();
    driver::lay_out(plan_, boxes_, ready, block_size);
  }
  int num_operands() const { return static_cast<int>(buffers_.size() - plan_.problems.size()); }

  // Sets one element of an operand, at a row and column of op(X) in batch 0.
  void set(const Operand& x, int row, int col, Wide value) {
    const int64_t at = x.offset + row * x.row_stride + col * x.col_stride;
    for (const Problem& p : plan_.problems) {
      if (p.b.buffer == x.buffer) elements<Right>(x)[at] = Number<Right>::from(value);
      if (p.a.buffer == x.buffer) elements<T>(x)[at] = Number<T>::from(value);
    }
  }
  template <class E>
  E* elements(const Operand& x) {
    return reinterpret_cast<E*>(buffers_[x.buffer].data()) + margin_;
  }
  template <class E>
  const E* elements(const Operand& x) const {
    return reinterpret_cast<const E*>(buffers_[x.buffer].data()) + margin_;
  }

 protected:
  const int margin_;
  HostPlan plan_;
  std::vector<Box> boxes_;
  std::vector<std::vector<char>> buffers_;
  std::vector<size_t> element_bytes_;  // of each buffer
  bool aligned_ = false;

 private:
  // Makes a buffer for rows x cols matrices of E. Its margins, and elements that no matrix holds, are filled with a pattern, which is NaN
  // in an input.
  template <class E>
  Operand place(int rows, int cols, const Problem& p, bool plain, bool input) {
    Operand x{};
    const int layout = plain ? 0 : between(0, aligned_ ? 4 : 5);
    const int64_t pad = aligned_ ? 8 * between(0, 2) : between(0, 1) ? 4 : between(0, 5);
    const auto padded = [&](int64_t elements) { return (aligned_ ? (elements + 7) / 8 * 8 : elements) + pad; };
    x.row_stride = cols, x.col_stride = 1;                                                 // row-major
    if (layout == 2) x.row_stride = 1, x.col_stride = rows;                                // transposed
    if (layout == 3) x.row_stride = padded(cols);                                          // a view with a longer row
    if (layout == 4) x.row_stride = 1, x.col_stride = padded(rows);                        // transposed, with a longer row
    if (layout == 5) x.row_stride = 3 * static_cast<int64_t>(cols) + 1, x.col_stride = 3;  // contiguous in neither dimension
    x.offset = plain ? 0 : aligned_ ? 8 * between(0, 2) : one_of({0, 0, 4, 1, 3});
    const int64_t extent = std::max(rows - 1, 0) * x.row_stride + std::max(cols - 1, 0) * x.col_stride + 1;
    const int64_t matrix = between(0, 2) ? padded(extent) : extent;  // else the next matrix of the batch follows directly
    x.batch_stride[1] = input && !plain && between(0, 3) == 0 ? 0 : matrix;
    x.batch_stride[0] = input && !plain && between(0, 3) == 0 ? 0 : p.inner_batch * matrix;
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

  void put_operands_first() {
    std::vector<bool> is_result(buffers_.size());
    for (const Problem& p : plan_.problems) is_result[p.c.buffer] = true;
    int operands = 0, results = num_operands();
    std::vector<int> place;  // the new index of each buffer
    for (const bool result : is_result) place.push_back(result ? results++ : operands++);

    std::vector<std::vector<char>> buffers(place.size());
    std::vector<size_t> element_bytes(place.size());
    for (size_t i = 0; i < place.size(); ++i) {
      buffers[place[i]] = std::move(buffers_[i]);
      element_bytes[place[i]] = element_bytes_[i];
    }
    buffers_ = std::move(buffers), element_bytes_ = std::move(element_bytes);
    const auto move = [&place](int32_t& buffer) {
      if (buffer >= 0) buffer = place[buffer];
    };
    for (Problem& p : plan_.problems) move(p.a.buffer), move(p.b.buffer), move(p.c.buffer);
    for (Epilogue& e : plan_.epilogues) move(e.alpha.buffer), move(e.beta.buffer), move(e.source.buffer), move(e.bias.buffer);
  }

  Wide random_number() {
    std::uniform_real_distribution<double> value(-1, 1);
    return {value(random_), value(random_)};
  }

  // Fills an operand's rows x cols matrices with random numbers, and no other element of its buffer; if infinite_of is not 0, one in
  // infinite_of is infinite.
  template <class E>
  void fill(const Operand& x, int rows, int cols, const Problem& p, int infinite_of = 0) {
    for (int batch = 0; batch < p.batch; ++batch) {
      for (int row = 0; row < rows; ++row) {
        for (int col = 0; col < cols; ++col) {
          Wide number = random_number();
          if constexpr (is_integer(kDTypeOf<E>)) number *= 127;
          if (infinite_of && between(1, infinite_of) == 1) number.real(INFINITY);
          elements<E>(x)[offset_of(x, p, batch, row, col)] = Number<E>::from(number);
        }
      }
    }
  }

  // A scalar that is known at trace time, or an element of a buffer of NaNs.
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
    e.beta = scalar_of(kind < 2 ? Wide(0) : between(0, 1) ? Wide(1) : random_number());
    if (kind == 1) e.source = place<Out>(p.m, p.n, p, false, true);  // NaN, which must not be read if beta is 0
    if (kind == 2) e.source = place<Out>(p.m, p.n, p, false, true), fill<Out>(e.source, p.m, p.n, p, 16);
    if (kind == 3) e.source = p.c, fill<Out>(p.c, p.m, p.n, p, 16);  // in place
    if (between(0, 2)) {
      e.bias = place<Out>(p.m, p.n, p, false, true);
      fill<Out>(e.bias, p.m, p.n, p);
      (between(0, 1) ? e.bias.row_stride : e.bias.col_stride) *= between(0, 1);  // broadcast along one dimension, or along none
    }
    if (!kIsComplex<Out> && !is_integer(kDTypeOf<Out>)) e.activation = static_cast<Activation>(between(0, kActivations - 1));
    return e;
  }

  std::mt19937_64 random_;
};

}  // namespace vbgemm::driver
