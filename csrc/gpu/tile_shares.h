// Split K: the shares of a tile leave their sums in the workspace, and the block that comes last adds them up.
#pragma once
#include "epilogue.h"
#include "tile_place.h"

namespace vbgemm {

// Shares that one block adds up. More of them meet in groups, whose sums meet in groups again: a tree that depends on their number alone,
// so that the bits do not depend on who comes last.
inline constexpr int kFanIn = 16;

// True in the block that goes on, its `sums` then being those of all shares; false in one whose tile another block finishes.
template <class Cut, class T, class Sum, int kCount>
__device__ inline bool add_shares(TilePlace<T>& place, Sum (&sums)[kCount]) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum)), kWidth = kCount < kVector ? kCount : kVector;
  constexpr int kPieces = kCount / kWidth;
  [[maybe_unused]] constexpr int kTogether = kPieces < 8 ? 8 / kPieces : 1;  // so that eight loads are under way
  using Piece = Vector<Sum, kWidth>;
  static_assert(kCount * Cut::kThreads == Cut::kSlots * kSlotSums);
  const int count = place.share.count;
  Piece* const mine = static_cast<Piece*>(place.share.sums) + thread_index();  // of share 0
  int index = place.share.index;
#pragma unroll 1
  for (int level = 0, stride = 1; stride < count; ++level, stride *= kFanIn) {
    const int group = stride * kFanIn, first = index / group * group;
    const int end = first + group < count ? first + group : count;
    if (end - first <= stride) continue;  // alone
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Piece piece;
#pragma unroll
      for (int v = 0; v < kWidth; ++v) piece.element[v] = sums[i * kWidth + v];
      mine[(static_cast<int64_t>(index) * kPieces + i) * Cut::kThreads] = piece;
    }
    device_fence();
    block_barrier();
    // A group of several has more slots than levels lie below it, so that each level's counter is its own.
    if (thread_index() == 0) place.share.before = fetch_and_add(place.share.arrived + first + level, 1);
    block_barrier();
    if (static_cast<int>(place.share.before) != (end - first - 1) / stride) return false;
    device_fence();
#pragma unroll
    for (Sum& sum : sums) sum = nothing<Sum>();
#pragma unroll kTogether
    for (int from = first; from < end; from += stride) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const Piece piece = load_from_l2(mine + (static_cast<int64_t>(from) * kPieces + i) * Cut::kThreads);
#pragma unroll
        for (int v = 0; v < kWidth; ++v) sums[i * kWidth + v] = sums[i * kWidth + v] + piece.element[v];
      }
    }
    index = first;
  }
  return true;
}

}  // namespace vbgemm
