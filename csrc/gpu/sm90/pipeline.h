// The pipeline of the warp-specialized kernels on sm_90a (block.h): a CTA's stages and barriers in shared memory, through which its warps
// pass tiles and operands to each other. Tile traits are a type of compile-time constants: how a tile is divided into stages, boxes and
// chunks, and how many warps and CTAs share it. The traits of the other kernels (gpu/tile/tile_traits.h) divide a tile among the threads of
// a block.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"

namespace vbgemm {

template <Kind kMmaKind, int kTileCols, int kCtas>
struct PipelineTraits {
  static constexpr Kind kKind = kMmaKind;
  using T = LeftOf<kKind>;
  static constexpr bool kIs8Bit = sizeof(T) == 1, kMixed = false;
  static constexpr bool kPromotes = kIs8Bit;  // the tensor cores accumulate one stage, whose result is added to the tile's accumulators
  static constexpr Kind kShortResults = kIs8Bit ? Kind::bf16 : kKind;  // the type of results other than float32
  // A stage holds 128 bytes of each line, and one MMA consumes 32 of them.
  static constexpr int kElement = static_cast<int>(sizeof(T)), kDepth = 128 / kElement, kChunk = 32 / kElement, kChunks = kDepth / kChunk;
  static constexpr int kRows = 128, kCols = kTileCols;
  static constexpr int kConsumerWarps = 8, kThreads = 384;
  static constexpr int kCluster = kCtas;    // CTAs in a cluster, which share copies by multicast
  static constexpr int kTiles = 3;          // slots for tiles that are found ahead of the mainloop or still being stored
  static constexpr int kValuesPerByte = 1;  // values of B per byte; if 2, the tensor map of B counts bytes
  static constexpr bool kGathers = false;   // whether threads copy A by cp.async; consumers then need a proxy fence
  // All copies are swizzled boxes of 64 lines of 128 bytes. A line runs along the operand's contiguous dimension.
  static constexpr int kBox = 64, kBoxBytes = kBox * 128, kBoxBytesA = kBoxBytes, kBoxesA = kRows / kBox, kBoxesB = kCols / kBox;
  static constexpr int kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes;
  // A warp stages its 16 rows of results in two boxes at a time, each with 128 bytes of every row. Staging a whole tile would cost one
  // pipeline stage, and with only three stages left the MMAs would wait for copies.
  static constexpr int kStoreBoxBytes = 16 * 128, kStoreBoxes = 2, kStagingBytes = kStoreBoxes * kStoreBoxBytes;
  static constexpr int kStoreLines = 16;  // of a box
  static constexpr int kStages = (kPipelineMaxShared - 2048 - kConsumerWarps * kStagingBytes) / kStageBytes;
  static constexpr int kBlocks = kCols / 8;  // blocks of 8 columns, the unit of a thread's accumulators
};

template <class Traits>
struct PipelineBuffers {
  alignas(1024) unsigned char stage[Traits::kStages][Traits::kStageBytes];
  alignas(1024) unsigned char staging[Traits::kConsumerWarps][Traits::kStagingBytes];
};
// Separate from the buffers, so that a kernel's further members follow these barriers instead of the padding to 1024 bytes.
template <class Traits>
struct StageBarriers {
  Mbarrier full[Traits::kStages], empty[Traits::kStages];
};
// The shared memory of a CTA. `source` belongs to the tile source.
template <class Traits, class Tile, class SourceShared>
struct PipelineShared : PipelineBuffers<Traits>, StageBarriers<Traits> {
  Tile tile[Traits::kTiles];  // found tiles; an entry that ends() marks the end of the CTA's work
  Mbarrier tile_full[Traits::kTiles], tile_empty[Traits::kTiles];
  SourceShared source;
};
// Shared memory of a CTA is only guaranteed to begin at a multiple of 16 bytes; swizzled boxes need 1024, so 1024 more are requested.
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

// A slot in a ring of stages or tiles, and the parity of its barriers' current phase.
template <int kSlots>
struct PipelineState {
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++index == kSlots) index = 0, parity ^= 1;
  }
};

constexpr int kNoSplit = INT32_MAX;

// The boxes of A and B that TMA copies for a tile. The two halves of B may be two arrays.
struct TileBoxes {
  bool by_tma = true;  // whether TMA copies the tile at all
  const CUtensorMap *a, *b;
  int boxes_a, boxes_b;                           // boxes of A, and boxes of B per half
  int bytes_a;                                    // bytes per box of A
  bool mn_major_a, mn_major_b;                    // otherwise K-major
  bool shares_a = false, shares_b = false;        // both CTAs of the cluster need the same boxes
  int depth;                                      // K elements of this CTA's tile
  int row = 0, col = 0, k_begin = 0, matrix = 0;  // where the tile begins: row of A, column of B, K element of B, matrix of B
  int k_begin_a = 0;                              // K element of A
  // The column or K element from which on the boxes are in B's second map. No box lies in both halves.
  int split_col = kNoSplit, split_depth = kNoSplit;
  int halves = 1, boxes_per_half = 0;  // 2 if gated: the tile has the same columns of both halves
};

// The part of the epilogue's source matrix that belongs to a tile, which TMA copies into stages that follow those of K: kStages stages,
// each with kAcross boxes across by two down. `map` is null if there is none.
struct SourceBoxes {
  static constexpr int kStages = 2, kAcross = 2;
  const CUtensorMap* map;
  int rows, cols;
};

// Named barrier IDs: one for each consumer warpgroup (1 and 2), for the threads that copy operands, and for all producers.
enum { kConsumerBarrier = 1, kCopierBarrier = 3, kProducerBarrier = 4 };

// Calls take(tile, slot, stages) for each tile that the source finds. `take` must advance `stages` past the tile's stages.
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

// Called by a warp that no longer needs the tile in this slot.
template <class Shared>
__device__ inline void release_tile(Shared& shared, int slot, int lane) {
  wave_barrier();
  if (lane == 0) mbarrier_arrive(shared.tile_empty[slot]);
}

}  // namespace vbgemm
