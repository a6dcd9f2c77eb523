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

// sums += A B over one K step in shared memory, by products of single warps (mma.sync).
template <class Cut, class LinesA, class LinesB>
class WaveProducts {
 public:
  using T = typename Cut::T;

  __device__ explicit WaveProducts(const T*) : WaveProducts(WavePlace<Cut>(thread_index() / kLanes)) {}

  // Nothing to do: products of single warps need no more than the thread block's barrier.
  template <class CopyA>
  __device__ static void prepare(const CopyA&, const T*) {}

  // Multiplies this warp's rectangle and K slice of a step; K is walked upwards in each slice. `meanwhile`, which starts copies, is called
  // before the first products.
  template <class Meanwhile>
  __device__ void multiply(const T* stage, Sums<Cut>& sums, const Meanwhile& meanwhile) const {
    if (!Cut::kLoadsFirst) meanwhile();
    const auto multiply_next = [&](int i) __attribute__((always_inline)) {
      const int chunk = i * Cut::kSplit;
      Register<T> a[Cut::kBlocksDown][4], b[Cut::kBlocksAcross][2];
      load_halves<LinesA, 2 * Cut::kBlocksDown, false>(stage + first_a_, chunk,
                                                       [&](int half, int deep, auto x) { a[half / 2][2 * deep + half % 2] = x; });
      load_halves<LinesB, Cut::kBlocksAcross, true>(stage + first_b_, chunk, [&](int half, int deep, auto x) { b[half][deep] = x; });
      if (Cut::kLoadsFirst && i == 0) meanwhile();
      multiply_chunk<Cut>(a, b, sums);
    };
    constexpr int kMine = Cut::kChunks / Cut::kSplit;
    if constexpr (Cut::kIsFloat8) {
#pragma unroll 2  // a chunk of 8-bit floats has the code of two
      for (int i = 0; i < kMine; ++i) multiply_next(i);
    } else {
#pragma unroll
      for (int i = 0; i < kMine; ++i) multiply_next(i);
    }
  }

 private:
  __device__ explicit WaveProducts(const WavePlace<Cut>& wave)
      : first_a_(first_fragment<T, LinesA, false>(wave.row, wave.slice)),
        first_b_(Cut::kElementsA + first_fragment<T, LinesB, true>(wave.col, wave.slice)) {}

  int first_a_, first_b_;
};

// The main loop. The copies of kStages - 1 steps are in flight before the first step is waited for. From then on, each step starts the
// copies of the step that will use the stage just freed. With a K range of length 0 the sums remain zero.
template <class Cut, template <class, class, class> class Products, class LinesA, class LinesB, class T, class ModeA, class ModeB>
__device__ inline void accumulate(const TilePlace<T>& place, T* shared, ModeA mode_a, ModeB mode_b, Sums<Cut>& sums) {
  const MatrixView &a = place.matrix[kA], &b = place.matrix[kB];
  constexpr bool kAlongA = LinesA::kDepthItems, kAlongB = LinesB::kDepthItems;
  LineCopy<T, LinesA, kAlongA, Cut::kThreads, Cut::kKeepsPlaces, ModeA> copy_a(a, mode_a);
  LineCopy<T, LinesB, !kAlongB, Cut::kThreads, Cut::kKeepsPlaces, ModeB> copy_b(b, mode_b);
  const int rows = place.rows, cols = place.cols;
  int uncopied = place.depth;  // negative once the copies have run past the end of K
  const auto start_step = [&](T* stage) {
    if (uncopied > 0) {
      copy_a.start(stage, kAlongA ? rows : uncopied, kAlongA ? uncopied : rows);
      copy_b.start(stage + Cut::kElementsA, kAlongB ? cols : uncopied, kAlongB ? uncopied : cols);
      copy_a.advance(Cut::kDepth * a.col_stride);
      copy_b.advance(Cut::kDepth * b.row_stride);
    }
    uncopied -= Cut::kDepth;
    cp_async_commit_group();
  };
  await_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < Cut::kStages - 1; ++slot) start_step(shared + slot * Cut::kStageElements);

  Products<Cut, LinesA, LinesB> products(shared + Cut::kStages * Cut::kStageElements);
  T* const last_stage = shared + (Cut::kStages - 1) * Cut::kStageElements;
  constexpr int kAhead = (Cut::kStages - 1) * Cut::kDepth;  // steps of K by which the copies lead
  T* stage = shared;
#pragma unroll 1
  while (uncopied + kAhead > 0) {
    cp_async_wait_group<Cut::kStages - 2>();
    // Along the other dimension, the stage may hold any values outside the tile.
    copy_a.finish(stage, kAlongA ? uncopied + kAhead : LinesA::kItems);
    copy_b.finish(stage + Cut::kElementsA, kAlongB ? uncopied + kAhead : LinesB::kItems);
    products.prepare(copy_a, stage);
    block_barrier();  // this step's data are visible, and no thread reads the previous stage any more
    products.multiply(stage, sums, [&] { start_step(stage == shared ? last_stage : stage - Cut::kStageElements); });
    stage = stage == last_stage ? shared : stage + Cut::kStageElements;
  }
}

template <Kind kKind_>
struct TensorFamily {
  static constexpr Kind kKind = kKind_;
  static constexpr bool kMirrors = true;
  using Element = LeftOf<kKind>;
  // The division of a tile, chosen by what its warps own. Called for its return type only.
  template <int kRow>
  static constexpr auto cut_of() {
    if constexpr (kTiles[kRow].partition == ThreadPartition::rows) {
      return TensorRowCut<kKind, kRow>();
    } else if constexpr (kTiles[kRow].partition == ThreadPartition::warp_sliced_k) {
      return TensorDotCut<kKind, kRow>();
    } else {
      return TensorCut<kKind, kRow>();
    }
  }
  // Alignment in bytes of the operands in shared memory.
  static constexpr int kAlignment = sizeof(Element) < 8 ? kSwizzleBytes : kBankLineBytes;
  template <int kRow>
  using Cut = decltype(cut_of<kRow>());

  template <class Cut>
  __device__ __forceinline__ static void multiply(const TilePlace<Element>& place, Element* shared) {
    if constexpr (Cut::kShape.partition == ThreadPartition::rows) {
      multiply_rows<Cut, TensorRowProducts<Cut, Element>>(place, shared);
    } else if constexpr (Cut::kShape.partition == ThreadPartition::warp_sliced_k) {
      multiply_tensor_dots<Cut>(place, shared);
    } else {
      multiply_tile<Cut>(place, shared);
    }
  }

 private:
  struct Modes {
    CopyMode a, b;
    __device__ bool both(CopyMode mode) const { return a == mode && b == mode; }
  };

  template <class Cut>
  __device__ __forceinline__ static void multiply_tile(const TilePlace<Element>& place, Element* shared) {
    const MatrixView &a = place.matrix[kA], &b = place.matrix[kB];
    Modes modes{copy_mode<Element>(a, place.rows, place.depth), copy_mode<Element>(b, place.depth, place.cols)};
    if constexpr (kWarpgroupProducts && Cut::kSuitsWarpgroups) {
      using Together = TensorCut<kKind, Cut::kIndex, true>;
      if constexpr (Together::kTransposed) {
        if (a.access == Access::columns) modes.a = CopyMode::across;
        multiply_by<Together, TransposedProducts>(place, shared, modes);
      } else if (modes.both(CopyMode::vectors)) {
        // Warpgroup products pay only if threads need not process what they copied: making such writes visible to the tensor cores costs
        // more than the products save.
        multiply_by<Together, WarpgroupProducts>(place, shared, modes);
      } else {
        multiply_by<Cut, WaveProducts>(place, shared, modes);
      }
    } else {
      multiply_by<Cut, WaveProducts>(place, shared, modes);
    }
  }

  template <class Cut, template <class, class, class> class Products>
  __device__ __forceinline__ static void multiply_by(const TilePlace<Element>& place, Element* shared, const Modes& modes) {
    Sums<Cut> sums = {};
    // The products' code is instantiated for each layout of the operands: it is short, and a branch inside would keep the loads from being
    // moved ahead. It is also instantiated for each way of copying, if both operands are copied in that way, or A is
    // turned and B copied in vectors: code that a loop does not need would cost it instruction fetches (docs/design/latency.md, L12).
    const bool mn_major_a = place.matrix[kA].access == Access::columns, k_major_b = place.matrix[kB].access == Access::columns;
    const auto with_both = [&](auto lines_a, auto lines_b) __attribute__((always_inline)) {
      const auto copied = [&](auto mode_a, auto mode_b) __attribute__((always_inline)) {
        accumulate<Cut, Products, typename decltype(lines_a)::type, typename decltype(lines_b)::type>(place, shared, mode_a, mode_b, sums);
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
        with_both(lines_a, Chosen<typename Cut::template B<true>>());
      } else {
        with_both(lines_a, Chosen<typename Cut::template B<false>>());
      }
    };
    if constexpr (Cut::kTransposed) {
      with_b(Chosen<typename Cut::template A<true>>());
    } else if (mn_major_a) {
      with_b(Chosen<typename Cut::template A<false>>());
    } else {
      with_b(Chosen<typename Cut::template A<true>>());
    }
    store_sums<Cut>(place, sums, shared);
  }
};

}  // namespace vbgemm
