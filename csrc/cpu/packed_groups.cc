// Adds the products of packed rows times weights of different shapes to a GroupWalk.
#include <algorithm>

#include "cpu/group_walk.h"

namespace vbgemm {
namespace {

char* at(const RaggedOperand& x, int64_t entry, int64_t index, DType dtype) {
  const int64_t element = entry * x.batch_stride[0] + index;
  return static_cast<char*>(const_cast<void*>(x.data)) + element * bytes_of(dtype);
}

int64_t size_of_group(const PackedCall& call, int64_t entry, int64_t group) {
  const int64_t index = entry * call.group_sizes.batch_stride[0] + group;
  return call.wide_sizes ? static_cast<const int64_t*>(call.group_sizes.data)[index]
                         : static_cast<const int32_t*>(call.group_sizes.data)[index];
}

// How many of `rows` rows of `width` elements lie completely in a buffer of `size` elements, from element `begin` on.
int64_t whole_rows(int64_t rows, int64_t width, int64_t begin, int64_t size) {
  return width == 0 ? rows : std::clamp<int64_t>((size - begin) / width, 0, rows);
}

void add_entry(const PackedCall& call, int64_t entry, GroupWalk& walk) {
  int64_t row = 0, x = 0, y = 0, written = 0;  // written: elements of y
  const auto add_zeros = [&](int64_t end) {
    if (written >= end) return;
    const Matrix none = {at(call.x, entry, 0, call.dtype), 1, 1};  // k = 0: it is not read
    walk.add({1, end - written, 0, none, none, {at(call.y, entry, written, call.out_dtype), end - written, 1}, {}, {}});
  };
  for (int64_t group = 0; group < call.groups; ++group) {
    const int64_t k = call.shapes[2 * group], n = call.shapes[2 * group + 1];
    const int64_t rows = std::clamp<int64_t>(size_of_group(call, entry, group), 0, call.rows - row);
    const int64_t whole = std::min(whole_rows(rows, k, x, call.x_size), whole_rows(rows, n, y, call.y_size));
    const RaggedOperand& w = call.weights[group];
    // A group without rows reads nothing; its address must not be formed, since it may lie beyond the buffer.
    const Matrix a = {at(call.x, entry, whole && k ? x : 0, call.dtype), k, 1};
    if (call.contraction) {
      const Matrix b = {at(call.y, entry, whole && n ? y : 0, call.dtype), n, 1};
      if (k && n) walk.add({k, n, whole, {a.data, 1, k}, b, {at(w, entry, 0, call.out_dtype), n, 1}, {}, {}});
    } else if (whole && n && k) {
      add_zeros(y);
      const Matrix b = call.transpose_rhs ? Matrix{at(w, entry, 0, call.dtype), 1, k} : Matrix{at(w, entry, 0, call.dtype), n, 1};
      walk.add({whole, n, k, a, b, {at(call.y, entry, y, call.out_dtype), n, 1}, {}, {}});
      written = y + whole * n;
    }
    row += rows, x += rows * k, y += rows * n;
  }
  if (!call.contraction) add_zeros(call.y_size);
}

}  // namespace

void add_products(const PackedCall& call, GroupWalk& walk) {
  for (int64_t entry = 0; entry < call.entries; ++entry) add_entry(call, entry, walk);
}

}  // namespace vbgemm
