// The common body of all tile kernels: walk through the thread block's tiles, place each one, and run the code for its row of the
// catalogue.
#pragma once
#include <initializer_list>
#include <utility>

#include "gpu/tile/tile_place.h"

namespace vbgemm {

// Whether two rows of the catalogue share one code variant. Row tiles (and column tiles) do, if their shorter sides are equal and both or
// neither are short.
constexpr bool share_code(const TileShape& tile, const TileShape& other) {
  const bool whole_rows = tile.partition == ThreadPartition::rows && other.partition == ThreadPartition::rows;
  return whole_rows && shorter_side(tile) == shorter_side(other) && is_short(tile) == is_short(other);
}

// A catalogue row's tile size and code variant packed into one word, so that a lookup selects one value instead of four.
constexpr uint32_t packed_extent(const TileShape& shape, int code) {
  const uint32_t transposed = shape.partition == ThreadPartition::rows && shape.n > shape.m;
  return shape.m | shape.n << 12 | code << 24 | transposed << 31;
}

// The rows of the catalogue that a kernel holds, and their code variants. It is computed by loops, because templates over all rows took
// seconds to compile.
struct KernelTiles {
  int rows = 0, codes = 0;
  int row[kNumTiles] = {};          // the rows that the kernel holds
  uint32_t packed[kNumTiles] = {};  // tile size and code of each
  int row_of_code[kNumTiles] = {};  // the first row that uses each code
  bool fits = true;                 // whether all values fit their packed fields
};
constexpr KernelTiles tiles_in_kernel(Kind kind, Kernel kernel) {
  KernelTiles held;
  for (int row = 0; row < kNumTiles; ++row) {
    const TileShape& tile = kTiles[row];
    if (!has_code(tile, kind, kCdna) || kernel_of(tile) != kernel) continue;
    int code = 0;
    while (code < held.codes && !share_code(kTiles[held.row_of_code[code]], tile)) ++code;
    if (code == held.codes) held.row_of_code[held.codes++] = row;
    held.row[held.rows] = row, held.packed[held.rows] = packed_extent(tile, code);
    held.fits &= tile.m < 1 << 12 && tile.n < 1 << 12 && code < 1 << 7;
    ++held.rows;
  }
  return held;
}

// Tile traits as a value, so that a generic lambda can be called with them.
template <class Traits>
struct Chosen {
  using type = Traits;
};

constexpr int largest(std::initializer_list<int> values) {
  int most = 0;
  for (int value : values) most = value > most ? value : most;
  return most;
}

// Policy: an arithmetic and how it computes a tile (SimtPolicy, TensorPolicy, MfmaPolicy). A policy waits for the previous kernel in the
// stream as late as possible: finding the tile and preparing its copies overlap that kernel.
template <class Policy, Kernel kKernel, class Indices = std::make_integer_sequence<int, tiles_in_kernel(Policy::kKind, kKernel).rows>>
struct TileKernel;

template <class Policy, Kernel kKernel, int... kIndex>
struct TileKernel<Policy, kKernel, std::integer_sequence<int, kIndex...>> {
  using T = typename Policy::Element;
  static constexpr KernelTiles kHeld = tiles_in_kernel(Policy::kKind, kKernel);
  static_assert(kHeld.fits);
  template <int kRow>
  using Traits = typename Policy::template Traits<kRow>;
  // All tile shapes that a kernel is compiled for share one buffer in shared memory, of the size of the largest.
  static constexpr int kThreads = threads_of(kKernel), kSharedElements = largest({1, Traits<kHeld.row[kIndex]>::kSharedElements...});

  struct Shared {
    ResolvedTile<T> place;
    alignas(Policy::kAlignment) T operands[kSharedElements];
  };

  // Inlined, so that the launch parameters are read from the constant bank; behind a reference they would be loaded like any other memory,
  // which is slow (docs/design/latency.md, L1).
  __device__ __forceinline__ static void run(const KernelParameters& parameters, Shared& shared) {
    ResolvedTile<T>& place = shared.place;
    if (parameters.next_may_start) let_next_kernel_start();
    // By the warps that do not look the tile up. CDNA has no prefetch instruction.
    if (!kCdna && thread_index() >= kWaveSize) prefetch_descriptors<kThreads - kWaveSize>(parameters.plan, thread_index() - kWaveSize);
    for (TileRange range = tiles_of_block(parameters, block_index()); range.tile < range.end; ++range.tile) {
      // One warp looks the tile up (the first tile overlaps the previous kernel), and all threads read the result from shared memory, where
      // it takes no registers.
      if (thread_index() < kWaveSize) find_tile<Policy::kMirrors>(parameters, range.tile, extent_of, place);
      if (thread_index() == 0) place.range = range;
      block_barrier();
      choose<0, kHeld.codes>(place.code, [&](auto chosen) __attribute__((always_inline)) {
        Policy::template multiply<typename decltype(chosen)::type>(place, shared.operands);
        leave_after_last(place);
      });
      if (!parameters.plan.block_first) break;
      range = place.range;
      block_barrier();  // because the next tile overwrites `place` and the operands
    }
    await_previous_kernel();  // with programmatic launch, the next kernel waits for this kernel alone
  }

 private:
  __device__ static TileExtent extent_of([[maybe_unused]] int tile_id) {  // unused where an arithmetic has no row in a kernel
    uint32_t packed = 0;
    (find_packed<kHeld.row[kIndex], kHeld.packed[kIndex]>(tile_id, packed), ...);
    return {static_cast<int>(packed & 0xfff), static_cast<int>(packed >> 12 & 0xfff), static_cast<int>(packed >> 24 & 0x7f),
            packed >> 31 != 0};
  }
  template <int kRow, uint32_t kPacked>
  __device__ __forceinline__ static void find_packed(int tile_id, uint32_t& packed) {
    if (tile_id == kRow) packed = kPacked;
  }

  // Calls `multiply` with the tile traits of a code variant, if it exists. The search is binary: a linear chain of tests would cost an
  // instruction fetch for every tile that is skipped (docs/design/latency.md, L14). Two separate ifs replace an if-else, with which each of
  // the two compilers spills registers in some kernel (docs/design/kernels.md, K13). The code of a tile has to be inlined: otherwise the
  // lambda's captures would live on a stack, and shared memory would be read by generic loads.
  template <int kFirst, int kEnd, class Multiply>
  __device__ __forceinline__ static void choose(int code, const Multiply& multiply) {
    if constexpr (kEnd - kFirst > 1) {
      constexpr int kMiddle = (kFirst + kEnd) / 2;
      if (code < kMiddle) choose<kFirst, kMiddle>(code, multiply);
      if (code >= kMiddle) choose<kMiddle, kEnd>(code, multiply);
    } else if constexpr (kEnd > kFirst) {
      if (code == kFirst) multiply(Chosen<Traits<kHeld.row_of_code[kFirst]>>());
    }
  }
};

}  // namespace vbgemm
