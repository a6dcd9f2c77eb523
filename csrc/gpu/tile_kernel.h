// The kernels' common body: walk the launch's blocks, place each tile, and hand it to the code of its row of the catalogue.
#pragma once
#include <initializer_list>
#include <utility>

#include "tile_place.h"

namespace vbgemm {

// Whether a row of the catalogue is code in a kernel.
template <Kind kKind, Kernel kKernel, int kRow>
inline constexpr bool kHolds = has_code(kTiles[kRow]) && kTiles[kRow].built_for(kKind) && kernel_of(kTiles[kRow]) == kKernel;

// Whether two rows of the catalogue are the same code: tiles of whole rows (columns) are, if both are short or neither is.
constexpr bool share_code(const TileShape& tile, const TileShape& other) {
  const bool whole_rows = tile.owned == Owned::rows && other.owned == Owned::rows;
  return whole_rows && shorter_side(tile) == shorter_side(other) && is_short(tile) == is_short(other);
}
template <int kRow, int kOther>
inline constexpr bool kShareCode = kRow == kOther || share_code(kTiles[kRow], kTiles[kOther]);

// A tile's cut as a value, so that generic code can be called with it.
template <class Cut>
struct Chosen {
  using type = Cut;
};

template <class Family, Kernel kKernel, int kRow>
constexpr int shared_elements() {
  if constexpr (kHolds<Family::kKind, kKernel, kRow>) return Family::template Cut<kRow>::kSharedElements;
  return 0;
}

constexpr int largest(std::initializer_list<int> values) {
  int most = 0;
  for (int value : values) most = value > most ? value : most;
  return most;
}

// Family: the kind of arithmetic and how it computes a tile (SimtFamily, TensorFamily, MfmaFamily). It waits for the kernel ahead as late
// as it can: until then a tile is found, and its copies are prepared.
template <class Family, Kernel kKernel, class Rows = std::make_integer_sequence<int, kNumTiles>>
struct TileKernel;

template <class Family, Kernel kKernel, int... kRow>
struct TileKernel<Family, kKernel, std::integer_sequence<int, kRow...>> {
  using T = typename Family::Element;
  // The largest of the rows' buffers serves them all. (A kind may have no row in a kernel.)
  static constexpr int kThreads = threads_of(kKernel), kSharedElements = largest({1, shared_elements<Family, kKernel, kRow>()...});

  struct Shared {
    TilePlace<T> place;
    alignas(Family::kAlignment) T operands[kSharedElements];
  };

  // Inlined, so that parameters are read as such: behind a reference they would be memory like any other, and slow to arrive.
  __device__ __forceinline__ static void run(const KernelParameters& parameters, Shared& shared) {
    TilePlace<T>& place = shared.place;
    if (!kCdna) prefetch_descriptors(parameters.plan);  // which has no such instruction
    for (Walk walk = tiles_of_block(parameters); walk.tile < walk.end; ++walk.tile) {
      // One wave looks the tile up, the first under the kernel ahead, and all read its place from shared memory, where it costs no
      // registers.
      if (thread_index() < kWaveSize) find_tile<Family::kMirrors>(parameters, walk.tile, extent_of, place);
      if (thread_index() == 0) place.walk = walk;
      block_barrier();
      const auto multiply = [&](auto chosen) __attribute__((always_inline)) {
        Family::template multiply<typename decltype(chosen)::type>(place, shared.operands);
      };
      (multiply_by<kRow>(place.strategy, multiply), ...);
      if (!parameters.plan.block_first) break;
      walk = place.walk;
      block_barrier();  // the next tile overwrites the place and the operands
    }
    await_previous_kernel();  // the kernel behind waits for this one alone
  }

 private:
  __device__ static TileExtent extent_of(int strategy) {
    TileExtent extent{0, 0, false};
    (find_extent<kRow>(strategy, extent), ...);
    return extent;
  }
  template <int kIndex>
  __device__ __forceinline__ static void find_extent(int strategy, TileExtent& extent) {
    if constexpr (kHolds<Family::kKind, kKernel, kIndex>) {
      constexpr TileShape kShape = kTiles[kIndex];
      if (strategy == kIndex) extent = {kShape.m, kShape.n, kShape.owned == Owned::rows && kShape.n > kShape.m};
    }
  }

  template <int kIndex>
  static constexpr bool kIsFirstOfItsCode = !((kRow < kIndex && kHolds<Family::kKind, kKernel, kRow> && kShareCode<kRow, kIndex>) || ...);

  // Calls `multiply` with the row that `strategy` names, if this kernel holds it and its code is here. Were a tile's code not inlined, what
  // it refers to would lie on a stack, and shared memory be read by generic loads.
  template <int kIndex, class Multiply>
  __device__ __forceinline__ static void multiply_by(int strategy, const Multiply& multiply) {
    if constexpr (kHolds<Family::kKind, kKernel, kIndex>) {
      if constexpr (kIsFirstOfItsCode<kIndex>) {
        if (((kShareCode<kRow, kIndex> && strategy == kRow) || ...)) multiply(Chosen<typename Family::template Cut<kIndex>>());
      }
    }
  }

  // A tile is known only once its record has arrived, in a run only once its problem has too, and each may have to come from memory: the
  // first blocks ask for all of them at once.
  __device__ static void prefetch_descriptors(const Descriptors& plan) {
    if (plan.tiles) {
      prefetch_table<kThreads>(plan.tiles, plan.num_tiles);
    } else {
      prefetch_table<kThreads>(plan.problems, plan.num_problems);
    }
  }
};

}  // namespace vbgemm
