// Computes a product of any size from micro-kernels. The loops, from the outermost on:
//
//   for each block of C whose sums fit scratch memory
//     for each part of K                          all but the last leave their sums in scratch memory
//       (copy A's block)                          it stays in the level-2 cache
//       for each panel of B, a few vectors wide   (packed) it stays in the level-1 cache
//         for each group of rows: micro-kernel
#pragma once
#include "cpu/dot.h"
#include "cpu/epilogue.h"
#include "cpu/factors.h"
#include "cpu/few_columns.h"
#include "cpu/kernels.h"
#include "cpu/micro_kernel.h"
#include "cpu/pack.h"
#include "cpu/short_rows.h"
#include "cpu/small.h"
#include "cpu/streaming_stores.h"

namespace vbgemm::VBGEMM_ISA {

// One product of elements Lhs and Rhs, each of kParts reals, computed in type T.
template <class Lhs, class Rhs>
class Multiplier {
  using A = NumberOf<Lhs>;
  using B = NumberOf<Rhs>;
  using T = SumNumberOf<Lhs>;

 public:
  // first, last: the position among the products of a sum, which are computed one after another and keep their sums in scratch memory.
  Multiplier(const Product& p, Scratch& scratch, bool first = true, bool last = true)
      : p_(p),
        first_(first),
        last_(last),
        a_(static_cast<const A*>(p.a.data)),
        b_(static_cast<const B*>(p.b.data)),
        copy_of_a_(reinterpret_cast<T*>(scratch.a)),
        packed_b_(reinterpret_cast<T*>(scratch.b)),
        sums_(reinterpret_cast<T*>(scratch.sums)),
        in_place_(!kConverts && p.c.col_stride == 1 && (!p.finish || only_scales(*p.finish))) {}

  void run() {
    // Shortcut: a product of this size has one block with one part of K, so the loops below would run once.
    if (p_.m <= kMaxRowsA && p_.n * kParts < kWide && p_.k <= kMaxK) return multiply_part({0, 0, p_.m, p_.n}, {0, p_.k, first_, last_});
    for_each_block(p_, [this](const Block& c_block) { block(c_block); });
  }

  // The parts of K are as long as the scratch memory for a block of A permits, since hardware prefetchers lose track at the end of a row's
  // part. One vector of padding between B's columns keeps them in different cache sets if K is a power of two.
  void run_dots() {
    const int64_t part = (Scratch::kBytesA / kSize / p_.n - kWidth) / kWidth * kWidth, most = Scratch::kBytesSums / kVectorBytes / p_.n;
    auto* sums = reinterpret_cast<Vec<T>*>(sums_);
    for (int64_t i = 0; i < p_.m; i += most) {
      const int64_t rows = smaller(most, p_.m - i);
      for (int64_t at = 0; at < rows * p_.n; ++at) sums[at] = Vec<T>{};
      for (int64_t k = 0; k < p_.k; k += part) {
        const int64_t count = smaller(part, p_.k - k), column = ceil_div(count, kWidth) * kWidth + kWidth;
        copy_columns_b(k, count, column);
        dot_part(p_.n, a_ + i * p_.a.row_stride + k, p_.a.row_stride, rows, columns_b(), column, count, sums);
      }
      const int64_t width = ceil_div(p_.n, kWidth) * kWidth, group = kMaxSums * kWidth / width;
      alignas(64) T result[kMaxSums * kWidth];
      for (int64_t row = 0; row < rows; row += group) {
        const int64_t count = smaller(group, rows - row);
        for (int64_t at = 0; at < count * p_.n; ++at) result[at / p_.n * width + at % p_.n] = sum_of_lanes<T>(sums[row * p_.n + at]);
        write_block<Lhs>(p_, result, width, count, p_.n, i + row, 0);
      }
    }
  }

  // Computes the sum of p's product and the products of `more`, all transposed to c' = b' a' if `is_transposed`. All products are added to
  // the sums of one block before the next block begins.
  static void run_sum(const Product& p, const Factors* more, int64_t count, bool is_transposed, Scratch& scratch) {
    const bool interleaved = are_interleaved(p, more, count, is_transposed);
    const int64_t step = interleaved ? kPartOfInterleaved : p.k;
    for_each_block(p, [&](const Block& c_block) {
      int64_t k = 0;
      do {
        for (int64_t i = -1; i < count; ++i) {
          Product piece = p;
          if (i >= 0) {
            with_factors(piece, more[i], is_transposed);
            strides_along_one(piece);
          }
          if (interleaved) piece = part_along_k(piece, k, smaller(step, p.k - k));
          const bool first = k == 0 && i < 0, last = k + step >= p.k && i + 1 == count;
          Multiplier(piece, scratch, first, last).block(c_block);
        }
        k += step;
      } while (k < p.k);
    });
  }

  // Whether every row of C consists of whole aligned vectors.
  bool writes_vectors() const {
    return in_place_ && p_.n * kParts % kWidth == 0 && p_.c.row_stride * kParts % kWidth == 0 && is_vector_aligned(p_.c.data);
  }

  // Whether dot products are faster. The answer is the same for all parts of a problem, so that its bits do not depend on the tiling.
  static bool is_dot(const Product& p) {
    return kParts == 1 && p.a.col_stride == 1 && p.k >= 32 * kWidth && p.whole_n <= kMaxDotColumns<T>;
  }

 private:
  static constexpr bool kComplex = kIsComplex<Lhs>;
  static constexpr int kParts = kComplex ? 2 : 1, kSize = sizeof(T), kWidth = kLanes<T>, kMaxWidth = kMaxVectors * kWidth;
  static constexpr bool kConverts = sizeof(A) != sizeof(T);
  static constexpr int64_t kMaxK = 384, kMaxRowsA = Scratch::kBytesA / (kMaxK * kParts * kSize);
  // Bytes. Rows of B that span as much are packed; from 4 times as much on, A is read 16 rows at a time (docs/design/cpu.md, P9), and from
  // 8 times on, B is streamed (P3).
  static constexpr int64_t kLargeExtent = 256 << 10;
  static_assert(kMaxRowsA <= RowGroups::kMaxGroupRows);
  static constexpr int64_t kWide = 8 * kWidth;  // from this many values on, other orders of reading B and writing C may be faster
  // kNarrow: the maximum number of columns of a narrow block, in vectors. kNarrowRows: rows of a narrow block at a time. kNarrowBytesB: the
  // bytes of B that a level-2 cache holds next to them. Measured on two Xeon cores with AVX-512 and 2 MB of level 2 each (2026-11-24,
  // docs/design/cpu.md, P9); not measured elsewhere.
  static constexpr int64_t kNarrow = 6, kNarrowRows = 16, kNarrowBytesB = 512 << 10;
  // Up to K = kShortK, stores to C dominate: rows of C that are a multiple of 4 KB apart fall into one cache set, so only kFewRows rows are
  // written at a time, in longer pieces. Measured on two EPYC cores with AVX-512 (docs/design/cpu.md, P11).
  static constexpr int kShortK = 16, kFewRows = 4;
  static_assert(kMaxK * kMaxVectors * kVectorBytes <= Scratch::kBytesB);
  static_assert(kMaxRowsA * kParts * kMaxWidth * kSize <= Scratch::kBytesSums);
  using Micros = MicroKernels<T, kComplex>;

  struct Block {
    int64_t i, j, m, n;
    int64_t first_sums = 0;  // the first row's row in scratch memory
  };
  struct PartOfK {
    int64_t begin, count;
    bool first, last;
  };

  // Calls run(block) for each block of C whose sums fit scratch memory.
  template <class Run>
  static void for_each_block(const Product& p, const Run& run) {
    const int64_t rows = smaller(p.m, kMaxRowsA);
    const int64_t columns = Scratch::kBytesSums / (rows * kParts * kSize) / kMaxWidth * kMaxWidth / kParts;
    for (int64_t i = 0; i < p.m; i += rows) {
      for (int64_t j = 0; j < p.n; j += columns) run(Block{i, j, smaller(rows, p.m - i), smaller(columns, p.n - j)});
    }
  }

  // A panel of B, a few vectors wide, read in place or packed.
  struct Panel {
    int64_t j, columns;
    int vectors;
    const T* b;
    int64_t b_k;
  };

  T* columns_b() const { return copy_of_a_; }
  void copy_columns_b(int64_t k, int64_t count, int64_t column) {
    const B* from = b_ + k * p_.b.row_stride;
    T* const to = columns_b();
    if (p_.b.col_stride == 1) {
      transpose_panel(from, p_.b.row_stride, p_.n, count, to, column);
    } else {
      for (int64_t j = 0; j < p_.n; ++j) copy_run<1>(from + j * p_.b.col_stride, p_.b.row_stride, count, to + j * column);
    }
    for (int64_t j = 0; j < p_.n; ++j) {
      for (int64_t at = count; at < column; ++at) to[j * column + at] = T{};
    }
  }

  // Returns the length of the equal parts of `length`, at most `most`.
  static int64_t equal_part_length(int64_t length, int64_t most) {
    return length > most ? ceil_div(length, ceil_div(length, most)) : length;
  }

  // In a narrow block, a few rows at a time pass through all parts of K, or through as many as keep B's rows in the level-2 cache. (K = 0
  // has one part.)
  void block(const Block& block) {
    const bool narrow = is_narrow(block);
    const int64_t rows = narrow ? kNarrowRows : block.m;
    const int64_t stretch = narrow ? equal_part_length(p_.k, kNarrowBytesB / (p_.n * kParts * kSize)) : p_.k;
    int64_t k = 0;
    do {
      for (int64_t i = 0; i < block.m; i += rows) {
        multiply_k_range({block.i + i, block.j, smaller(rows, block.m - i), block.n, i}, k, smaller(p_.k, k + stretch));
      }
    } while ((k += stretch) < p_.k);
  }

  void multiply_k_range(const Block& block, int64_t begin, int64_t end) {
    const int64_t step = equal_part_length(end - begin, part_of_k(block));
    int64_t k = begin;
    do {
      const int64_t count = smaller(step, end - k);
      multiply_part(block, {k, count, first_ && k == 0, last_ && k + count == p_.k});
    } while ((k += step) < end);
  }

  // Whether a block is narrow. Hardware prefetchers follow few rows at a time, and they drop a row if too many other rows are read before
  // its next part. Reading one part of K of all rows of a block in turn reached three quarters of the memory speed.
  bool is_narrow(const Block& block) const {
    const bool has_long_rows = p_.k > kMaxK && p_.a.col_stride == 1 && block.m * p_.k * kParts * kSize >= 4 * kLargeExtent;
    const bool b_in_place = !kConverts && p_.b.row_stride == p_.n && p_.b.col_stride == 1 && (kMaskedLoads || p_.n * kParts % kWidth == 0);
    return has_long_rows && b_in_place && block.n * kParts <= kNarrow * kWidth;
  }

  // Whether to read B almost in memory order: a wide B from memory, used by few rows of A.
  bool streams(const Block& block) const {
    if (block.n < kWide || p_.b.col_stride != 1) return false;
    const bool streams_b = p_.k * magnitude(p_.b.row_stride) * kParts * kSize >= 8 * kLargeExtent;
    return block.m <= (streams_b ? 32 : Micros::max_rows(4));
  }
  // Memory is faster for longer pieces of A's rows; if B is one vector wide, a longer part of K fits the cache.
  int64_t part_of_k(const Block& block) const {
    if (streams(block)) return 16;
    return block.n * kParts <= kWidth && !should_copy_a(block) ? kMaxVectors * kMaxK : kMaxK;
  }

  // Prefetches the next part of K of these columns: hardware prefetchers follow rows, but not across pages.
  void prefetch_next_part(const Block& block, const PartOfK& k, const Panel& panel) const {
    const auto* b = reinterpret_cast<const char*>(b_ + ((k.begin + k.count) * p_.b.row_stride + block.j + panel.j) * kParts);
    const int64_t row = p_.b.row_stride * kParts * static_cast<int64_t>(sizeof(B));
    const int64_t bytes = panel.vectors * kWidth * static_cast<int64_t>(sizeof(B)), rows = smaller(k.count, p_.k - k.begin - k.count);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(b + r * row + at, 0, 2);
    }
  }

  void multiply_part(const Block& block, const PartOfK& k) {
    const A* a = a_ + (block.i * p_.a.row_stride + k.begin * p_.a.col_stride) * kParts;
    const bool copies = should_copy_a(block);
    Micro<T> micro;
    micro.k = k.count;
    micro.streams = should_stream(p_) && writes_vectors();
    micro.prefetch_bytes = micro.streams && !copies ? prefetch_distance(p_, Micros::max_rows(1)) : 0;
    micro.scales = in_place_ && p_.finish;
    micro.alpha = micro.scales ? static_cast<T>(p_.finish->alpha[0]) : T(1);
    if (copies) {
      const Strides strides = copy_block<kParts>(a, p_.a.row_stride, p_.a.col_stride, block.m, k.count, copy_of_a_);
      micro.a = copy_of_a_, micro.a_row = strides.row, micro.a_k = strides.k;
    } else {
      micro.a = reinterpret_cast<const T*>(a), micro.a_row = p_.a.row_stride * kParts, micro.a_k = p_.a.col_stride * kParts;
    }
    micro.sums_row = ceil_div(block.n * kParts, kWidth) * kWidth;
    if (prefers_row_order(block, k, micro.sums_row)) return multiply_by_rows(block, k, micro);
    const bool prefetches = !k.last && streams(block);
    for (int64_t j = 0, left = micro.sums_row / kWidth; left > 0;) {
      const Panel panel = make_panel(block, k, j, Micros::panel_vectors(left, block.m), packed_b_);
      if (prefetches) prefetch_next_part(block, k, panel);
      const RowGroups groups(static_cast<int>(block.m), Micros::max_rows(panel.vectors));
      const T* const a_rows = micro.a;
      for (int group = 0, i = 0; group < groups.count;) {
        const int rows = groups.rows(group), same_size_groups = in_place_ ? groups.same_size_groups(group) : 1;
        multiply_groups(block, k, panel, i, rows, same_size_groups, micro);
        micro.a += same_size_groups * rows * micro.a_row, i += same_size_groups * rows, group += same_size_groups;
      }
      micro.a = a_rows;
      j += panel.columns, left -= panel.vectors;
    }
  }

  static constexpr int kMaxPanels = 64;

  Panel make_panel(const Block& block, const PartOfK& k, int64_t j, int vectors, T* packed) {
    const B* b = b_ + (k.begin * p_.b.row_stride + (block.j + j) * p_.b.col_stride) * kParts;
    const int64_t width = vectors * kWidth, columns = smaller(width / kParts, block.n - j);
    if (packs_b(block, k, columns * kParts < kWidth)) {
      pack_panel<kParts>(b, p_.b.row_stride, p_.b.col_stride, k.count, columns, packed, width);
      return {j, columns, vectors, packed, width};
    }
    return {j, columns, vectors, reinterpret_cast<const T*>(b), p_.b.row_stride * kParts};
  }

  static bool only_scales(const Finish& finish) {
    const bool adds = finish.source.data || finish.bias.data;
    return std::is_floating_point_v<T> && kParts == 1 && !adds && !finish.scale.data && finish.activation == Activation::none &&
           static_cast<T>(finish.alpha[0]) != 0;
  }

  // Multiplies `groups` groups of `rows` rows; one group if its sums go through an epilogue.
  void multiply_groups(const Block& block, const PartOfK& k, const Panel& panel, int64_t i, int rows, int groups, Micro<T>& micro) {
    const bool half = Micros::set_columns(micro, panel.vectors, panel.columns * kParts);
    micro.groups = groups;
    micro.b = panel.b, micro.b_k = panel.b_k;
    micro.sums_in = micro.sums_out = nullptr;
    if (!(k.first && k.last)) {
      T* const sums = sums_ + (block.first_sums + i) * kParts * micro.sums_row + panel.j * kParts;
      micro.sums_in = k.first ? nullptr : sums, micro.sums_out = k.last ? nullptr : sums;
    }
    const auto kernel = Micros::kernel(half, panel.vectors, rows);
    if (in_place_) {
      micro.c = static_cast<T*>(p_.c.data) + ((block.i + i) * p_.c.row_stride + block.j + panel.j) * kParts;
      micro.c_row = p_.c.row_stride * kParts;
      return kernel(micro);
    }
    alignas(64) T result[kMaxSums * kWidth];
    micro.c = result, micro.c_row = panel.vectors * kWidth;
    kernel(micro);
    if (k.last) write_block<Lhs>(p_, result, micro.c_row, rows, panel.columns, block.i + i, block.j + panel.j);
  }

  // Whether C is computed row by row. A product with a small K mostly writes C, which is faster along rows, with B in the level-2 cache.
  static bool prefers_row_order(const Block& block, const PartOfK& k, int64_t width) {
    return width >= kWide && k.count <= 64 && block.m > Micros::max_rows(4) && width <= 2 * kMaxPanels * kWidth &&
           k.count * width * kSize <= Scratch::kBytesB;
  }
  void multiply_by_rows(const Block& block, const PartOfK& k, Micro<T>& micro) {
    Panel panels[kMaxPanels];
    int count = 0;
    const bool mostly_writes = k.count <= kShortK && Micros::max_rows(4) >= kFewRows;
    const int64_t across = mostly_writes ? 4 : 2;
    for (int64_t j = 0; j < block.n; j += panels[count - 1].columns) {
      const int vectors = static_cast<int>(smaller(across, ceil_div((block.n - j) * kParts, kWidth)));
      panels[count++] = make_panel(block, k, j, vectors, packed_b_ + j * kParts * k.count);
    }
    const RowGroups groups(static_cast<int>(block.m), mostly_writes ? kFewRows : Micros::max_rows(2));
    for (int group = 0, i = 0; group < groups.count; ++group) {
      const int rows = groups.rows(group);
      for (int panel = 0; panel < count; ++panel) multiply_groups(block, k, panels[panel], i, rows, 1, micro);
      micro.a += rows * micro.a_row, i += rows;
    }
  }

  // Whether rows at this stride have cache set conflicts: at a multiple of 1 KB they fall into few cache sets and evict each other.
  static bool collides(int64_t stride) { return magnitude(stride * kParts * kSize) % 1024 == 0; }

  // Whether a block of A is copied. A is read row by row in small pieces, which is fast in place unless its columns conflict in the cache,
  // or its rows are parts of longer rows that are whole pages apart.
  bool should_copy_a(const Block& block) const {
    if (kConverts) return true;
    if (block.n < 4 * kWidth) return false;
    if (p_.a.col_stride != 1) return collides(p_.a.col_stride);
    return block.m > Micros::max_rows(2) && magnitude(p_.a.row_stride) >= 2 * p_.k && p_.a.row_stride * kParts * kSize % 4096 == 0;
  }
  // Whether B is packed. That pays off if enough rows use it and its rows either conflict in the cache or are spread over more than a part
  // of the level-2 cache.
  bool packs_b(const Block& block, const PartOfK& k, bool needs_mask) const {
    if (kConverts || p_.b.col_stride != 1 || (!kMaskedLoads && needs_mask)) return true;
    return block.m > 32 && (k.count * magnitude(p_.b.row_stride) * kParts * kSize >= kLargeExtent || collides(p_.b.row_stride));
  }

  const Product& p_;
  const bool first_, last_;
  const A* a_;
  const B* b_;
  T* copy_of_a_;
  T* packed_b_;
  T* sums_;
  const bool in_place_;  // C can receive the sums directly: no conversion, and no epilogue except scaling
};

// The cost of a product in vector multiply-adds, if vectors run along the columns of B and C.
__attribute__((always_inline)) inline int64_t cost(const Product& p, int lanes) {
  const int64_t sums = p.m * ceil_div(p.n, lanes) * p.k;
  const int64_t packing = p.b.col_stride == 1 ? 0 : p.n * p.k * (p.b.row_stride == 1 ? 1 : 4);
  const int64_t storing = p.c.col_stride == 1 ? 0 : p.m * p.n * 4;
  return sums + packing + storing;
}

// The algorithms: blocks of micro-kernels, rows with a short K, dot products, and products with few columns.
enum class Algorithm { blocks, short_rows, dots, few_columns };

template <class Lhs, class Rhs>
inline Algorithm algorithm_of(const Product& p) {
  if (ShortRows<Lhs, Rhs>::supports(p)) return Algorithm::short_rows;
  if constexpr (!kIsComplex<Lhs>) {
    if (Multiplier<Lhs, Rhs>::is_dot(p)) return Algorithm::dots;
    if (FewColumns<Lhs, Rhs>::supports(p)) return Algorithm::few_columns;
  }
  return Algorithm::blocks;
}

template <class Lhs, class Rhs>
inline void multiply_by(Algorithm algorithm, const Product& product, Scratch& scratch) {
  using Mine = Multiplier<Lhs, Rhs>;
  const auto run_by = [&](bool writes_vectors, auto run_piece) {
    if (should_stream(product) && !writes_vectors) return run_streaming(product, scratch, run_piece);
    run_piece(product);
  };
  if (algorithm == Algorithm::short_rows) {
    const ShortRows<Lhs, Rhs> rows(product, scratch);
    return run_by(rows.writes_lines(product), [&](const Product& piece) { rows.run(piece); });
  }
  if constexpr (!kIsComplex<Lhs>) {
    if (algorithm == Algorithm::dots) return Mine(product, scratch).run_dots();
    if (algorithm == Algorithm::few_columns) {
      const FewColumns<Lhs, Rhs> few(product, scratch);
      return run_by(few.writes_vectors(product), [&](const Product& piece) { few.run(piece); });
    }
  }
  Mine multiplier(product, scratch);
  run_by(multiplier.writes_vectors(), [&](const Product& piece) { Mine(piece, scratch).run(); });
}

// Chooses between the product and its transpose.
template <class Lhs, class Rhs>
inline void multiply_either_way(const Product& p, Scratch& scratch) {
  constexpr int kOneVector = kLanes<SumNumberOf<Lhs>> / (1 + kIsComplex<Lhs>);
  const Algorithm untransposed = algorithm_of<Lhs, Rhs>(p);
  if (untransposed != Algorithm::blocks) return multiply_by<Lhs, Rhs>(untransposed, p, scratch);
  const Product other = transposed(p);
  const Algorithm across = algorithm_of<Rhs, Lhs>(other);
  if (across == Algorithm::blocks) {
    if (Small<Lhs, Rhs>::supports(p)) return Small<Lhs, Rhs>::run(p);
    if (cost(other, kOneVector) >= cost(p, kOneVector)) return multiply_by<Lhs, Rhs>(untransposed, p, scratch);
  }
  Finish finish;
  multiply_by<Rhs, Lhs>(across, transposed(p, finish), scratch);
}

template <class Lhs, class Rhs>
inline void multiply(const Product& p, Scratch& scratch) {
  if (p.k != 1 && p.whole_m != 1 && p.whole_n != 1) return multiply_either_way<Lhs, Rhs>(p, scratch);
  Product copy = p;
  strides_along_one(copy);
  multiply_either_way<Lhs, Rhs>(copy, scratch);
}

inline void multiply(const Product& p, Scratch& scratch) {
  for_kind(p.kind, [&](auto lhs, auto rhs) { multiply<decltype(lhs), decltype(rhs)>(p, scratch); });
}

}  // namespace vbgemm::VBGEMM_ISA
