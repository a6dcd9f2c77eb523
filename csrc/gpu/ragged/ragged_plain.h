// The plain kernel of ragged products, for every element type, alignment and device, by ordinary multiply-adds. It walks the groups in the
// same way as the pipelined kernel (ragged_tile.h), which exists for 16-bit types on sm_90a only.
#pragma once
#include <new>

#include "gpu/ragged/ragged_walk.h"
#include "gpu/tile/epilogue.h"

namespace vbgemm {

struct RaggedPlainParameters {
  RaggedSizes sizes;
  const void *lhs, *rhs, *bias, *row_scale;
  void* out;
  Activation activation;
  int32_t num_blocks;
  bool transpose_rhs, wide_results;
};

inline constexpr int kRaggedPlainThreads = 256;

// A thread holds kEachSums x kEachSums sums, whose rows and columns are 16 apart.
template <class Element, int kEachSums>
struct RaggedPlainCut {
  using T = Element;
  using Sum = Accumulator<T>;
  static constexpr int kEach = kEachSums, kTile = 16 * kEach, kDepth = 16, kThreads = kRaggedPlainThreads;
  using Units = RaggedUnits<kTile, kTile, 1>;
};

template <class Cut>
struct RaggedPlainShared {
  using Walk = RaggedWalk<typename Cut::Units>;
  typename Cut::T a[Cut::kDepth][Cut::kTile + 1], b[Cut::kDepth][Cut::kTile + 1];
  RaggedTile tile;
  // The state of the walk, one for each lane of the first warp. It is kept here because the products need the registers.
  alignas(Walk) unsigned char walk[kWaveSize][sizeof(Walk)];
};

// One operand of a tile: the address of its first element, its strides, and its extent.
template <class Cut>
struct RaggedPlainOperand {
  using T = typename Cut::T;
  const T* first;
  int64_t item_stride, depth_stride;  // one of the two is 1
  int items, depth;
  // 0, or the distance between the two halves of a gated product's B, in items: half of the tile's columns are of each.
  int halves_apart = 0;

  // The place within a K step of this thread's i-th element. Adjacent threads load adjacent elements of global memory.
  __device__ void place(int i, int& item, int& deep) const {
    const int index = thread_index() + i * Cut::kThreads;
    if (depth_stride == 1) {
      item = index / Cut::kDepth, deep = index % Cut::kDepth;
    } else {
      item = index % Cut::kTile, deep = index / Cut::kTile;
    }
  }
  __device__ void load(int from, T (&to)[Cut::kEach]) const {
#pragma unroll
    for (int i = 0; i < Cut::kEach; ++i) {
      int item, deep;
      place(i, item, deep);
      int64_t at = item;
      if (halves_apart && item >= Cut::kTile / 2) item -= Cut::kTile / 2, at = int64_t{item} + halves_apart;
      to[i] = T{};
      if (item < items && from + deep < depth) to[i] = first[at * item_stride + (from + deep) * depth_stride];
    }
  }
  __device__ void keep(const T (&from)[Cut::kEach], T (&to)[Cut::kDepth][Cut::kTile + 1]) const {
#pragma unroll
    for (int i = 0; i < Cut::kEach; ++i) {
      int item, deep;
      place(i, item, deep);
      to[deep][item] = from[i];
    }
  }
};

template <class Cut>
__device__ inline void multiply_plain(const RaggedPlainOperand<Cut>& a, const RaggedPlainOperand<Cut>& b, RaggedPlainShared<Cut>& shared,
                                      typename Cut::Sum (&sums)[Cut::kEach][Cut::kEach]) {
  const int row = thread_index() / 16, col = thread_index() % 16;
  typename Cut::T next_a[Cut::kEach], next_b[Cut::kEach];
  a.load(0, next_a);
  b.load(0, next_b);
  for (int from = 0; from < a.depth; from += Cut::kDepth) {
    a.keep(next_a, shared.a);
    b.keep(next_b, shared.b);
    block_barrier();
    a.load(from + Cut::kDepth, next_a);
    b.load(from + Cut::kDepth, next_b);
#pragma unroll
    for (int deep = 0; deep < Cut::kDepth; ++deep) {
      typename Cut::Sum x[Cut::kEach], y[Cut::kEach];
#pragma unroll
      for (int i = 0; i < Cut::kEach; ++i) x[i] = widen(shared.a[deep][row + 16 * i]), y[i] = widen(shared.b[deep][col + 16 * i]);
#pragma unroll
      for (int i = 0; i < Cut::kEach; ++i) {
#pragma unroll
        for (int j = 0; j < Cut::kEach; ++j) sums[i][j] = multiply_add(x[i], y[j], sums[i][j]);
      }
    }
    block_barrier();
  }
}

template <class Cut>
__device__ inline void store_plain(const RaggedPlainParameters& parameters, const RaggedTile& tile,
                                   const typename Cut::Sum (&sums)[Cut::kEach][Cut::kEach]) {
  using T = typename Cut::T;
  using Sum = typename Cut::Sum;
  const RaggedSizes& sizes = parameters.sizes;
  const int64_t first = sizes.contraction ? int64_t{tile.matrix} * sizes.k + tile.row : tile.row;
  const bool finishes = !sizes.contraction && tile.depth > 0, wide = parameters.wide_results;
  const auto with_bias = [&](Sum x, int col) {
    if (!finishes || !parameters.bias) return x;
    const int64_t place = int64_t{tile.matrix} * sizes.columns() + tile.col + col;
    return x + (wide ? static_cast<const Sum*>(parameters.bias)[place] : widen(static_cast<const T*>(parameters.bias)[place]));
  };
#pragma unroll
  for (int i = 0; i < Cut::kEach; ++i) {
    const int row = thread_index() / 16 + 16 * i;
#pragma unroll
    for (int j = 0; j < Cut::kEach; ++j) {
      const int col = thread_index() % 16 + 16 * j;
      if (row >= tile.rows || col >= lesser(tile.cols, sizes.gated ? Cut::kTile / 2 : Cut::kTile)) continue;
      Sum x = with_bias(sums[i][j], col);
      if (finishes) {
        x = activate(parameters.activation, x);
        if constexpr (!kIsComplex<Sum>) {
          // The other half of the tile's columns; where j is one of them, the thread has left the loop.
          if (sizes.gated) x = x * with_bias(sums[i][(j + Cut::kEach / 2) % Cut::kEach], sizes.n + col);
          if (parameters.row_scale) x = x * static_cast<const Sum*>(parameters.row_scale)[tile.row + row];
        }
      }
      const int64_t place = (first + row) * sizes.n + tile.col + col;
      if (wide) {
        static_cast<Sum*>(parameters.out)[place] = x;
      } else {
        narrow(x, static_cast<T*>(parameters.out)[place]);
      }
    }
  }
}

template <class Cut>
__device__ inline void run_ragged_plain(const RaggedPlainParameters& parameters, RaggedPlainShared<Cut>& shared) {
  using T = typename Cut::T;
  await_previous_kernel();
  const RaggedSizes& sizes = parameters.sizes;
  const int lane = thread_index() % kWaveSize;
  using Walk = RaggedWalk<typename Cut::Units>;
  Walk* const walk = reinterpret_cast<Walk*>(shared.walk[lane]);
  if (thread_index() < kWaveSize) new (walk) Walk(sizes, lane, 0);
  for (int unit = block_index();; unit += parameters.num_blocks) {
    if (thread_index() < kWaveSize) walk->find(unit, shared.tile);
    block_barrier();
    const RaggedTile tile = shared.tile;
    block_barrier();
    if (tile.depth < 0) return;
    typename Cut::Sum sums[Cut::kEach][Cut::kEach] = {};
    if (tile.depth > 0) {
      const T *lhs = static_cast<const T*>(parameters.lhs), *rhs = static_cast<const T*>(parameters.rhs);
      RaggedPlainOperand<Cut> a, b;
      if (sizes.contraction) {
        a = {lhs + int64_t{tile.first} * sizes.k + tile.row, 1, sizes.k, tile.rows, tile.depth};
        b = {rhs + int64_t{tile.first} * sizes.n + tile.col, 1, sizes.n, tile.cols, tile.depth};
      } else {
        const int columns = sizes.columns();
        const T* const matrix = rhs + int64_t{tile.matrix} * sizes.k * columns;
        a = {lhs + int64_t{tile.row} * sizes.k, sizes.k, 1, tile.rows, tile.depth};
        b = parameters.transpose_rhs ? RaggedPlainOperand<Cut>{matrix + int64_t{tile.col} * sizes.k, sizes.k, 1, tile.cols, tile.depth}
                                     : RaggedPlainOperand<Cut>{matrix + tile.col, 1, columns, tile.cols, tile.depth};
        b.halves_apart = sizes.gated ? sizes.n : 0;
      }
      multiply_plain<Cut>(a, b, shared, sums);
    }
    store_plain<Cut>(parameters, tile, sums);
  }
}

#define VBGEMM_DEFINE_RAGGED_PLAIN_KERNEL(name, T, each)                          \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kRaggedPlainThreads, 2) \
      name(VBGEMM_PARAMETERS(vbgemm::RaggedPlainParameters, parameters)) {        \
    VBGEMM_READ_PARAMETERS(vbgemm::RaggedPlainParameters, parameters);            \
    using Cut = vbgemm::RaggedPlainCut<T, each>;                                  \
    VBGEMM_SHARED(vbgemm::RaggedPlainShared<Cut>, shared);                        \
    vbgemm::run_ragged_plain<Cut>(parameters, shared);                            \
  }

}  // namespace vbgemm
