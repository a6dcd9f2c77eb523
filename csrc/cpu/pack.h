// Copies operands that cannot be read efficiently in place (a panel of B, a block of A), and results to C.
//
// An element consists of kParts reals (2 if complex). Strides and counts are in elements; packed memory holds reals of the accumulator's
// type T. Both packing functions keep or transpose the operand, whichever reads and writes contiguous memory.
#pragma once
#include "cpu/convert.h"
#include "cpu/simd.h"

namespace vbgemm::VBGEMM_ISA {

inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

template <int kParts, class In, class T>
inline void copy_run(const In* from, int64_t stride, int64_t count, T* to) {
  if (stride == 1) {
    int64_t i = 0;
    for (; i + kLanes<T> <= count * kParts; i += kLanes<T>) store(to + i, load_wide(from + i));
    for (; i < count * kParts; ++i) to[i] = widen(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      for (int part = 0; part < kParts; ++part) to[i * kParts + part] = widen(from[i * stride * kParts + part]);
    }
  }
}

// A 16-byte vector, the unit in which panels are transposed: four or two reals.
template <class T>
using Vec16 = typename VectorOf<T, 16>::Type;

inline void transpose(Vec16<float>* v) {
  using V = Vec16<float>;
  const V a = {v[0][0], v[1][0], v[0][1], v[1][1]}, b = {v[0][2], v[1][2], v[0][3], v[1][3]};
  const V c = {v[2][0], v[3][0], v[2][1], v[3][1]}, d = {v[2][2], v[3][2], v[2][3], v[3][3]};
  v[0] = V{a[0], a[1], c[0], c[1]}, v[1] = V{a[2], a[3], c[2], c[3]};
  v[2] = V{b[0], b[1], d[0], d[1]}, v[3] = V{b[2], b[3], d[2], d[3]};
}
inline void transpose(Vec16<uint32_t>* v) {
  Vec16<float> bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = Vec16<float>(v[i]);
  transpose(bits);
  for (int i = 0; i < 4; ++i) v[i] = Vec16<uint32_t>(bits[i]);
}
inline void transpose(Vec16<double>* v) {
  using V = Vec16<double>;
  const V a = v[0], b = v[1];
  v[0] = V{a[0], b[0]}, v[1] = V{a[1], b[1]};
}

// to[k][j] = from[j * stride + k]: transposes a panel whose columns are contiguous. Columns after the last become zeros, up to a multiple
// of kBlock, which is no wider than a vector. Pairs of floats are passed as doubles and may be misaligned, which is safe because no pointer
// to double is dereferenced.
template <class In, class T>
inline void transpose_panel(const In* from, int64_t stride, int64_t k_count, int64_t columns, T* to, int64_t to_row) {
  constexpr int kBlock = 16 / sizeof(T);
  for (int64_t j = 0; j < columns; j += kBlock) {
    const int valid = static_cast<int>(smaller(kBlock, columns - j));
    const In* column = from + j * stride;
    int64_t k = 0;
    for (; k + kBlock <= k_count; k += kBlock) {
      Vec16<T> v[kBlock];
#pragma GCC unroll 4
      for (int i = 0; i < kBlock; ++i) {
        v[i] = Vec16<T>{};
        if (i < valid) {
          const In* p = column + i * stride + k;
          if constexpr (sizeof(In) == sizeof(T)) {
            v[i] = load<Vec16<T>>(p);
          } else {
            v[i] = Vec16<T>{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
          }
        }
      }
      transpose(v);
#pragma GCC unroll 4
      for (int i = 0; i < kBlock; ++i) store(to + (k + i) * to_row + j, v[i]);
    }
    for (; k < k_count; ++k) {
      for (int i = 0; i < kBlock; ++i) store(to + k * to_row + j + i, i < valid ? widen(load<In>(column + i * stride + k)) : T{});
    }
  }
}

// Copies a panel whose rows are contiguous and NV vectors wide, of which the last may be partial. Strides and columns count reals.
template <int NV, class In, class T>
inline void copy_panel(const In* from, int64_t stride, int64_t k_count, int64_t columns, T* to) {
  constexpr int kWidth = kLanes<T>;
  const int valid = static_cast<int>(columns - (NV - 1) * kWidth);
  const Mask mask = first_lanes<T>(valid);
  for (int64_t k = 0; k < k_count; ++k, from += stride, to += NV * kWidth) {
#pragma GCC unroll 4
    for (int v = 0; v < NV - 1; ++v) store(to + v * kWidth, load_wide(from + v * kWidth));
    const In* last = from + (NV - 1) * kWidth;
    if constexpr (kMaskedLoads && sizeof(In) == sizeof(T)) {
      store(to + (NV - 1) * kWidth, load(last, mask));
    } else {
      store(to + (NV - 1) * kWidth, valid == kWidth ? load_wide(last) : load_wide(last, valid));
    }
  }
}
template <class In, class T>
inline void copy_panel(const In* from, int64_t stride, int64_t k_count, int64_t columns, T* to, int64_t to_row) {
  switch (to_row / kLanes<T>) {
    case 1: return copy_panel<1>(from, stride, k_count, columns, to);
    case 2: return copy_panel<2>(from, stride, k_count, columns, to);
    case 3: return copy_panel<3>(from, stride, k_count, columns, to);
    case 4: return copy_panel<4>(from, stride, k_count, columns, to);
  }
}

// Packs a panel of B: k_count rows of `columns` elements, padded with zeros to to_row reals.
template <int kParts, class In, class T>
inline void pack_panel(const In* b, int64_t b_k, int64_t b_column, int64_t k_count, int64_t columns, T* to, int64_t to_row) {
  if (b_column == 1) return copy_panel(b, b_k * kParts, k_count, columns * kParts, to, to_row);
  for (int64_t k = 0; k < k_count; ++k) {
    for (int64_t j = columns * kParts; j < to_row; ++j) to[k * to_row + j] = T{};
  }
  if constexpr (kParts == 1) {
    if (b_k == 1) return transpose_panel(b, b_column, k_count, columns, to, to_row);
  } else if constexpr (sizeof(T) == 4) {
    const auto* pairs = reinterpret_cast<const double*>(b);
    if (b_k == 1) return transpose_panel(pairs, b_column, k_count, columns, reinterpret_cast<double*>(to), to_row / 2);
  }
  for (int64_t k = 0; k < k_count; ++k) copy_run<kParts>(b + k * b_k * kParts, b_column, columns, to + k * to_row);
}

// Copies a block of A in its own order and returns the strides of the copy, in reals.
struct Strides {
  int64_t row, k;
};
template <int kParts, class In, class T>
inline Strides copy_block(const In* a, int64_t a_row, int64_t a_k, int64_t rows, int64_t k_count, T* to) {
  if (magnitude(a_k) <= magnitude(a_row)) {
    for (int64_t i = 0; i < rows; ++i) copy_run<kParts>(a + i * a_row * kParts, a_k, k_count, to + i * k_count * kParts);
    return {k_count * kParts, kParts};
  }
  for (int64_t k = 0; k < k_count; ++k) copy_run<kParts>(a + k * a_k * kParts, a_row, rows, to + k * rows * kParts);
  return {kParts, rows * kParts};
}

// Writes a block of rows x columns results to C, along its smaller stride: stores to distant rows of one column evict each other from the
// level-1 cache.
template <int kParts, class T, class Out>
inline void scatter(const T* from, int64_t from_row, int64_t rows, int64_t columns, Out* c, int64_t c_row, int64_t c_column) {
  if (c_column == 1) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns * kParts; ++j) narrow(from[i * from_row + j], c[i * c_row * kParts + j]);
    }
    return;
  }
  const auto write = [&](int64_t i, int64_t j) {
    for (int part = 0; part < kParts; ++part) narrow(from[i * from_row + j * kParts + part], c[(i * c_row + j * c_column) * kParts + part]);
  };
  if (magnitude(c_column) < magnitude(c_row)) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) write(i, j);
    }
  } else {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) write(i, j);
    }
  }
}

}  // namespace vbgemm::VBGEMM_ISA
