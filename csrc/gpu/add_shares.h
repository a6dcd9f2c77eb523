// Split K, the second part: adds up the shares that the tile kernels have left among the call's sums, and finishes C as they would.
#pragma once
#include "epilogue.h"
#include "tile_place.h"
#include "tile_store.h"

namespace vbgemm {

inline constexpr int kAddThreads = 256;

// How many blocks work on each split tile, of `num_splits` that have `num_sums` sums among them: so many that a thread of one with the
// average number has three vectors of four sums to load. Where there are many, more blocks would wait for each other and not for memory.
constexpr int add_blocks(int64_t num_splits, int64_t num_sums) {
  constexpr int64_t kSumsOfBlock = kAddThreads * 4 * 3, kMost = 64;
  const int64_t blocks = num_sums / num_splits / kSumsOfBlock;
  return static_cast<int>(blocks < 1 ? 1 : blocks > kMost ? kMost : blocks);
}

// How many parts of a block's threads work on the same elements, each on a range of the shares: more where there are many. The order of the
// additions depends on nothing else.
constexpr __host__ __device__ int parts_of(int shares) { return shares > 32 ? 8 : shares > 16 ? 4 : shares > 8 ? 2 : 1; }

template <class T>
struct AddShares {
  using Sum = Accumulator<T>;
  static constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  using Piece = Vector<Sum, kVector>;
  static constexpr int kMinBlocks = 3;  // as many as fit without spills

  struct Shared {
    Piece piece[kAddThreads];
  };

  // Neighbouring elements of one thread, as the epilogue sees them.
  struct Neighbours {
    static constexpr int kElements = kVector;
    Piece* piece;
    int row, col;

    __device__ Sum& element(int n) const { return piece->element[n]; }
    template <class Action>
    __device__ void locate(Extent tile, int, int n, const Action& action) const {
      if (col + n < tile.cols) action(row, col + n);
    }
  };

  __device__ __forceinline__ static void run(const KernelParameters& parameters, Shared& shared) {
    const Descriptors& plan = parameters.plan;
    await_previous_kernel();
    // Block by block the splits take turns, so that one number is all that has to be kept of a block's place.
    const int index = static_cast<int>(block_index()) % plan.num_splits;
    const SplitTile tile = load_record(plan.splits + index);
    TilePlace<T> place;
    if (!has_its_sums(tile, parameters.sums) || !find_place(parameters, tile, place)) return;

    const int parts = parts_of(tile.shares), threads = kAddThreads / parts;  // of a part
    const int across = (tile.cols + kVector - 1) / kVector, pieces = tile.rows * across;
    const int part = thread_index() / threads, lane = thread_index() % threads;
    for (int from = static_cast<int>(block_index()) / plan.num_splits * threads; from < pieces; from += parameters.num_blocks * threads) {
      const int piece = from + lane, row = piece / across, col = piece % across * kVector;
      Piece& mine = shared.piece[thread_index()];
      if (piece < pieces) {
        const Sum* const first = static_cast<const Sum*>(parameters.sums.data) + tile.first + row * tile.pitch + col;
        const int begin = static_cast<int>(int64_t{tile.shares} * part / parts),
                  end = static_cast<int>(int64_t{tile.shares} * (part + 1) / parts);
        mine = col + kVector <= tile.cols ? sum_of<Piece>(first, begin, end, tile.share_stride)
                                          : sum_of_some(first, begin, end, tile.share_stride, tile.cols - col);
      }
      block_barrier();
      if (part == 0 && piece < pieces) {
        for (int other = 1; other < parts; ++other) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) mine.element[v] = mine.element[v] + shared.piece[other * threads + lane].element[v];
        }
        const Neighbours neighbours{&mine, row, col};
        if (sizeof(T) < sizeof(Sum) && place.wide_results) {
          finish<Sum>(neighbours, place);
        } else {
          finish<T>(neighbours, place);
        }
      }
      if (place.mirror) {
        block_barrier();
        if (sizeof(T) < sizeof(Sum) && place.wide_results) {
          write_image<Sum>(shared, place, from, threads, across);
        } else {
          write_image<T>(shared, place, from, threads, across);
        }
      }
      block_barrier();  // the next piece takes this one's place
    }
  }

 private:
  template <class Out>
  __device__ static void finish(const Neighbours& neighbours, const TilePlace<T>& place) {
    if (place.fused) apply_epilogue<Out>(neighbours, place, 0);
    write_elements<Out>(neighbours, place, 0);
  }

  // The transpose of the pieces from `from` on, which lie in shared memory: neighbouring threads write what is neighbouring in a row of the
  // image, as far as the pieces are whole rows.
  template <class Out>
  __device__ static void write_image(const Shared& shared, const TilePlace<T>& place, int from, int count, int across) {
    const MatrixView c = place.matrix[kC];
    const int rows = count % across == 0 ? count / across : 1, cols = count / rows * kVector;
    for (int i = thread_index(); i < count * kVector; i += kAddThreads) {
      const int piece = i % rows * (cols / kVector) + i / rows / kVector, at = from + piece;
      const int row = at / across, col = at % across * kVector + i / rows % kVector;
      if (row < place.rows && col < place.cols) {
        narrow(shared.piece[piece].element[i / rows % kVector], static_cast<Out*>(place.mirror)[col * c.row_stride + row * c.col_stride]);
      }
    }
  }

  // Shares [begin, end), in order.
  template <class Loaded>
  __device__ static Piece sum_of(const Sum* first, int begin, int end, int64_t stride) {
    constexpr int kCount = sizeof(Loaded) / sizeof(Sum);
    Piece sum;
#pragma unroll
    for (Sum& x : sum.element) x = nothing<Sum>();
    const Sum* at = first + begin * stride;
#pragma unroll 8
    for (int share = begin; share < end; ++share, at += stride) {
      const Loaded more = *reinterpret_cast<const Loaded*>(at);
#pragma unroll
      for (int v = 0; v < kCount; ++v) sum.element[v] = sum.element[v] + more.element[v];
    }
    return sum;
  }

  // The same of a piece of which only `count` elements are there.
  __device__ static Piece sum_of_some(const Sum* first, int begin, int end, int64_t stride, int count) {
    Piece sum;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (v < count) sum.element[v] = sum_of<Vector<Sum, 1>>(first + v, begin, end, stride).element[0];
    }
    return sum;
  }

  // Whether all that will be read lies inside the sums, at multiples of a vector, and the shares beside each other: then the buffer's
  // length bounds their number.
  __device__ static bool has_its_sums(const SplitTile& tile, const Buffer& sums) {
    if (tile.shares < 1 || tile.rows < 1 || tile.cols < 1 || tile.pitch < tile.cols || tile.share_stride < 0 || tile.first < 0)
      return false;
    if (static_cast<int64_t>(tile.rows) * tile.pitch > tile.share_stride) return false;
    if ((tile.first | tile.pitch | tile.share_stride) % kVector != 0 || tile.first >= sums.elements) return false;
    const uint64_t last = static_cast<uint64_t>(tile.first) +
                          static_cast<uint64_t>(tile.shares - 1) * static_cast<uint32_t>(tile.share_stride) +
                          static_cast<uint64_t>(tile.rows - 1) * static_cast<uint32_t>(tile.pitch) + static_cast<uint32_t>(tile.cols - 1);
    return last < static_cast<uint64_t>(sums.elements);
  }

  // Fills in C and the epilogue. False where one of them would lie outside its buffer.
  __device__ static bool find_place(const KernelParameters& parameters, const SplitTile& tile, TilePlace<T>& place) {
    const Descriptors& plan = parameters.plan;
    const int bytes = static_cast<int>(parameters.wide_results ? sizeof(Sum) : sizeof(T));
    const auto find = [&](const Part& part, int first_buffer, MatrixView& view) {
      if (part.buffer < first_buffer || part.buffer >= parameters.num_buffers) return false;
      const Buffer buffer = parameters.buffer(part.buffer);
      view = view_of(buffer.data, bytes, part, tile.cols);
      return lies_inside(part, tile.rows, tile.cols, buffer.elements);
    };
    place.rows = tile.rows;
    place.cols = tile.cols;
    place.mirror = nullptr;
    place.wide_results = parameters.wide_results;
    place.fused = plan.epilogues != nullptr;
    if (!find(tile.c, parameters.num_operands, place.matrix[kC])) return false;
    if (tile.mirrored) {
      const Part image = mirrored_part(tile.c, tile.row, tile.col);
      const Buffer buffer = parameters.buffer(tile.c.buffer);
      if (!lies_inside(image, tile.cols, tile.rows, buffer.elements)) return false;
      place.mirror = static_cast<char*>(const_cast<void*>(buffer.data)) + image.offset * bytes;
    }
    if (!plan.epilogues) return true;
    if (tile.problem < 0 || tile.problem >= plan.num_problems) return false;
    const Epilogue* const epilogue = plan.epilogues + tile.problem;
    const Problem problem = load_record(plan.problems + tile.problem);
    const auto find_addend = [&](const Operand& x, MatrixView& view) {
      view.first = nullptr;
      return x.buffer < 0 || find(part_of(x, problem, tile.batch, tile.row, tile.col), 0, view);
    };
    if (!find_addend(load_record(&epilogue->source), place.matrix[kSource])) return false;
    if (!find_addend(load_record(&epilogue->bias), place.matrix[kBias])) return false;
    place.alpha = value_of<Sum>(parameters, load_record(&epilogue->alpha));
    place.beta = value_of<Sum>(parameters, load_record(&epilogue->beta));
    if (is_zero(place.beta)) place.matrix[kSource].first = nullptr;
    place.activation = epilogue->activation;
    return true;
  }
};

}  // namespace vbgemm
