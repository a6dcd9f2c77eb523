// The operands that quantize.h quantizes: rows of an array, optionally by index; or the results of a gate or their gradient, which are
// never written to memory.
#pragma once
#include "gpu/arch/machine.h"
#include "gpu/host/quantize_launch.h"
#include "gpu/tile/arithmetic.h"
#include "gpu/tile/fast_gate.h"

namespace vbgemm {

// A thread holds 8 x 8 elements of a block: 16 threads span its columns, and 16 its rows.
inline constexpr int kThreadRows = 8, kThreadCols = 8, kQuantizeAcross = kQuantizeBlock / kThreadCols;
static_assert(kQuantizeBlock / kThreadRows * kQuantizeAcross == kQuantizeThreads);

__device__ inline int blocks_over(int size) { return (size + kQuantizeBlock - 1) / kQuantizeBlock; }

// The position of a block and of a thread's elements in it.
struct QuantizePlace {
  int thread, matrix, row_block, col_block;

  __device__ explicit QuantizePlace(const QuantizeParameters& p) : thread(thread_index()) {
    const auto divided = [](uint32_t number, Divisor by) { return static_cast<uint32_t>(uint64_t{number} * by.factor >> by.shift); };
    const uint32_t line = divided(block_index(), p.line), in_line = block_index() - line * p.line.number;
    matrix = divided(line, p.matrix);
    const uint32_t of_matrix = line - matrix * p.matrix.number;
    row_block = p.down ? in_line : of_matrix, col_block = p.down ? of_matrix : in_line;
  }
  // The thread's position in the block. Eight adjacent threads have the same rows, and the next eight have the rows below, so that no two
  // of sixteen threads write to the same bank of shared memory.
  __device__ int across() const { return thread % 8 + thread / 16 % 2 * 8; }
  __device__ int down() const { return thread / 32 * 2 + thread / 8 % 2; }
  // The thread's first row and column.
  __device__ int row() const { return row_block * kQuantizeBlock + down() * kThreadRows; }
  __device__ int col() const { return col_block * kQuantizeBlock + across() * kThreadCols; }

  // The thread's own row, which is the one of its rows whose maximum or scale it computes for all threads with that row; and its row i.
  __device__ int own() const { return thread % kThreadRows; }
  template <class Value>
  __device__ Value of_row(Value of_own, int i) const {
    return shfl(of_own, thread % kWaveSize / kThreadRows * kThreadRows + i);
  }
};

// Rows of an array; each thread has a piece of each row. `first` is an integer because it may point outside of the array.
struct QuantizeRows {
  uint64_t first;
  uint32_t pitch;  // bytes from row to row

  __device__ QuantizeRows(const void* array, uint64_t offset, uint32_t pitch)
      : first(reinterpret_cast<uintptr_t>(array) + offset), pitch(pitch) {
    keep_in_place(first);  // in registers, so that a row's address takes one multiply-add
  }
  __device__ char* operator()(int row) const { return reinterpret_cast<char*>(first + uint64_t{static_cast<uint32_t>(row)} * pitch); }
};

// Looks up a row in an index of `rows` entries; a null index is the identity. There is no branch, so that several loads are in flight.
__device__ inline int row_named(const int32_t* index, int row, int rows) {
  int named;
  load_bytes_if<4>(index && row < rows, &named, reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(index) + row * uint64_t{4}));
  return index ? named : row;
}

// Reduces each of `values` (one per row or per two rows) over the threads that have these rows. A thread receives the result for its own
// row. kDistance is the lane distance at which it exchanges half of the values.
template <int kDistance, int kCount, class Value, class Combine>
__device__ __forceinline__ Value reduce_scattered(const Value (&values)[kCount], int thread, const Combine& combine) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = thread & kDistance;
    Value half[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      Value others = upper ? values[i] : values[kHalf + i];
      shfl_xor<kDistance>(others);
      half[i] = combine(upper ? values[kHalf + i] : values[i], others);
    }
    return reduce_scattered<kDistance / 2>(half, thread, combine);
  }
}
template <int kDistance, class Value, class Combine>
__device__ __forceinline__ Value combined(Value value, const Combine& combine) {
  Value others = value;
  shfl_xor<kDistance>(others);
  return combine(value, others);
}

// A thread's elements as words in memory order: 16-bit elements take half of the registers.
template <class T>
struct QuantizeElements {
  static constexpr int kWords = kThreadCols * static_cast<int>(sizeof(T)) / 4, kInWord = kThreadCols / kWords;
  // Magnitudes are compared as bit patterns, which are ordered like the values, with infinity and NaN as the largest. 16-bit magnitudes are
  // compared two at a time.
  static constexpr int kMagnitudes = kThreadRows / kInWord;
  uint32_t words[kThreadRows][kWords];

  __device__ static float element(const uint32_t (&words)[kWords], int col) {
    const uint32_t word = words[col / kInWord];
    if constexpr (kInWord == 1) {
      return float_of_bits(word);
    } else {
      T number;
      number.bits = static_cast<uint16_t>(word >> col % kInWord * 16);
      return widen(number);
    }
  }
  __device__ float operator()(int row, int col) const { return element(words[row], col); }

  __device__ void set_two(int row, int col, float first, float second) {
    if constexpr (kInWord == 1) {
      words[row][col] = bits_of_float(first), words[row][col + 1] = bits_of_float(second);
    } else {
      words[row][col / 2] = narrow_two<T>(first, second);
    }
  }

  // The largest magnitude of the thread's own row; for 16-bit elements, the other half of the word has the neighbouring row's.
  __device__ uint32_t largest(int thread) const {
    uint32_t of_row[kThreadRows], magnitude[kMagnitudes];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      of_row[i] = 0;
#pragma unroll
      for (const uint32_t word : words[i]) of_row[i] = larger(of_row[i], word & (kInWord == 1 ? 0x7fffffffu : 0x7fff7fffu));
    }
#pragma unroll
    for (int i = 0; i < kMagnitudes; ++i) {
      if constexpr (kInWord == 1) {
        magnitude[i] = of_row[i];
      } else {
        const uint32_t first = of_row[2 * i], second = of_row[2 * i + 1];
        magnitude[i] = larger(select_bytes(first, second, 0x5410), select_bytes(first, second, 0x7632));
      }
    }
    uint32_t of_own = reduce_scattered<kThreadRows / 2>(magnitude, thread, larger);
    if constexpr (kInWord == 2) of_own = combined<1>(of_own, larger);
    return combined<16>(of_own, larger);
  }
  // Converts it to float32 bits: the magnitude of the thread's own row, and the largest one of 32 threads.
  __device__ static uint32_t of_own_row(uint32_t of_own, int own) {
    if constexpr (kInWord == 1) return of_own;
    return float_bits_of(of_own >> own % 2 * 16);
  }
  __device__ static uint32_t of_threads(uint32_t of_own) {
    of_own = combined<8>(combined<4>(combined<2>(of_own, larger), larger), larger);
    if constexpr (kInWord == 1) return combined<1>(of_own, larger);
    return float_bits_of(larger(of_own, of_own >> 16));
  }

 private:
  __device__ static uint32_t larger(uint32_t x, uint32_t y) {
    if constexpr (kInWord == 1) {
      return x < y ? y : x;
    } else {
      return larger_halves(x, y);
    }
  }
  __device__ static uint32_t float_bits_of(uint32_t magnitude) {
    if constexpr (kInWord == 1) {
      return magnitude;
    } else {
      T number;
      number.bits = static_cast<uint16_t>(magnitude);
      return bits_of_float(widen(number));
    }
  }
};

template <class T, QuantizeForm kForm>
struct QuantizeOperand {
  static constexpr int kParts = kForm == QuantizeForm::gated_gradient ? 2 : 1;  // blocks of columns that a CTA quantizes
  using Elements = QuantizeElements<T>;

  // For the thread's own row: `source`, its row in the operands, and `place`, its row in the results; or -1.
  __device__ __forceinline__ static void read(const QuantizeParameters& p, const QuantizePlace& at, int source, int place,
                                              Elements (&x)[kParts]) {
    if constexpr (kForm == QuantizeForm::plain) {
      const uint32_t pitch = p.cols * sizeof(T);
      const QuantizeRows rows(p.x, uint64_t(at.matrix) * p.source_rows * pitch + at.col() * sizeof(T), pitch);
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) load(p, at, rows, at.of_row(source, i), x[0].words[i]);
    } else if (p.activation == Activation::silu) {
      compute<Activation::silu>(p, at, source, place, x);
    } else {
      compute<Activation::gelu>(p, at, source, place, x);
    }
  }

 private:
  using Words = uint32_t[Elements::kWords];

  __device__ static void load(const QuantizeParameters& p, const QuantizePlace& at, const QuantizeRows& rows, int row, Words& to) {
    constexpr int kVectorWords = 4;
#pragma unroll
    for (int first = 0; first < Elements::kWords; first += kVectorWords) {
      load_bytes_if<16>(row >= 0 && at.col() < p.part_cols, &to[first], rows(row) + 4 * first);
    }
  }

  template <Activation kActivation>
  __device__ __forceinline__ static void compute(const QuantizeParameters& p, const QuantizePlace& at, int source, int place,
                                                 Elements (&x)[kParts]) {
    constexpr bool kGradient = kForm == QuantizeForm::gated_gradient;
    constexpr int kAhead = kGradient ? 2 : 4;  // rows with loads in flight
    const uint32_t part = p.part_cols * sizeof(T), left = at.col() * sizeof(T);
    const QuantizeRows gates(p.sums, left, 2 * part), ups(p.sums, uint64_t{part} + left, 2 * part), gradients(p.x, left, part);
    const float own_scale = p.row_scale && source >= 0 ? p.row_scale[source] : 1;
    Words gate[kAhead], up[kAhead], gradient[kAhead];
    const auto start = [&](int i) {
      const int row = at.of_row(source, i), to = i % kAhead;
      load(p, at, gates, row, gate[to]), load(p, at, ups, row, up[to]);
      if constexpr (kGradient) load(p, at, gradients, row, gradient[to]);
    };
    float product[kThreadRows];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) start(i);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int from = i % kAhead;
      const float scale = at.of_row(own_scale, i);
      if constexpr (kGradient) {
        product[i] = differentiate<kActivation>(i, gate[from], up[from], gradient[from], scale, x);
      } else {
        multiply<kActivation>(i, gate[from], up[from], scale, x[0]);
      }
      if (i + kAhead < kThreadRows) start(i + kAhead);
    }
    if constexpr (kGradient) {
      if (p.partials) store_partial(p, at, place, product);
    }
  }

  template <Activation kActivation>
  __device__ static void multiply(int i, const Words& gate, const Words& up, float scale, Elements& x) {
#pragma unroll
    for (int j = 0; j < kThreadCols; j += 2) {
      float value[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        value[k] = scale * (fast_gate(kActivation, Elements::element(gate, j + k)).value * Elements::element(up, j + k));
      }
      x.set_two(i, j, value[0], value[1]);
    }
  }

  // Sets the gradients of both halves of the sums. Returns the sum of the products of the gradient and the results before their row's
  // scale.
  template <Activation kActivation>
  __device__ static float differentiate(int i, const Words& gate, const Words& up, const Words& gradient, float scale,
                                        Elements (&x)[kParts]) {
    float product = 0;
#pragma unroll
    for (int j = 0; j < kThreadCols; j += 2) {
      float of_gate[2], of_up[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const FastGate at = fast_gate(kActivation, Elements::element(gate, j + k));
        const float given = Elements::element(gradient, j + k), other = Elements::element(up, j + k), scaled = scale * given;
        of_gate[k] = scaled * other * at.slope, of_up[k] = scaled * at.value;
        product = multiply_add(given, at.value * other, product);
      }
      x[0].set_two(i, j, of_gate[0], of_gate[1]), x[kParts - 1].set_two(i, j, of_up[0], of_up[1]);
    }
    return product;
  }

  // The sum over the thread's own row of the block.
  __device__ static void store_partial(const QuantizeParameters& p, const QuantizePlace& at, int place,
                                       const float (&product)[kThreadRows]) {
    const auto add = [](float x, float y) { return x + y; };
    const float sum = combined<16>(reduce_scattered<kThreadRows / 2>(product, at.thread, add), add);
    if (at.across() < kThreadRows && place >= 0) p.partials[int64_t{place} * blocks_over(p.part_cols) + at.col_block] = sum;
  }
};

}  // namespace vbgemm
