// The pipeline of the kernels of large products on sm_90a (block.h): the stages and barriers of a CTA in shared memory, through which the
// roles of its warps hand over tiles and operands.
//
// A Traits is what CUTLASS calls tile traits: a type of compile-time constants that says how a tile is cut into stages, boxes and chunks,
// and how many warps and CTAs share it. The Cuts of other kernels (gpu/tile/tile_traits.h) divide a tile among the threads of a block.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"

namespace vbgemm {

template <Kind kMmaKind, int kTileCols, int kCtas>
struct PipelineTraits {
  static constexpr Kind kKind = kMmaKind;
  using T = LeftOf<kKind>;
  static constexpr bool kIs8Bit = sizeof(T) == 1, kMixed = false;
  static constexpr bool kPromotes = kIs8Bit;  // the tensor cores sum the products of one stage, which are added to the tile's sums
  static constexpr Kind kShortResults = kIs8Bit ? Kind::bf16 : kKind;  // the type of results that are no float32
  // A stage has 128 bytes of each line, and one product multiplies 32.
  static constexpr int kElement = static_cast<int>(sizeof(T)), kDepth = 128 / kElement, kChunk = 32 / kElement, kChunks = kDepth / kChunk;
  static constexpr int kRows = 128, kCols = kTileCols;
  static constexpr int kConsumerWarps = 8, kThreads = 384;
  static constexpr int kCluster = kCtas;    // CTAs of a cluster, which share copies by multicast
  static constexpr int kTiles = 3;          // tiles found ahead of the products, and those whose results are still being stored
  static constexpr int kValuesPerByte = 1;  // numbers of B that share a byte, in whose bytes TMA then counts
  static constexpr bool kGathers = false;   // whether threads copy A by cp.async, which consumers have to make visible to tensor cores
  // All copies are swizzled boxes of 64 lines of 128 bytes each. The lines of an operand run along its contiguous dimension.
  static constexpr int kBox = 64, kBoxBytes = kBox * 128, kBoxBytesA = kBoxBytes, kBoxesA = kRows / kBox, kBoxesB = kCols / kBox;
  static constexpr int kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes;
  // A warp stages its 16 rows of results in two boxes at a time, each with 128 bytes of every row. Staging a whole tile would cost one
  // pipeline stage, and with only three stages left the products wait for copies.
  static constexpr int kStoreBoxBytes = 16 * 128, kStoreBoxes = 2, kStagingBytes = kStoreBoxes * kStoreBoxBytes;
  static constexpr int kStoreLines = 16;  // of a box
  static constexpr int kStages = (kPipelineMaxShared - 2048 - kConsumerWarps * kStagingBytes) / kStageBytes;
  static constexpr int kBlocks = kCols / 8;  // of 8 columns, in which a thread's sums are counted
};

template <class Traits>
struct PipelineBuffers {
  alignas(1024) unsigned char stage[Traits::kStages][Traits::kStageBytes];
  alignas(1024) unsigned char staging[Traits::kConsumerWarps][Traits::kStagingBytes];
};
// Apart from the buffers, so that what a kernel needs in addition follows these barriers, and not the padding to 1024 bytes.
template <class Traits>
struct StageBarriers {
  Mbarrier full[Traits::kStages], empty[Traits::kStages];
};
// The shared memory of a CTA. `source` is what the tile source keeps there.
template <class Traits, class Tile, class SourceShared>
struct PipelineShared : PipelineBuffers<Traits>, StageBarriers<Traits> {
  Tile tile[Traits::kTiles];  // found; one that ends() is no tile but the end of the CTA's work
  Mbarrier tile_full[Traits::kTiles], tile_empty[Traits::kTiles];
  SourceShared source;
};
// Shared memory of a CTA is only guaranteed to begin at a multiple of 16 bytes; swizzled boxes need 1024, so that up to 1024 more are
// requested.
template <class Shared>
struct Unaligned {
  unsigned char bytes[sizeof(Shared) + 1024];
};

template <class Shared>
constexpr int pipeline_shared_bytes() {
  constexpr int kBytes = sizeof(Unaligned<Shared>);
  static_assert(kBytes <= kPipelineMaxShared);
  return kBytes;
}

template <class Shared>
__device__ inline Shared& aligned_in(Unaligned<Shared>& dynamic) {
  return *reinterpret_cast<Shared*>(dynamic.bytes + (1024 - shared_address(&dynamic) % 1024) % 1024);
}

// A position in a ring of stages or tiles, and the parity of the phase that the barriers there are in.
template <int kSlots>
struct PipelineState {
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++index == kSlots) index = 0, parity ^= 1;
  }
};

constexpr int kNoSplit = INT32_MAX;

// What TMA copies of a tile: boxes of A, and of B, whose halves may be two arrays.
struct TileBoxes {
  bool by_tma = true;  // whether TMA copies the tile at all
  const CUtensorMap *a, *b;
  int boxes_a, boxes_b;                           // of B in each half
  int bytes_a;                                    // of a box of A
  bool mn_major_a, mn_major_b;                    // else K-major
  bool shares_a = false, shares_b = false;        // both CTAs of the cluster need the same boxes
  int depth;                                      // of this CTA's tile
  int row = 0, col = 0, k_begin = 0, matrix = 0;  // where the tile begins: row of A, column and matrix of B, step of K
  // From which column and which step of K on the second map of B has the boxes. No box lies in both halves.
  int split_col = kNoSplit, split_depth = kNoSplit;
  int halves = 1, boxes_per_half = 0;  // two: a gated product's tile has the same columns of both halves
};

// The numbers of named barriers: of each consumer warpgroup, of the threads that copy operands, and of all producers.
enum { kConsumerBarrier = 1, kCopierBarrier = 3, kProducerBarrier = 4 };

// Calls take(tile, place in the ring, stages) for each tile that the source finds. `take` has to advance the stages by those of the tile.
template <class Traits, class Shared, class Take>
__device__ inline void each_tile(Shared& shared, const Take& take) {
  PipelineState<Traits::kTiles> tiles;
  PipelineState<Traits::kStages> stages;
  for (;; tiles.advance()) {
    mbarrier_wait(shared.tile_full[tiles.index], tiles.parity);
    const auto& tile = shared.tile[tiles.index];
    if (tile.ends()) return;
    take(tile, tiles.index, stages);
  }
}

// A warp no longer needs the tile at a place of the ring.
template <class Shared>
__device__ inline void release_tile(Shared& shared, int slot, int lane) {
  wave_barrier();
  if (lane == 0) mbarrier_arrive(shared.tile_empty[slot]);
}

}  // namespace vbgemm
