// Writes a tile's sums through shared memory to C: adds the K slices in order, applies the epilogue, and converts to the result type.
#pragma once
#include "gpu/tensor/tensor_product.h"
#include "gpu/tile/finish.h"

namespace vbgemm {

// Each thread writes its accumulators to its K slice's plane of shared memory.
template <class Traits>
__device__ inline void keep_sums(const Sums<Traits>& sums, typename Traits::Sum* planes) {
  using Sum = typename Traits::Sum;
  const WarpPosition<Traits> wave(thread_index() / kLanes);
  const int lane = thread_index() % kLanes, g = lane / 4, t = lane % 4;
  constexpr int kDown = Traits::kRowInterleave, kAcross = Traits::kColInterleave;
  Sum* const plane = planes + wave.slice * Traits::kPlane + wave.row * Traits::kPitchInSums + wave.col;
#pragma unroll
  for (int half = 0; half < 2 * Traits::kBlocksM; ++half) {
    Sum* const line = plane + interleaved<kDown>(half, g) * Traits::kPitchInSums;
    const auto sum = [&](int block, int n) { return sums[half / 2][block][half % 2 * 2 + n]; };  // column 2t + n of a block
    if constexpr (kAcross == 2) {
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; j += 2) {
        *reinterpret_cast<Vector<Sum, 4>*>(line + 8 * j + 4 * t) = {{sum(j, 0), sum(j + 1, 0), sum(j, 1), sum(j + 1, 1)}};
      }
    } else if constexpr (kAcross == 1) {
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; ++j) *reinterpret_cast<Vector<Sum, 2>*>(line + 8 * j + 2 * t) = {{sum(j, 0), sum(j, 1)}};
    } else {
      static_assert(kAcross == 4);
#pragma unroll
      for (int j = 0; j < Traits::kBlocksN; j += 4) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const Vector<Sum, 4> four = {{sum(j, n), sum(j + 1, n), sum(j + 2, n), sum(j + 3, n)}};
          *reinterpret_cast<Vector<Sum, 4>*>(line + interleaved<4>(j, 2 * t + n)) = four;
        }
      }
    }
  }
}

// Like keep_sums, for a transposed product: a thread's rows of the product are adjacent columns of C.
template <class Traits>
__device__ inline void keep_transposed_sums(const Sums<Traits>& sums, typename Traits::Sum* plane) {
  using Sum = typename Traits::Sum;
  constexpr int kAdjacent = Traits::kColInterleave;
  const int lane = thread_index() % kLanes, g = lane / 4, t = lane % 4;
  Sum* const first = plane + 2 * t * Traits::kPitchInSums + WarpPosition<Traits>(thread_index() / kLanes).col + kAdjacent * g;
#pragma unroll
  for (int block = 0; block < Traits::kBlocksN; ++block) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      Vector<Sum, kAdjacent> neighbours;
#pragma unroll
      for (int half = 0; half < kAdjacent; ++half) neighbours.element[half] = sums[half / 2][block][half % 2 * 2 + n];
      *reinterpret_cast<Vector<Sum, kAdjacent>*>(first + (8 * block + n) * Traits::kPitchInSums) = neighbours;
    }
  }
}

// One thread's view of the thread block's sums: kWidth adjacent elements of every kStep-th row, in the same columns in each of these rows.
// Adjacent threads have adjacent elements.
template <class Traits, int kWidth>
struct Planes {
  using Sum = typename Traits::Sum;
  static constexpr int kAcross = Traits::kCols / kWidth, kStep = Traits::kThreads / kAcross;
  static_assert(Traits::kThreads % kAcross == 0 && Traits::kRows % kStep == 0);

  int row, col;
  Sum* first;

  __device__ Planes(int thread, Sum* planes)
      : row(thread / kAcross), col(thread % kAcross * kWidth), first(planes + row * Traits::kPitchInSums + col) {}

  // The thread's n-th elements in the first plane.
  __device__ Vector<Sum, kWidth>& elements(int n) const {
    return *reinterpret_cast<Vector<Sum, kWidth>*>(first + n * kStep * Traits::kPitchInSums);
  }

  // The number of the thread's rows that lie in the tile.
  template <class T>
  __device__ int count(const ResolvedTile<T>& place) const {
    return col < place.cols ? (place.rows - row + kStep - 1) / kStep : 0;
  }
};

// Returns elements of the first plane plus the corresponding elements of the planes of the other K slices, in order.
template <class Traits, int kWidth, class Sum>
__device__ inline Vector<Sum, kWidth> total(const Vector<Sum, kWidth>& first, int slices) {
  Vector<Sum, kWidth> sum = first;
  if constexpr (Traits::kSplit > 1) {
#pragma unroll
    for (int slice = 1; slice < Traits::kSplit; ++slice) {
      if (slice >= slices) break;
      const auto& more = *reinterpret_cast<const Vector<Sum, kWidth>*>(first.element + slice * Traits::kPlane);
#pragma unroll
      for (int v = 0; v < kWidth; ++v) sum.element[v] += more.element[v];
    }
  }
  return sum;
}

// Applies the epilogue, except for its activation, to the thread's sums in `count` rows, and writes the results to the first plane.
template <class Out, int kWidth, class Traits, class T>
__device__ inline void scale_sums(const ResolvedTile<T>& place, const Planes<Traits, kWidth>& mine, int count) {
  using Sum = typename Traits::Sum;
  using Sums = Vector<Sum, kWidth>;
  using OutVector = Vector<Out, kWidth>;
  // Loads in flight: fewer for 1-byte operands, whose results may have several types.
  constexpr int kInFlight = (kWidth == 1 ? 32 / static_cast<int>(sizeof(Sum)) : 4) / (sizeof(T) == 1 ? 2 : 1);
  const MatrixView source = place.matrix[kSource], bias = place.matrix[kBias];
  const Sum alpha = place.alpha, beta = place.beta;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kInFlight) {
    const int row = mine.row + begin * mine.kStep;
    Sums rest[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
#pragma unroll
      for (Sum& x : rest[n].element) x = nothing<Sum>();
      if (!bias.first || begin + n >= count) continue;
      const OutVector read = *reinterpret_cast<const OutVector*>(bias.template at<Out>(row + n * mine.kStep, mine.col));
#pragma unroll
      for (int v = 0; v < kWidth; ++v) rest[n].element[v] = widen(read.element[v]);
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      if (!source.first || begin + n >= count) continue;
      const OutVector read = *reinterpret_cast<const OutVector*>(source.template at<Out>(row + n * mine.kStep, mine.col));
#pragma unroll
      for (int v = 0; v < kWidth; ++v) rest[n].element[v] = multiply_add(beta, widen(read.element[v]), rest[n].element[v]);
    }
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      if (begin + n >= count) break;
      Sums sum = total<Traits>(mine.elements(begin + n), Traits::kSplit);
#pragma unroll
      for (int v = 0; v < kWidth; ++v) sum.element[v] = scale_sum(alpha, sum.element[v], rest[n].element[v]);
      mine.elements(begin + n) = sum;
    }
  }
}

// Applies the activation to the values that scale_sums wrote.
template <int kWidth, class Traits, class T>
__device__ inline void activate_sums(const ResolvedTile<T>& place, const Planes<Traits, kWidth>& mine, int count) {
  using Sum = typename Traits::Sum;
  if (place.activation == Activation::none) return;
#pragma unroll 1
  for (int n = 0; n < count * kWidth; ++n) {
    Sum& x = mine.elements(n / kWidth).element[n % kWidth];
    x = activate(place.activation, x);
  }
}

// Applies the epilogue to the sums and writes the results to the first plane.
template <class Out, int kWidth, class Traits, class T, class Sum>
__device__ inline void finish_sums(const ResolvedTile<T>& place, Sum* planes) {
  const Planes<Traits, kWidth> mine(thread_index(), planes);
  const int count = mine.count(place);
  scale_sums<Out>(place, mine, count);
  activate_sums(place, mine, count);
}

// Stores the thread's sums in `count` rows, each as the sum of its K slices.
template <class Out, int kWidth, class Traits, class T>
__device__ inline void store_elements(const ResolvedTile<T>& place, const Planes<Traits, kWidth>& mine, int count, int slices) {
  using OutVector = Vector<Out, kWidth>;
  const MatrixView& c = place.matrix[kC];
  const int64_t step = int64_t{mine.kStep} * c.row_stride;
  Out* to = c.at<Out>(mine.row, mine.col);
#pragma unroll sizeof(Out) == 1 ? 1 : 4  // rounding to 8 bits takes several instructions
  for (int n = 0; n < count; ++n, to += step) {
    const auto sum = total<Traits>(mine.elements(n), slices);
    OutVector result;
#pragma unroll
    for (int v = 0; v < kWidth; ++v) narrow(sum.element[v], result.element[v]);
    *reinterpret_cast<OutVector*>(to) = result;
  }
}

// Stores the sums of `slices` planes, kWidth elements at a time.
template <class Out, int kWidth, class Traits, class T, class Sum>
__device__ inline void store_planes_by(const ResolvedTile<T>& place, Sum* planes, int slices) {
  const Planes<Traits, kWidth> mine(thread_index(), planes);
  store_elements<Out>(place, mine, mine.count(place), slices);
}

// Stores the tile's transpose. Adjacent threads have adjacent rows of the tile, which are adjacent elements in a row of the transpose.
template <class Out, class Traits, class T, class Sum>
__device__ inline void store_mirror(const ResolvedTile<T>& place, const Sum* planes, int slices) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  const int row = thread_index() % Traits::kRows;
  const int64_t row_stride = place.matrix[kC].row_stride;
  Out* const to = static_cast<Out*>(place.mirror) + row * place.matrix[kC].col_stride;
  const int cols = row < place.rows ? place.cols : 0;
  for (int col = thread_index() / Traits::kRows * kVector; col < cols; col += Traits::kThreads / Traits::kRows * kVector) {
    const auto sum = total<Traits>(*reinterpret_cast<const Vector<Sum, kVector>*>(planes + row * Traits::kPitchInSums + col), slices);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (col + v < cols) narrow(sum.element[v], to[(col + v) * row_stride]);
    }
  }
}

// Applies the epilogue, if there is one, and stores the results, kWidth elements at a time.
template <class Out, int kWidth, class Traits, class T, class Sum>
__device__ inline void finish_and_store(const ResolvedTile<T>& place, Sum* planes) {
  const int slices = place.fused ? 1 : Traits::kSplit;  // the epilogue leaves its results in the first plane
  if (place.fused) finish_sums<Out, kWidth, Traits>(place, planes);
  store_planes_by<Out, kWidth, Traits>(place, planes, slices);
}

template <class Out, class Traits, class T, class Sum>
__device__ inline void store_planes_as(const ResolvedTile<T>& place, Sum* planes) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  const auto vectorizes = [&](const MatrixView& x) { return !x.first || takes_vectors<Out, kVector>(x, place.cols); };
  if (vectorizes(place.matrix[kC]) && (!place.fused || (vectorizes(place.matrix[kSource]) && vectorizes(place.matrix[kBias])))) {
    finish_and_store<Out, kVector, Traits>(place, planes);
  } else {
    finish_and_store<Out, 1, Traits>(place, planes);
  }
  if (!place.mirror) return;
  if (place.fused) block_barrier();  // because threads are about to read each other's results
  store_mirror<Out, Traits>(place, planes, place.fused ? 1 : Traits::kSplit);
}

// Like store_planes_as, for 1-byte operands, whose results may have up to four types. Code that does not depend on the type is compiled
// once.
template <class Traits, class T, class Sum>
__device__ inline void store_planes_of_bytes(const ResolvedTile<T>& place, Sum* planes) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Sum));
  const int thread = thread_index(), slices = place.fused ? 1 : Traits::kSplit;
  const Planes<Traits, kVector> by_vectors(thread, planes);
  const Planes<Traits, 1> by_elements(thread, planes);
  bool vectors = false;
  with_one_of<Traits::kResults>(place.result_type(), [&](auto out) __attribute__((always_inline)) {
    using Out = decltype(out);
    const auto vectorizes = [&](const MatrixView& x) { return !x.first || takes_vectors<Out, kVector>(x, place.cols); };
    vectors = vectorizes(place.matrix[kC]) && (!place.fused || (vectorizes(place.matrix[kSource]) && vectorizes(place.matrix[kBias])));
    if (place.fused && vectors) scale_sums<Out>(place, by_vectors, by_vectors.count(place));
    if (place.fused && !vectors) scale_sums<Out>(place, by_elements, by_elements.count(place));
  });
  if (place.fused && vectors) activate_sums(place, by_vectors, by_vectors.count(place));
  if (place.fused && !vectors) activate_sums(place, by_elements, by_elements.count(place));
  with_one_of<Traits::kResults>(place.result_type(), [&](auto out) __attribute__((always_inline)) {
    using Out = decltype(out);
    if (vectors) {
      store_planes_by<Out, kVector, Traits>(place, planes, slices);
    } else {
      store_planes_by<Out, 1, Traits>(place, planes, slices);
    }
    if (!place.mirror) return;
    if (place.fused) block_barrier();  // because threads are about to read each other's results
    store_mirror<Out, Traits>(place, planes, slices);
  });
}

template <class Traits, class T, class Sum>
__device__ inline void store_planes(const ResolvedTile<T>& place, Sum* planes) {
  if constexpr (sizeof(T) == 1) {
    store_planes_of_bytes<Traits>(place, planes);
  } else if (place.stores_sums()) {
    store_planes_as<Sum, Traits>(place, planes);
  } else {
    store_planes_as<T, Traits>(place, planes);
  }
}

// Whether results go from registers to C: those of 2-byte types, unless warps have to add their K slices or have too few columns.
template <class Traits>
inline constexpr bool kStoresFromRegisters = sizeof(typename Traits::T) == 2 && Traits::kSplit == 1 && Traits::kBlocksN % 4 == 0;

// Exchanges values so that the lanes that differ in the bit kDistance hold two rows of a matrix where they held two columns.
template <int kDistance>
__device__ inline void transpose_pair(uint32_t& first, uint32_t& second, int lane) {
  const bool upper = lane & kDistance;
  uint32_t other = upper ? first : second;
  shfl_xor<kDistance>(other);
  if (upper) {
    first = other;
  } else {
    second = other;
  }
}

// Stores the sums, rounded to T, in 16-byte vectors. The accumulators of four MMAs are 4 x 4 pairs of adjacent columns in each row, a
// column of which belongs to one lane; transposed among the row's four lanes, they are one vector a lane. This takes neither a barrier nor
// shared memory (docs/design/latency.md, L17).
template <class Traits, class T>
__device__ inline void store_from_registers(const ResolvedTile<T>& place, const Sums<Traits>& sums) {
  static_assert(Traits::kRowInterleave == 1 && Traits::kColInterleave == 1 && !Traits::kTransposed);
  const WarpPosition<Traits> wave(thread_index() / kLanes);
  const int lane = thread_index() % kLanes, row = wave.row + lane / 4, col = wave.col + lane % 4 * 8;
  const int rows = place.rows - row, cols = place.cols - col;
  const int64_t step = 8 * place.matrix[kC].row_stride;
  T* to = place.matrix[kC].template at<T>(row, col);
#pragma unroll
  for (int half = 0; half < 2 * Traits::kBlocksM; ++half, to += step) {
#pragma unroll
    for (int j = 0; j < Traits::kBlocksN; j += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Vector<T, 2> pair;
        narrow(sums[half / 2][j + n][half % 2 * 2], pair.element[0]);
        narrow(sums[half / 2][j + n][half % 2 * 2 + 1], pair.element[1]);
        std::memcpy(&pairs[n], &pair, sizeof pair);
      }
      transpose_pair<1>(pairs[0], pairs[1], lane);
      transpose_pair<1>(pairs[2], pairs[3], lane);
      transpose_pair<2>(pairs[0], pairs[2], lane);
      transpose_pair<2>(pairs[1], pairs[3], lane);
      store_bytes_if<16>(8 * half < rows && 8 * j < cols, to + 8 * j, pairs);
    }
  }
}

// Whether a tile's sums are only rounded to T and stored in whole vectors. It has no branches.
template <int kVector, class T>
__device__ inline bool is_stored_in_vectors(const ResolvedTile<T>& place) {
  const MatrixView& c = place.matrix[kC];
  const bool aligned = (c.col_stride == 1) & ((c.row_stride | place.cols) % kVector == 0) &
                       (reinterpret_cast<uintptr_t>(c.first) % (kVector * sizeof(T)) == 0);
  return aligned & !place.fused & !place.mirror & (place.result_type() == kDTypeOf<T>);
}

// Puts the sums in place of the operands in shared memory, where all threads can read them.
template <class Traits, class T>
__device__ inline typename Traits::Sum* share_sums(const Sums<Traits>& sums, T* shared) {
  auto* const planes = reinterpret_cast<typename Traits::Sum*>(shared);
  block_barrier();  // all threads have read the last step's operands
  if constexpr (Traits::kTransposed) {
    keep_transposed_sums<Traits>(sums, planes);
  } else {
    keep_sums<Traits>(sums, planes);
  }
  block_barrier();  // all sums have been written
  return planes;
}

// The sums in a vector of C.
template <class Traits>
inline constexpr int kSumsInVector = kVectorBytes / static_cast<int>(sizeof(typename Traits::Sum));

// Stores a tile's sums, using the operands' shared memory.
template <class Traits, class T>
__device__ inline void store_sums(const ResolvedTile<T>& place, const Sums<Traits>& sums, T* shared) {
  // The common cases come first and end the thread block, because a jump over the other code costs an instruction fetch.
  if constexpr (kStoresFromRegisters<Traits>) {
    if (is_stored_in_vectors<8>(place)) {
      store_from_registers<Traits>(place, sums);
      leave_after_last(place);
      return;
    }
  }
  auto* const planes = share_sums<Traits>(sums, shared);
  constexpr int kVector = kSumsInVector<Traits>;
  if (sizeof(T) > 1 && is_stored_in_vectors<kVector>(place)) {
    store_planes_by<T, kVector, Traits>(place, planes, Traits::kSplit);
    leave_after_last(place);
    return;
  }
  store_planes<Traits>(place, planes);
}

}  // namespace vbgemm
