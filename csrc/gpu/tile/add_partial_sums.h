// The second launch of split-K: reduces the partial sums that the tile kernels have written to the workspace, in fixed order, and applies
// the epilogue as a tile kernel would. A `slice` means one K slice or its partial sums.
#pragma once
#include "gpu/tile/epilogue.h"
#include "gpu/tile/finish.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

inline constexpr int kAddThreads = 256;

// Thread blocks per split tile, where `num_splits` tiles have `num_sums` partial sums together: enough that each thread loads two vectors
// of four sums of an average tile. With many tiles the number is bounded, because more thread blocks would wait for each other instead of
// memory.
constexpr int add_blocks(int64_t num_splits, int64_t num_sums) {
  constexpr int64_t kSumsPerBlock = kAddThreads * 4 * 2, kMax = 64, kMaxTotal = 1024;
  const int64_t blocks = num_sums / num_splits / kSumsPerBlock, fair = kMaxTotal / num_splits, most = fair < kMax ? fair : kMax;
  const int64_t blocks_per_tile = blocks < most ? blocks : most;
  return static_cast<int>(blocks_per_tile < 1 ? 1 : blocks_per_tile);
}

// The number of parts into which a thread block is divided. All parts work on the same elements, each on a range of the K slices: more
// slices, more parts. The order of the additions depends on nothing else. (The values are constants, so that no division remains at run
// time.)
constexpr __host__ __device__ int parts_of(int slices) {
  const int many = slices > 256 ? 64 : slices > 128 ? 32 : slices > 64 ? 16 : 8;
  return slices > 32 ? many : slices > 16 ? 4 : slices > 8 ? 2 : 1;
}

template <class T>
struct AddPartialSums {
  using Sum = Accumulator<T>;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  using SumVector = Vector<Sum, kVector>;
  static constexpr int kMinBlocks = 4;  // the highest number without register spills

  struct Shared {
    SplitTile tile;
    ResolvedTile<T> place;
    SumVector partial[kAddThreads];          // each part's sums over its range of the K slices
    Sum result[kAddThreads * kVector];       // the finished elements of C
    int row[kAddThreads], col[kAddThreads];  // position of each vector in the tile
  };

  // The elements of the thread block's vectors, distributed so that adjacent threads have adjacent elements, as the epilogue expects.
  struct Elements {
    static constexpr int kElements = kVector;
    Shared& shared;
    int count;  // number of vectors

    __device__ static int index(int n) { return n * kAddThreads + thread_index(); }
    __device__ Sum& element(int n) const { return shared.result[index(n)]; }
    __device__ Location locate(Extent tile, int, int n) const {
      const int vector = index(n) / kVector;
      if (vector >= count) return {0, 0, false};
      const int row = shared.row[vector], col = shared.col[vector] + index(n) % kVector;
      return {row, col, col < tile.cols};
    }
  };

  __device__ __forceinline__ static void run(const KernelParameters& parameters, Shared& shared) {
    const Descriptors& plan = parameters.plan;
    if (!kCdna && plan.epilogues) {  // CDNA has no prefetch instruction
      prefetch_table<kAddThreads>(plan.epilogues, plan.num_problems, thread_index());
    }
    // Consecutive thread blocks work on different split tiles, so that one number, `turn`, tells which part of its tile a thread block
    // computes.
    const int index = static_cast<int>(block_index()) % plan.num_splits, turn = static_cast<int>(block_index()) / plan.num_splits;
    if (thread_index() < kWaveSize) {
      place(parameters, load_record(plan.splits + index), shared);
    }
    await_previous_kernel();
    block_barrier();
    if (shared.place.code == kNoCode) return;
    with_result<T>(shared.place.result_type(),
                   [&](auto out) __attribute__((always_inline)) { add_up<decltype(out)>(parameters, turn, shared); });
  }

 private:
  __device__ static void place(const KernelParameters& parameters, const SplitTile& tile, Shared& shared) {
    const TilePosition& at = tile.position;
    if (thread_index() == 0) shared.tile = tile, shared.place.code = kNoCode;
    wave_barrier();
    if (!has_its_sums(tile, parameters.sums)) return;
    place_tile<false, true, kC>(parameters, at, tile.c, {at.rows, at.cols, 0, false}, false, shared.place);
  }

  // Takes every parameters.split_blocks-th round of the tile, beginning with round `turn`. In each round the thread block finishes as many
  // vectors as a part has threads.
  template <class Out>
  __device__ static void add_up(const KernelParameters& parameters, int turn, Shared& shared) {
    const SplitTile& tile = shared.tile;
    const ResolvedTile<T>& place = shared.place;
    const Sum* const sums = static_cast<const Sum*>(parameters.sums.data) + tile.first;
    const int slices = tile.slices, parts = parts_of(slices), threads = kAddThreads / parts;  // threads in each part
    const int across = (place.cols + kVector - 1) / kVector, num_vectors = place.rows * across;
    const int part = thread_index() / threads, lane = thread_index() % threads;
    const int begin = static_cast<int>(int64_t{slices} * part / parts), end = static_cast<int>(int64_t{slices} * (part + 1) / parts);
    for (int from = turn * threads; from < num_vectors; from += parameters.split_blocks * threads) {
      const int vector = from + lane, row = vector / across, col = (vector - row * across) * kVector;
      if (vector < num_vectors) {
        shared.partial[thread_index()] = sum_of(sums + row * tile.pitch + col, begin, end, tile.slice_stride);
        if (part == 0) shared.row[lane] = row, shared.col[lane] = col;
      }
      block_barrier();
      const int count = num_vectors - from < threads ? num_vectors - from : threads;
      const Elements mine{shared, count};
#pragma unroll
      for (int n = 0; n < kVector; ++n) {
        const int element = Elements::index(n);
        if (element < count * kVector) mine.element(n) = total(shared, element, parts, threads);
      }
      if (place.fused) apply_epilogue<Out>(mine, place, 0);
      write_elements<Out>(mine, place, 0);
      if (place.mirror) {
        block_barrier();
        write_image<Out>(shared, count, across);
      }
      block_barrier();  // because the next round overwrites the shared arrays
    }
  }

  // Sums the slices [begin, end), in order. A vector may reach past the tile's columns into a row's padding.
  __device__ static SumVector sum_of(const Sum* first, int begin, int end, int64_t stride) {
    constexpr int kInFlight = 4;  // loads in flight; six at a time were slower on an H100 (docs/design/split-k.md, S3)
    SumVector sum;
#pragma unroll
    for (Sum& x : sum.element) x = nothing<Sum>();
#pragma unroll 1
    for (int slice = begin; slice < end; slice += kInFlight) {
      SumVector more[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (slice + i < end) more[i] = *reinterpret_cast<const SumVector*>(first + (slice + i) * stride);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (slice + i >= end) break;
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum.element[v] = sum.element[v] + more[i].element[v];
      }
    }
    return sum;
  }

  // Returns an element of C: the sum over the parts, in order.
  __device__ static Sum total(const Shared& shared, int element, int parts, int threads) {
    Sum sum = shared.partial[element / kVector].element[element % kVector];
#pragma unroll 4
    for (int part = 1; part < parts; ++part) sum = sum + shared.partial[part * threads + element / kVector].element[element % kVector];
    return sum;
  }

  // Stores the transpose of the vectors. Adjacent threads write adjacent elements of a row of the transpose, as far as the vectors make up
  // whole rows.
  template <class Out>
  __device__ static void write_image(const Shared& shared, int count, int across) {
    const MatrixView& c = shared.place.matrix[kC];
    const int rows = count % across == 0 ? count / across : 1, cols = count / rows;  // of vectors
    for (int i = thread_index(); i < count * kVector; i += kAddThreads) {
      const int vector = i % rows * cols + i / rows / kVector, within = i / rows % kVector;
      const int row = shared.row[vector], col = shared.col[vector] + within;
      if (col >= shared.place.cols) continue;
      narrow(shared.result[vector * kVector + within], static_cast<Out*>(shared.place.mirror)[col * c.row_stride + row * c.col_stride]);
    }
  }

  // Whether the partial sums lie inside the workspace, as whole vectors, and the slices do not overlap. Then the length of the workspace
  // bounds the number of slices.
  __device__ static bool has_its_sums(const SplitTile& tile, const Buffer& sums) {
    const int rows = tile.position.rows, cols = tile.position.cols;
    if (tile.slices < 1 || rows < 1 || cols < 1 || tile.pitch < cols || tile.slice_stride < 0 || tile.first < 0) return false;
    if (static_cast<int64_t>(rows) * tile.pitch > tile.slice_stride) return false;
    if ((tile.first | tile.pitch | tile.slice_stride) % kVector != 0 || tile.first >= sums.elements) return false;
    const uint64_t end = static_cast<uint64_t>(tile.first) +
                         static_cast<uint64_t>(tile.slices - 1) * static_cast<uint32_t>(tile.slice_stride) +
                         static_cast<uint64_t>(rows) * static_cast<uint32_t>(tile.pitch);
    return end <= static_cast<uint64_t>(sums.elements);
  }
};

}  // namespace vbgemm
