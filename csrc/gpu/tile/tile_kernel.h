// The kernels' common body: walk the launch's blocks, place each tile, and hand it to the code of its row of the catalogue.
#pragma once
#include <initializer_list>
#include <utility>

#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Whether two rows of the catalogue are the same code: tiles of whole rows (columns) are, if both are short or neither is.
constexpr bool share_code(const TileShape& tile, const TileShape& other) {
  const bool whole_rows = tile.owned == Owned::rows && other.owned == Owned::rows;
  return whole_rows && shorter_side(tile) == shorter_side(other) && is_short(tile) == is_short(other);
}

// A row's extent and code as one number: to find it is one choice among a kernel's rows then, and not four.
constexpr uint32_t packed_extent(const TileShape& shape, int code) {
  const uint32_t transposed = shape.owned == Owned::rows && shape.n > shape.m;
  return shape.m | shape.n << 12 | code << 24 | transposed << 31;
}

// The rows of the catalogue that a kernel holds, and their codes. (By loops: templates over all rows took seconds to compile.)
struct Held {
  int rows = 0, codes = 0;
  int row[kNumTiles] = {};          // each that is held
  uint32_t packed[kNumTiles] = {};  // its extent and code
  int row_of_code[kNumTiles] = {};  // the first
  bool fits = true;                 // all of it in a packed number
};
constexpr Held held_by(Kind kind, Kernel kernel) {
  Held held;
  for (int row = 0; row < kNumTiles; ++row) {
    const TileShape& tile = kTiles[row];
    if (!has_code(tile) || !tile.built_for(kind) || kernel_of(tile) != kernel) continue;
    int code = 0;
    while (code < held.codes && !share_code(kTiles[held.row_of_code[code]], tile)) ++code;
    if (code == held.codes) held.row_of_code[held.codes++] = row;
    held.row[held.rows] = row, held.packed[held.rows] = packed_extent(tile, code);
    held.fits &= tile.m < 1 << 12 && tile.n < 1 << 12 && code < 1 << 7;
    ++held.rows;
  }
  return held;
}

// A tile's cut as a value, so that generic code can be called with it.
template <class Cut>
struct Chosen {
  using type = Cut;
};

constexpr int largest(std::initializer_list<int> values) {
  int most = 0;
  for (int value : values) most = value > most ? value : most;
  return most;
}

// Family: the kind of arithmetic and how it computes a tile (SimtFamily, TensorFamily, MfmaFamily). It waits for the kernel ahead as late
// as it can: until then a tile is found, and its copies are prepared.
template <class Family, Kernel kKernel, class Indices = std::make_integer_sequence<int, held_by(Family::kKind, kKernel).rows>>
struct TileKernel;

template <class Family, Kernel kKernel, int... kIndex>
struct TileKernel<Family, kKernel, std::integer_sequence<int, kIndex...>> {
  using T = typename Family::Element;
  static constexpr Held kHeld = held_by(Family::kKind, kKernel);
  static_assert(kHeld.fits);
  template <int kRow>
  using Cut = typename Family::template Cut<kRow>;
  // The largest of the rows' buffers serves them all.
  static constexpr int kThreads = threads_of(kKernel), kSharedElements = largest({1, Cut<kHeld.row[kIndex]>::kSharedElements...});

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
      choose<0, kHeld.codes>(place.code, [&](auto chosen) __attribute__((always_inline)) {
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
  __device__ static TileExtent extent_of([[maybe_unused]] int strategy) {  // a kind may have no row in a kernel
    uint32_t packed = 0;
    (find_packed<kHeld.row[kIndex], kHeld.packed[kIndex]>(strategy, packed), ...);
    return {static_cast<int>(packed & 0xfff), static_cast<int>(packed >> 12 & 0xfff), static_cast<int>(packed >> 24 & 0x7f),
            packed >> 31 != 0};
  }
  template <int kRow, uint32_t kPacked>
  __device__ __forceinline__ static void find_packed(int strategy, uint32_t& packed) {
    if (strategy == kRow) packed = kPacked;
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
      if (code == kFirst) multiply(Chosen<Cut<kHeld.row_of_code[kFirst]>>());
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
