// A kernel for the tiles of one row of the catalogue that need nothing but 16-byte vectors: operands and results of one type in rows that
// are aligned, a record for each tile and a tile for each thread block, without epilogue, mirror image or K slices. Small calls are latency
// (docs/design/latency.md, L18): each thread reads and checks the record by itself, so that none waits for a warp to look the tile up, and
// there is a single code, so that none is chosen. Launches name such a kernel where the plan's tiles suit it (matmul/aligned_tiles.py); the
// host launches the tile's general kernel in its place where the call does not (host/launch.cu).
#pragma once
#include "gpu/tensor/tensor_tile.h"

namespace vbgemm {

// The minimum number of thread blocks of an aligned kernel that a multiprocessor must be able to hold: as many as the registers permit
// without spills, also on sm_80.
constexpr int aligned_min_blocks(Kernel kernel) {
  const TileShape& tile = kTiles[aligned_row(kernel)];
  return tile.m * tile.n > 64 * 64 ? 2 * 128 / tile.threads : tile.m == 64 ? 4 : 3;
}

template <Kind kKind, Kernel kKernel>
class AlignedTile {
  static constexpr int kRow = aligned_row(kKernel);
  using General = TensorTraits<kKind, kRow>;
  static constexpr bool kWarpgroups = kHasWgmma && General::kSuitsWgmma;
  using Traits = TensorTraits<kKind, kRow, kWarpgroups>;
  using T = typename Traits::T;
  template <class T_, class A, class B>
  using Warpgroups = std::conditional_t<Traits::kTransposed, TransposedWarpgroupMma<T_, A, B>, WarpgroupMma<T_, A, B>>;
  template <class T_, class A, class B>
  using Products = std::conditional_t<kWarpgroups, Warpgroups<T_, A, B>, WarpMma<T_, A, B>>;

 public:
  struct Shared {
    alignas(kSwizzleBytes) T operands[General::kSharedElements];
  };

  __device__ __forceinline__ static void run(const KernelParameters& parameters, Shared& shared) {
    if (parameters.next_may_start) let_next_kernel_start();
    ResolvedTile<T> place;
    if (!resolve(parameters, place)) return await_previous_kernel();  // with programmatic launch, the next kernel waits for this one alone
    constexpr StaticMode<CopyMode::vectors> kVectors;
    Sums<Traits> sums = {};
    accumulate<Traits, Products, typename Traits::template A<true>, typename Traits::template B<false>>(place, shared.operands, kVectors,
                                                                                                        kVectors, sums);
    if constexpr (kStoresFromRegisters<Traits>) {
      store_from_registers<Traits>(place, sums);
    } else {
      if (place.rows > Traits::kRows) place.rows = Traits::kRows;  // threads read as many rows of sums from shared memory
      store_planes_by<T, kSumsInVector<Traits>, Traits>(place, share_sums<Traits>(sums, shared.operands), Traits::kSplit);
    }
  }

 private:
  // Fills in the matrices of the thread block's tile. Returns false unless the record describes a tile that lies in the call's buffers in
  // whole vectors. Its size needs no check here: a kernel reads and writes no more than its own tile.
  __device__ __forceinline__ static bool resolve(const KernelParameters& parameters, ResolvedTile<T>& place) {
    const Descriptors& plan = parameters.plan;
    const uint32_t index = static_cast<uint32_t>(parameters.first_block) + block_index();
    if (index >= static_cast<uint32_t>(plan.num_tiles)) return false;
    const ReadyTile tile = load_record(plan.tiles + index);
    const TilePosition& at = tile.position;
    bool suits = at.depth > 0;
    uint64_t bytes = 0;  // all bits of the addresses and lengths
#pragma unroll
    for (int matrix = kA; matrix <= kC; ++matrix) {
      const Part& part = tile.part[matrix];
      const int rows = matrix == kB ? at.depth : at.rows, cols = matrix == kA ? at.depth : at.cols;
      const bool exists = static_cast<uint32_t>(part.buffer) < static_cast<uint32_t>(parameters.num_buffers);
      const Buffer buffer = parameters.table[exists ? part.buffer : 0];
      T* const first = static_cast<T*>(const_cast<void*>(buffer.data)) + part.offset;
      bytes |= reinterpret_cast<uintptr_t>(first) | static_cast<uint32_t>(part.row_stride | cols) * sizeof(T);
      suits &= exists & (matrix != kC || part.buffer >= parameters.num_operands) &
               lies_inside({part.offset, part.row_stride, 1, 0, 0}, rows, cols, buffer.elements);
      place.matrix[matrix] = {first, part.row_stride, 1, Access::vectors};
    }
    place.rows = at.rows, place.cols = at.cols, place.depth = at.depth;
    return suits & (bytes % kVectorBytes == 0);
  }
};

}  // namespace vbgemm
