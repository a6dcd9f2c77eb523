// The producer of A for rows of lhs that are read by index. TMA only reads boxes of adjacent rows, so the threads of two warps copy the
// rows, 16 bytes at a time, into the layout of a TMA box.
#pragma once
#include "gpu/sm90/source_groups.h"

namespace vbgemm {

template <class Source>
class RowGatherer {
  using Traits = typename Source::Traits;

 public:
  static constexpr int kWarps = Traits::kBoxesA, kArrivals = 32 * kWarps;  // a warp copies one box of A of each stage: 64 rows of the tile
  static constexpr bool kCopiesAlone = false;                              // TMA copies B of the same stages

  // `thread` counts from 0.
  __device__ RowGatherer(const GroupParameters& parameters, typename Source::Shared& shared, int thread)
      : parameters_(parameters), shared_(shared), box_(shfl(thread / 32, 0)), lane_(thread % 32) {}

  __device__ void run() const {
    each_tile<Traits>(shared_, [&](const RaggedTile& found, int slot, PipelineState<Traits::kStages>& stages) {
      const RaggedTile tile = found;
      release_tile(shared_, slot, lane_);  // all lanes have read the tile
      int rows[kLines];
      load_row_indices(tile, rows);
      for (int k = 0; k < tile.depth; k += Traits::kDepth, stages.advance()) {
        mbarrier_wait(shared_.empty[stages.index], stages.parity ^ 1);
        wave_barrier();  // all lanes have seen the end of the phase
        if (box_ * Traits::kBox < tile.rows) gather_rows(shared_.stage[stages.index] + box_ * Traits::kBoxBytes, rows, k);
        cp_async_mbarrier_arrive(shared_.full[stages.index]);
      }
    });
  }

 private:
  static constexpr int kLines = Traits::kBox / 32;  // row indices that a lane loads for its box

  // Loads the indices of the rows of lhs for this lane's lines of the box; -1 for lines outside of the tile.
  __device__ void load_row_indices(const RaggedTile& tile, int (&rows)[kLines]) const {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int line = box_ * Traits::kBox + lane_ + 32 * i;
      rows[i] = line < tile.rows ? min(max(parameters_.gather[tile.row + line], 0), parameters_.sizes.lhs_rows - 1) : -1;
    }
  }

  // Eight adjacent lanes copy the eight vectors of a line; each lane copies its vector of every fourth line. Two warps keep up with the
  // MMAs only if each copy takes few instructions.
  __device__ void gather_rows(unsigned char* box, const int (&rows)[kLines], int k) const {
    constexpr int kElement = sizeof(typename Traits::T), kInFlight = 8;
    const int vector = lane_ % 8, line = lane_ / 8, column = k + vector * (16 / kElement);
    const bool exists = column < parameters_.sizes.k;
    const uint32_t row_bytes = parameters_.sizes.k * uint32_t{kElement};
    uint64_t from = reinterpret_cast<uint64_t>(parameters_.lhs) + column * uint64_t{kElement};
    keep_in_place(from);  // keeps the sum in one register pair; the compiler would add its terms to each row's offset
    // The 128-byte swizzle XORs the vector index with the line index modulo 8, which is equal for every second line of a lane.
    unsigned char* const to[2] = {box + line * 128 + (vector ^ line) * 16, box + line * 128 + (vector ^ line ^ 4) * 16};
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      // All shuffles come before the first copy: a copy right after its shuffle would wait for it, and the next shuffle for the copy.
      int row[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) row[j] = shfl(rows[i], 4 * j + line);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) keep_in_place(row[j]);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const uint64_t address = from + uint64_t{static_cast<uint32_t>(row[j])} * row_bytes;
        cp_async<16>(to[j % 2] + (32 * i + 4 * j) * 128, reinterpret_cast<const void*>(address), exists && row[j] >= 0);
      }
    }
  }

  const GroupParameters& parameters_;
  typename Source::Shared& shared_;
  int box_, lane_;
};

}  // namespace vbgemm
