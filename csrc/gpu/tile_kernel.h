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
      choose<0, kCodes>(place.code, [&](auto chosen) __attribute__((always_inline)) {
        Family::template multiply<typename decltype(chosen)::type>(place, shared.operands);
        leave_after_last(place);
      });
      if (!parameters.plan.block_first) break;
      walk = place.walk;
      block_barrier();  // the next tile overwrites the place and the operands
    }
    await_previous_kernel();  // the kernel behind waits for this one alone
  }

 private:
  template <int kIndex>
  static constexpr bool kIsFirstOfItsCode = kHolds<Family::kKind, kKernel, kIndex> &&
                                            !((kRow < kIndex && kHolds<Family::kKind, kKernel, kRow> && kShareCode<kRow, kIndex>) || ...);
  static constexpr int kCodes = (kIsFirstOfItsCode<kRow> + ...);

  // How many codes come before a row; its own; and the first row of each.
  template <int kIndex>
  static constexpr int kCodesBefore = ((kRow < kIndex && kIsFirstOfItsCode<kRow>)+...);
  template <int kIndex>
  static constexpr int kCodeOf = ((kIsFirstOfItsCode<kRow> && kShareCode<kRow, kIndex> ? kCodesBefore<kRow> : 0) + ...);
  template <int kCode>
  static constexpr int kRowOfCode = ((kIsFirstOfItsCode<kRow> && kCodesBefore<kRow> == kCode ? kRow : 0) + ...);

  // A row's extent as one number: to find it is one choice among the rows then, and not four.
  template <int kIndex>
  static constexpr uint32_t pack() {
    constexpr TileShape kShape = kTiles[kIndex];
    static_assert(kShape.m < 1 << 12 && kShape.n < 1 << 12 && kCodes < 1 << 7);
    const uint32_t transposed = kShape.owned == Owned::rows && kShape.n > kShape.m;
    return kShape.m | kShape.n << 12 | kCodeOf<kIndex> << 24 | transposed << 31;
  }
  template <int kIndex>
  static constexpr uint32_t kPacked = pack<kIndex>();

  __device__ static TileExtent extent_of(int strategy) {
    uint32_t packed = 0;
    (find_packed<kRow>(strategy, packed), ...);
    return {static_cast<int>(packed & 0xfff), static_cast<int>(packed >> 12 & 0xfff), static_cast<int>(packed >> 24 & 0x7f),
            packed >> 31 != 0};
  }
  template <int kIndex>
  __device__ __forceinline__ static void find_packed(int strategy, uint32_t& packed) {
    if constexpr (kHolds<Family::kKind, kKernel, kIndex>) {
      if (strategy == kIndex) packed = kPacked<kIndex>;
    }
  }

  // Calls `multiply` with the cut of a code, if there is such a code. By halves: a test behind each tile's code would wait for instructions
  // once for every tile that is not chosen. (With an `else` both compilers spill in one kernel or another.) Were a tile's code not inlined,
  // what it refers to would lie on a stack, and shared memory be read by generic loads.
  template <int kFirst, int kEnd, class Multiply>
  __device__ __forceinline__ static void choose(int code, const Multiply& multiply) {
    if constexpr (kEnd - kFirst > 1) {
      constexpr int kMiddle = (kFirst + kEnd) / 2;
      if (code < kMiddle) choose<kFirst, kMiddle>(code, multiply);
      if (code >= kMiddle) choose<kMiddle, kEnd>(code, multiply);
    } else if constexpr (kEnd > kFirst) {
      if (code == kFirst) multiply(Chosen<typename Family::template Cut<kRowOfCode<kFirst>>>());
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
