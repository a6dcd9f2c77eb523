// One tile of C on tensor cores: a pipeline of asynchronous copies along K, products from shared memory, and sums that go through shared
// memory to C.
#pragma once
#include "gpu/tensor/tensor_copy.h"
#include "gpu/tensor/tensor_dot_tile.h"
#include "gpu/tensor/tensor_product.h"
#include "gpu/tensor/tensor_row_tile.h"
#include "gpu/tensor/tensor_store.h"
#include "gpu/tensor/warpgroup_product.h"
#include "gpu/tile/tile_kernel.h"

namespace vbgemm {

// sums += A B over one K step in shared memory, by warp-level MMAs (mma.sync).
template <class Traits, class LinesA, class LinesB>
class WarpMma {
 public:
  using T = typename Traits::T;

  __device__ explicit WarpMma(const T*) : WarpMma(WarpPosition<Traits>(thread_index() / kLanes)) {}

  // Nothing to do: warp-level MMAs only need the thread block's barrier.
  template <class CopyA>
  __device__ static void prepare(const CopyA&, const T*) {}

  // Multiplies this warp's rectangle and K slice of a step; Each slice walks K upwards. `start_copies` is called before
  // the first MMAs.
  template <class StartCopies>
  __device__ void multiply(const T* stage, Sums<Traits>& sums, const StartCopies& start_copies) const {
    if (!Traits::kLoadsFirst) start_copies();
    const auto multiply_next = [&](int i) __attribute__((always_inline)) {
      const int chunk = i * Traits::kSplit;
      Register<T> a[Traits::kBlocksM][4], b[Traits::kBlocksN][2];
      load_halves<LinesA, 2 * Traits::kBlocksM, false>(stage + first_a_, chunk,
                                                       [&](int half, int deep, auto x) { a[half / 2][2 * deep + half % 2] = x; });
      load_halves<LinesB, Traits::kBlocksN, true>(stage + first_b_, chunk, [&](int half, int deep, auto x) { b[half][deep] = x; });
      if (Traits::kLoadsFirst && i == 0) start_copies();
      multiply_chunk<Traits>(a, b, sums);
    };
    constexpr int kWarpChunks = Traits::kChunks / Traits::kSplit;
    if constexpr (Traits::kIsFloat8) {
#pragma unroll 2  // an 8-bit float chunk takes the code of two chunks
      for (int i = 0; i < kWarpChunks; ++i) multiply_next(i);
    } else {
#pragma unroll
      for (int i = 0; i < kWarpChunks; ++i) multiply_next(i);
    }
  }

 private:
  __device__ explicit WarpMma(const WarpPosition<Traits>& wave)
      : first_a_(first_fragment<T, LinesA, false>(wave.row, wave.slice)),
        first_b_(Traits::kElementsA + first_fragment<T, LinesB, true>(wave.col, wave.slice)) {}

  int first_a_, first_b_;
};

// The main loop. The copies of kStages - 1 steps are in flight before the first step is waited for. From then on, each step starts the
// copies of the step that will use the stage just freed. With a K range of length 0 the sums remain zero.
template <class Traits, template <class, class, class> class Products, class LinesA, class LinesB, class T, class ModeA, class ModeB>
__device__ inline void accumulate(const ResolvedTile<T>& place, T* shared, ModeA mode_a, ModeB mode_b, Sums<Traits>& sums) {
  const MatrixView &a = place.matrix[kA], &b = place.matrix[kB];
  constexpr bool kAlongA = LinesA::kKMajor, kAlongB = LinesB::kKMajor;
  LineCopy<T, LinesA, kAlongA, Traits::kThreads, Traits::kKeepsAddresses, ModeA> copy_a(a, mode_a);
  LineCopy<T, LinesB, !kAlongB, Traits::kThreads, Traits::kKeepsAddresses, ModeB> copy_b(b, mode_b);
  const int rows = place.rows, cols = place.cols;
  int uncopied = place.depth;  // negative once the copies have run past the end of K
  const auto start_step = [&](T* stage) {
    if (uncopied > 0) {
      copy_a.start(stage, kAlongA ? rows : uncopied, kAlongA ? uncopied : rows);
      copy_b.start(stage + Traits::kElementsA, kAlongB ? cols : uncopied, kAlongB ? uncopied : cols);
      copy_a.advance(Traits::kDepth * a.col_stride);
      copy_b.advance(Traits::kDepth * b.row_stride);
    }
    uncopied -= Traits::kDepth;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Traits::kStages - 1; ++slot) start_step(shared + slot * Traits::kStageElements);

  Products<Traits, LinesA, LinesB> products(shared + Traits::kStages * Traits::kStageElements);
  T* const last_stage = shared + (Traits::kStages - 1) * Traits::kStageElements;
  constexpr int kPrefetchDepth = (Traits::kStages - 1) * Traits::kDepth;  // K elements by which copies lead the MMAs
  T* stage = shared;
#pragma unroll 1
  while (uncopied + kPrefetchDepth > 0) {
    cp_async_wait_group<Traits::kStages - 2>();
    // Along M and N, the stage may hold arbitrary values outside of the tile.
    copy_a.finish(stage, kAlongA ? uncopied + kPrefetchDepth : LinesA::kItems);
    copy_b.finish(stage + Traits::kElementsA, kAlongB ? uncopied + kPrefetchDepth : LinesB::kItems);
    products.prepare(copy_a, stage);
    block_barrier();  // this step's data are visible, and no thread reads the previous stage any more
    products.multiply(stage, sums, [&] { start_step(stage == shared ? last_stage : stage - Traits::kStageElements); });
    stage = stage == last_stage ? shared : stage + Traits::kStageElements;
  }
}

// How NVIDIA's tensor cores compute tiles of an arithmetic.
template <Kind kKind_>
struct TensorPolicy {
  static constexpr Kind kKind = kKind_;
  static constexpr bool kMirrors = true;
  using Element = LeftOf<kKind>;
  // The tile traits for a tile's thread partition. Called for its return type only.
  template <int kRow>
  static constexpr auto traits_of() {
    if constexpr (kTiles[kRow].partition == ThreadPartition::rows) {
      return TensorRowTraits<kKind, kRow>();
    } else if constexpr (kTiles[kRow].partition == ThreadPartition::warp_sliced_k) {
      return TensorDotTraits<kKind, kRow>();
    } else {
      return TensorTraits<kKind, kRow>();
    }
  }
  // Alignment in bytes of the operands in shared memory.
  static constexpr int kAlignment = sizeof(Element) < 8 ? kSwizzleBytes : kBankLineBytes;
  template <int kRow>
  using Traits = decltype(traits_of<kRow>());

  template <class Traits>
  __device__ __forceinline__ static void multiply(const ResolvedTile<Element>& place, Element* shared) {
    if constexpr (Traits::kShape.partition == ThreadPartition::rows) {
      multiply_rows<Traits, TensorRowProducts<Traits, Element>>(place, shared);
    } else if constexpr (Traits::kShape.partition == ThreadPartition::warp_sliced_k) {
      multiply_tensor_dots<Traits>(place, shared);
    } else {
      multiply_tile<Traits>(place, shared);
    }
  }

 private:
  struct Modes {
    CopyMode a, b;
    __device__ bool both(CopyMode mode) const { return a == mode && b == mode; }
  };

  template <class Traits>
  __device__ __forceinline__ static void multiply_tile(const ResolvedTile<Element>& place, Element* shared) {
    const MatrixView &a = place.matrix[kA], &b = place.matrix[kB];
    Modes modes{copy_mode<Element>(a, place.rows, place.depth), copy_mode<Element>(b, place.depth, place.cols)};
    if constexpr (kHasWgmma && Traits::kSuitsWgmma) {
      using WgmmaTraits = TensorTraits<kKind, Traits::kIndex, true>;
      if constexpr (WgmmaTraits::kTransposed) {
        if (a.access == Access::columns) modes.a = CopyMode::across;
        multiply_by<WgmmaTraits, TransposedWarpgroupMma>(place, shared, modes);
      } else if (modes.both(CopyMode::vectors)) {
        // wgmma only pays off if threads need not process the operands that they copied: the proxy fence for such writes costs more than
        // wgmma saves.
        multiply_by<WgmmaTraits, WarpgroupMma>(place, shared, modes);
      } else {
        multiply_by<Traits, WarpMma>(place, shared, modes);
      }
    } else {
      multiply_by<Traits, WarpMma>(place, shared, modes);
    }
  }

  template <class Traits, template <class, class, class> class Products>
  __device__ __forceinline__ static void multiply_by(const ResolvedTile<Element>& place, Element* shared, const Modes& modes) {
    Sums<Traits> sums = {};
    // The MMA code is instantiated for each layout of the operands: it is short, and a branch inside would keep the loads from being
    // hoisted. It is also instantiated for each copy mode if both operands use that mode, or if A is transposed and B copied in vectors:
    // code that a loop does not need would cost it instruction fetches (docs/design/latency.md, L12).
    const bool mn_major_a = place.matrix[kA].access == Access::columns, k_major_b = place.matrix[kB].access == Access::columns;
    const auto with_both = [&](auto lines_a, auto lines_b) __attribute__((always_inline)) {
      const auto copied = [&](auto mode_a, auto mode_b) __attribute__((always_inline)) {
        accumulate<Traits, Products, typename decltype(lines_a)::type, typename decltype(lines_b)::type>(place, shared, mode_a, mode_b,
                                                                                                         sums);
      };
      constexpr bool kVectorsOnly = decltype(lines_a)::type::kVectorsOnly;
      if constexpr (decltype(lines_a)::type::kMayTranspose) {
        if (modes.a == CopyMode::across && modes.b == CopyMode::vectors) {
          return copied(StaticMode<CopyMode::across>(), StaticMode<CopyMode::vectors>());
        }
      }
      if (kVectorsOnly || modes.both(CopyMode::vectors)) return copied(StaticMode<CopyMode::vectors>(), StaticMode<CopyMode::vectors>());
      if constexpr (!kVectorsOnly && sizeof(Element) == 2) {
        if (modes.both(CopyMode::shifted)) return copied(StaticMode<CopyMode::shifted>(), StaticMode<CopyMode::shifted>());
      }
      if constexpr (!kVectorsOnly) copied(RuntimeMode{modes.a}, RuntimeMode{modes.b});
    };
    const auto with_b = [&](auto lines_a) __attribute__((always_inline)) {
      if (k_major_b) {
        with_both(lines_a, Chosen<typename Traits::template B<true>>());
      } else {
        with_both(lines_a, Chosen<typename Traits::template B<false>>());
      }
    };
    if constexpr (Traits::kTransposed) {
      with_b(Chosen<typename Traits::template A<true>>());
    } else if (mn_major_a) {
      with_b(Chosen<typename Traits::template A<false>>());
    } else {
      with_b(Chosen<typename Traits::template A<true>>());
    }
    store_sums<Traits>(place, sums, shared);
  }
};

}  // namespace vbgemm
