// What quantize.h quantizes: rows of an array, by index where there is one; or the results of a gate, or their gradient, which are then
// never written to memory.
#pragma once
#include "gpu/host/quantize_launch.h"
#include "gpu/tile/arithmetic.h"
#include "gpu/tile/fast_gate.h"
#include "gpu/tile/tile_cut.h"

namespace vbgemm {

// A thread holds 4 x 8 elements of a block: 16 threads span its columns, and 32 its rows. With more elements a multiprocessor would have
// room for too few threads to hide the latency of loads, and of a gate's arithmetic.
inline constexpr int kThreadRows = 4, kThreadCols = 8, kQuantizeAcross = kQuantizeBlock / kThreadCols;
static_assert(kQuantizeBlock / kThreadRows * kQuantizeAcross == kQuantizeThreads);

__device__ inline int blocks_over(int size) { return (size + kQuantizeBlock - 1) / kQuantizeBlock; }

// The row of the operands and the row of `values` of each row of a block, or -1.
struct QuantizeRows {
  int source[kQuantizeBlock], place[kQuantizeBlock];
};

// Where a CTA's block and a thread's elements lie.
struct QuantizePlace {
  int matrix, row_block, col_block;
  int across, down;  // of the thread, among those of the block
  int col;           // of the thread's first element

  __device__ explicit QuantizePlace(const QuantizeParameters& p) {
    constexpr int kSide = kQuantizeBlock, kAcross = kQuantizeAcross;
    const int row_blocks = blocks_over(p.rows), col_blocks = blocks_over(p.part_cols);
    const int64_t block = block_index(), lines = block / col_blocks;
    col_block = static_cast<int>(block - lines * col_blocks);
    matrix = static_cast<int>(lines / row_blocks);
    row_block = static_cast<int>(lines - int64_t{matrix} * row_blocks);
    across = thread_index() % kAcross, down = thread_index() / kAcross;
    col = col_block * kSide + across * kThreadCols;
  }

  // Finds the rows of the block, which all threads may read after a barrier.
  __device__ void find_rows(const QuantizeParameters& p, QuantizeRows& rows) const {
    const auto found = [](const int32_t* index, int row, bool exists, int count) {
      const int which = exists && index ? index[row] : row;
      return exists && static_cast<uint32_t>(which) < static_cast<uint32_t>(count) ? which : -1;
    };
    const int thread = thread_index(), of_block = thread % kQuantizeBlock, row = row_block * kQuantizeBlock + of_block;
    const bool exists = row < p.rows;
    if (thread < kQuantizeBlock) {
      rows.source[of_block] = found(p.index, row, exists, p.source_rows);
    } else if (thread < 2 * kQuantizeBlock) {
      rows.place[of_block] = found(p.place, row, exists, p.value_rows);
    }
  }
};

// A thread's elements, in the words in which they are in memory: of 16 bits they take half of the registers, so that a multiprocessor has
// room for more CTAs.
template <class T>
struct QuantizeElements {
  static constexpr int kWords = kThreadCols * static_cast<int>(sizeof(T)) / 4, kInWord = kThreadCols / kWords;
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
      T low, high;
      narrow(first, low), narrow(second, high);
      int word = static_cast<int>(low.bits | static_cast<uint32_t>(high.bits) << 16);
      keep_in_place(word);  // as one register: the compiler would keep both numbers in one each
      words[row][col / 2] = static_cast<uint32_t>(word);
    }
  }

  // The bits of the largest magnitude in a row. Their order is that of the numbers, with infinity and NaN as the largest.
  __device__ uint32_t largest(int row) const {
    uint32_t low = 0, high = 0;
#pragma unroll
    for (const uint32_t word : words[row]) {
      if constexpr (kInWord == 1) {
        low = max_of(low, word & 0x7fffffffu);
      } else {
        low = max_of(low, word & 0x7fffu), high = max_of(high, word & 0x7fff0000u);
      }
    }
    return max_of(low, high >> 16);
  }
  // The bits of the float32 of a magnitude whose bits these are.
  __device__ static uint32_t widened(uint32_t magnitude) {
    if constexpr (kInWord == 1) {
      return magnitude;
    } else {
      T number;
      number.bits = static_cast<uint16_t>(magnitude);
      return bits_of_float(widen(number));
    }
  }

 private:
  __device__ static uint32_t max_of(uint32_t x, uint32_t y) { return x < y ? y : x; }
};

// Reads the elements from `col` on of a row, or zeros if it does not exist.
template <class T>
__device__ inline void read_row(const void* x, bool exists, int64_t row, int64_t cols, int64_t col,
                                uint32_t (&words)[QuantizeElements<T>::kWords]) {
  constexpr int kInVector = 16 / static_cast<int>(sizeof(T));
#pragma unroll
  for (uint32_t& word : words) word = 0;
  if (!exists) return;
  const T* const from = static_cast<const T*>(x) + row * cols + col;
#pragma unroll
  for (int v = 0; v < kThreadCols / kInVector; ++v) load_bytes<16>(&words[4 * v], from + v * kInVector);
}

// kParts: how many blocks of columns a CTA quantizes.
template <class T, QuantizeForm kForm>
struct QuantizeOperand {
  static constexpr int kParts = kForm == QuantizeForm::gated_gradient ? 2 : 1;
  // CTAs on a multiprocessor, with few register spills.
  static constexpr int kMinBlocks = kParts == 2 && sizeof(T) == 4 ? 1 : kForm == QuantizeForm::plain && sizeof(T) == 2 ? 3 : 2;
  using Elements = QuantizeElements<T>;

  __device__ static void read(const QuantizeParameters& p, const QuantizePlace& at, const QuantizeRows& rows, Elements (&x)[kParts]) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int of_block = at.down * kThreadRows + i, source = rows.source[of_block];
      const bool exists = source >= 0 && at.col < p.part_cols;
      const int64_t from = int64_t{at.matrix} * p.source_rows + source;
      if constexpr (kForm == QuantizeForm::plain) {
        read_row<T>(p.x, exists, from, p.cols, at.col, x[0].words[i]);
      } else {
        uint32_t gate[Elements::kWords], up[Elements::kWords];
        read_row<T>(p.sums, exists, from, 2 * int64_t{p.part_cols}, at.col, gate);
        read_row<T>(p.sums, exists, from, 2 * int64_t{p.part_cols}, int64_t{p.part_cols} + at.col, up);
        const float scale = exists && p.row_scale ? p.row_scale[source] : 1;
        if constexpr (kForm == QuantizeForm::gated) {
          multiply(p, i, gate, up, scale, x[0]);
        } else {
          uint32_t gradient[Elements::kWords];
          read_row<T>(p.x, exists, from, p.part_cols, at.col, gradient);
          const float product = differentiate(p, i, gate, up, gradient, scale, x);
          if (p.partials) store_partial(p, at, rows.place[of_block], product);
        }
      }
    }
  }

 private:
  using Words = uint32_t[Elements::kWords];

  __device__ static void multiply(const QuantizeParameters& p, int i, const Words& gate, const Words& up, float scale, Elements& x) {
#pragma unroll
    for (int j = 0; j < kThreadCols; j += 2) {
      float value[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        value[k] = scale * (fast_gate(p.activation, Elements::element(gate, j + k)).value * Elements::element(up, j + k));
      }
      x.set_two(i, j, value[0], value[1]);
    }
  }

  // Sets the gradients of both halves of the sums. Returns the sum of the products of the gradient and the results before their row's
  // scale.
  __device__ static float differentiate(const QuantizeParameters& p, int i, const Words& gate, const Words& up, const Words& gradient,
                                        float scale, Elements (&x)[kParts]) {
    float product = 0;
#pragma unroll
    for (int j = 0; j < kThreadCols; j += 2) {
      float of_gate[2], of_up[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const FastGate at = fast_gate(p.activation, Elements::element(gate, j + k));
        const float given = Elements::element(gradient, j + k), other = Elements::element(up, j + k), scaled = scale * given;
        of_gate[k] = scaled * other * at.slope, of_up[k] = scaled * at.value;
        product = multiply_add(given, at.value * other, product);
      }
      x[0].set_two(i, j, of_gate[0], of_gate[1]), x[kParts - 1].set_two(i, j, of_up[0], of_up[1]);
    }
    return product;
  }

  // The sum over a row of the block.
  __device__ static void store_partial(const QuantizeParameters& p, const QuantizePlace& at, int place, float product) {
    add<1>(product), add<2>(product), add<4>(product), add<8>(product);
    const int blocks = blocks_over(p.part_cols);
    if (at.across == 0 && place >= 0) p.partials[int64_t{place} * blocks + at.col_block] = product;
  }
  template <int kDistance>
  __device__ static void add(float& x) {
    float theirs = x;
    shfl_xor<kDistance>(theirs);
    x += theirs;
  }
};

}  // namespace vbgemm
