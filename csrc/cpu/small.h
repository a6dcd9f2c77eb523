// Small row-major products, for which choosing an algorithm would take as long as the product: micro-kernels on the operands in place. The
// sums, and therefore the bits, are the same as Multiplier's.
#pragma once
#include "cpu/convert.h"
#include "cpu/kernels.h"
#include "cpu/micro_kernel.h"
#include "cpu/streaming_stores.h"

namespace vbgemm::VBGEMM_ISA {

template <class Lhs, class Rhs>
class Small {
  using T = SumNumberOf<Lhs>;
  using Micros = MicroKernels<T, kIsComplex<Lhs>>;
  static constexpr int kParts = 1 + kIsComplex<Lhs>, kWidth = kLanes<T>;
  static constexpr bool kConverts = sizeof(NumberOf<Lhs>) != sizeof(T);
  // Up to these sizes Multiplier would neither divide a product nor copy its operands, nor transpose it, which would require a copy of A.
  static constexpr int64_t kMaxRows = 64, kMaxNumbers = 4 * kWidth, kMaxK = 128;

 public:
  static bool supports(const Product& p) {
    const bool small = p.m <= kMaxRows && p.n * kParts <= kMaxNumbers && p.k <= kMaxK && (kMaskedLoads || p.n * kParts >= kWidth);
    const bool row_major = p.a.col_stride == 1 && p.b.col_stride == 1 && p.c.col_stride == 1 && p.a.row_stride != 1;
    const bool dense = p.b.row_stride == p.n;
    return !kConverts && small && row_major && dense && !p.finish && !should_stream(p);
  }

  static void run(const Product& p) {
    const int m = static_cast<int>(p.m), numbers = static_cast<int>(p.n) * kParts;
    Micro<T> micro;
    micro.k = p.k;
    micro.a_row = p.a.row_stride * kParts, micro.a_k = kParts;
    micro.b_k = p.b.row_stride * kParts, micro.c_row = p.c.row_stride * kParts;
    micro.sums_in = micro.sums_out = nullptr;
    micro.scales = micro.streams = false, micro.prefetch_bytes = 0;
    for (int at = 0; at < numbers;) {
      const int vectors = Micros::panel_vectors((numbers - at + kWidth - 1) / kWidth, m);
      const int width = static_cast<int>(smaller(vectors * kWidth, numbers - at));
      const bool half = Micros::set_columns(micro, vectors, width);
      micro.a = static_cast<const T*>(p.a.data);
      micro.b = static_cast<const T*>(p.b.data) + at;
      micro.c = static_cast<T*>(p.c.data) + at;
      const RowGroups groups(m, Micros::max_rows(vectors));
      if (groups.larger) {
        micro.groups = groups.larger;
        const int rows = groups.larger * (groups.base + 1);
        Micros::kernel(half, vectors, groups.base + 1)(micro);
        micro.a += rows * micro.a_row, micro.c += rows * micro.c_row;
      }
      micro.groups = groups.count - groups.larger;
      Micros::kernel(half, vectors, groups.base)(micro);
      at += width;
    }
  }
};

}  // namespace vbgemm::VBGEMM_ISA
