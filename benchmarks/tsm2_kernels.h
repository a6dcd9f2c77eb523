// The kernels of Rivera et al., "ISM2: Optimizing irregular-shaped matrix-matrix multiplication on GPUs", version by version, for
// tsm2_ablation.cu. They compute C[m x n] = A[m x k] B[k x n] with all three matrices column-major, as in the paper: a thread computes rows
// of C, and adjacent threads read adjacent elements of A. The names t1 (threads of a block, and rows of a part of B), t2 (columns of C that
// a thread computes at once), t3 (elements of a row of A that a thread loads at once) and tcf (rows that a thread computes) are the
// paper's. k is a multiple of t3, t1 one of t3 and of 32, and n one of t2. Loops are not unrolled except over t2 and t3, as in the paper.
#pragma once
#include <cstdint>

#include "gpu/arch/gpu_vendor.h"

namespace vbgemm::tsm2 {

constexpr int kMaxThreads = 256;

template <class T>
struct Product {
  const T *a, *b;
  T* c;
  int m, n, k;
  int threads, blocks;  // t1, and ceil(m / (t1 tcf))
  int adds;             // Algorithm 7 alone: C is read in the first part of K as well, as it is printed; else that part starts from zero
};

// A part of B, t1 x t2, column by column (section 3.4).
template <class T, int kCols>
struct alignas(16) PartOfB {
  T element[kMaxThreads * kCols];
};

// The first row of the thread block. (The wait for the previous kernel is one that the emulation asks for; here it waits for nothing, as
// the launches do not permit an early start.)
template <class T>
__device__ inline int64_t first_row(const Product<T>& x) {
  await_previous_kernel();
  return int64_t{block_index()} * x.threads;
}

// One row of B's part, which begins at step j of K, from global memory; zeros after B's end.
template <class T, int kCols>
__device__ inline void load_b(const Product<T>& x, int j, int col, T (&row)[kCols]) {
  const int k = j + thread_index();
#pragma unroll
  for (int i = 0; i < kCols; ++i) row[i] = k < x.k ? x.b[k + int64_t{col + i} * x.k] : T{0};
}

template <class T, int kCols>
__device__ inline void store_b(const Product<T>& x, const T (&row)[kCols], PartOfB<T, kCols>& part) {
#pragma unroll
  for (int i = 0; i < kCols; ++i) part.element[i * x.threads + thread_index()] = row[i];
}

// kAhead elements of a row of A from step k on. `row` points to its first element.
template <class T, int kAhead>
__device__ inline void load_a(const Product<T>& x, const T* row, int k, T (&a)[kAhead]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) a[i] = row[int64_t{k + i} * x.m];
}

// sum += the product of elements of A with B's part from its row `at` on.
template <class T, int kCols, int kAhead>
__device__ inline void multiply(const Product<T>& x, const T (&a)[kAhead], const PartOfB<T, kCols>& part, int at, T (&sum)[kCols]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int col = 0; col < kCols; ++col) sum[col] += a[i] * part.element[col * x.threads + at + i];
  }
}

template <class T, int kCols>
__device__ inline void store_c(const Product<T>& x, int64_t row, int col, const T (&sum)[kCols]) {
#pragma unroll
  for (int i = 0; i < kCols; ++i) x.c[row + int64_t{col + i} * x.m] = sum[i];
}

// V0, Algorithm 1: inner products; A is read n times.
template <class T>
__global__ void inner_products(VBGEMM_PARAMETERS(Product<T>, x)) {
  const int64_t row = first_row(x) + thread_index();
  if (row >= x.m) return;
#pragma unroll 1
  for (int col = 0; col < x.n; ++col) {
    T sum = 0;
#pragma unroll 1
    for (int k = 0; k < x.k; ++k) sum += x.a[row + int64_t{k} * x.m] * x.b[k + int64_t{col} * x.k];
    x.c[row + int64_t{col} * x.m] = sum;
  }
}

// V1, Algorithm 2: outer products; A is read once (n / t2 times).
template <class T, int kCols>
__global__ void outer_products(VBGEMM_PARAMETERS(Product<T>, x)) {
  const int64_t row = first_row(x) + thread_index();
  if (row >= x.m) return;
#pragma unroll 1
  for (int p = 0; p < x.n; p += kCols) {
    T sum[kCols] = {};
#pragma unroll 1
    for (int k = 0; k < x.k; ++k) {
      const T a = x.a[row + int64_t{k} * x.m];
#pragma unroll
      for (int i = 0; i < kCols; ++i) sum[i] += a * x.b[k + int64_t{p + i} * x.k];
    }
    store_c(x, row, p, sum);
  }
}

// V2, Algorithm 3: and B in shared memory.
template <class T, int kCols, int kAhead>
__global__ void shared_memory(VBGEMM_PARAMETERS(Product<T>, x)) {
  using Part = PartOfB<T, kCols>;
  VBGEMM_DYNAMIC_SHARED(Part, part);
  const int64_t row = first_row(x) + thread_index();
  const T* const from = x.a + (row < x.m ? row : x.m - 1);  // threads without a row take part in the barriers
#pragma unroll 1
  for (int p = 0; p < x.n; p += kCols) {
    T sum[kCols] = {}, b[kCols], a[kAhead];
#pragma unroll 1
    for (int j = 0; j < x.k; j += x.threads) {
      block_barrier();
      load_b(x, j, p, b);
      store_b(x, b, part);
      block_barrier();
      const int end = j + x.threads < x.k ? j + x.threads : x.k;
#pragma unroll 1
      for (int l = j; l < end; l += kAhead) {
        load_a(x, from, l, a);
        multiply(x, a, part, l - j, sum);
      }
    }
    if (row < x.m) store_c(x, row, p, sum);
  }
}

// V3, Algorithm 4: and the next elements of A and the next part of B are loaded while the current ones are multiplied. With fewer threads
// than rows it is Algorithm 6, the first optimization of ISM2. A thread always writes the same elements of B's part, so that no barrier is
// needed between two rows.
template <class T, int kCols, int kAhead>
__global__ void prefetched(VBGEMM_PARAMETERS(Product<T>, x)) {
  using Part = PartOfB<T, kCols>;
  VBGEMM_DYNAMIC_SHARED(Part, part);
#pragma unroll 1
  for (int64_t first = first_row(x); first < x.m; first += int64_t{x.blocks} * x.threads) {
    const int64_t row = first + thread_index();
    const T* const from = x.a + (row < x.m ? row : x.m - 1);
#pragma unroll 1
    for (int p = 0; p < x.n; p += kCols) {
      T sum[kCols] = {}, next_b[kCols], a[kAhead], next_a[kAhead] = {};
      load_b(x, 0, p, next_b);
      store_b(x, next_b, part);
      load_a(x, from, 0, a);
#pragma unroll 1
      for (int j = 0; j < x.k; j += x.threads) {
        block_barrier();
        load_b(x, j + x.threads, p, next_b);
        const int end = j + x.threads < x.k ? j + x.threads : x.k;
#pragma unroll 1
        for (int l = j; l < end; l += kAhead) {
          if (l + kAhead < x.k) load_a(x, from, l + kAhead, next_a);
          multiply(x, a, part, l - j, sum);
#pragma unroll
          for (int i = 0; i < kAhead; ++i) a[i] = next_a[i];
        }
        block_barrier();
        store_b(x, next_b, part);
      }
      if (row < x.m) store_c(x, row, p, sum);
    }
  }
}

// Algorithm 7, the second optimization of ISM2: each part of B is multiplied with all rows of a thread before the next one is loaded, so
// that sums pass through C. The sums of the next row, and its first elements of A, are loaded while the current ones are multiplied. (The
// printed algorithm does not say when the first elements of the next row are loaded.)
template <class T, int kCols, int kAhead>
__global__ void interleaved(VBGEMM_PARAMETERS(Product<T>, x)) {
  using Part = PartOfB<T, kCols>;
  VBGEMM_DYNAMIC_SHARED(Part, part);
  const int64_t first = first_row(x) + thread_index(), stride = int64_t{x.blocks} * x.threads;
#pragma unroll 1
  for (int p = 0; p < x.n; p += kCols) {
    T next_b[kCols], a[kAhead] = {}, next_a[kAhead] = {};
    load_b(x, 0, p, next_b);
    store_b(x, next_b, part);
    if (first < x.m) load_a(x, x.a + first, 0, a);
#pragma unroll 1
    for (int j = 0; j < x.k; j += x.threads) {
      block_barrier();
      load_b(x, j + x.threads, p, next_b);
      const int end = j + x.threads < x.k ? j + x.threads : x.k;
      const bool reads_c = x.adds || j > 0;
      T sum[kCols] = {}, next_sum[kCols] = {};
      const auto load_c = [&](int64_t row, T(&to)[kCols]) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) to[i] = reads_c && row < x.m ? x.c[row + int64_t{p + i} * x.m] : T{0};
      };
      load_c(first, sum);
#pragma unroll 1
      for (int64_t row = first; row < x.m; row += stride) {
        load_c(row + stride, next_sum);
#pragma unroll 1
        for (int l = j; l < end; l += kAhead) {
          const bool last = l + kAhead == end, next_row = row + stride < x.m;
          const T* const from = x.a + (!last ? row : next_row ? row + stride : first);
          const int k = !last ? l + kAhead : next_row ? j : end;
          if (k < x.k) load_a(x, from, k, next_a);
          multiply(x, a, part, l - j, sum);
#pragma unroll
          for (int i = 0; i < kAhead; ++i) a[i] = next_a[i];
        }
        store_c(x, row, p, sum);
#pragma unroll
        for (int i = 0; i < kCols; ++i) sum[i] = next_sum[i];
      }
      block_barrier();
      store_b(x, next_b, part);
    }
  }
}

// Not in the paper, for GPUs whose memory needs more bytes in flight than registers hold: V3 whose elements of A are copied asynchronously
// to shared memory, kStages times t3 elements of each row in flight. A thread reads only what it has copied. B's part is stored row by row
// and read by vectors of 16 bytes, where t2 permits.
template <class T, int kCols, int kAhead, int kStages>
struct alignas(16) Ring {
  T b[kMaxThreads * kCols], a[kMaxThreads * kAhead * kStages];
  static constexpr int bytes(int threads) { return threads * (kCols + kAhead * kStages) * static_cast<int>(sizeof(T)); }
};

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Numbers {
  T element[kWidth];
};

template <class T, int kCols, int kAhead, int kStages>
__global__ void in_flight(VBGEMM_PARAMETERS(Product<T>, x)) {
  constexpr int kVector = 16 / sizeof(T), kWidth = kCols < kVector ? kCols : kVector;
  using Shared = Ring<T, kCols, kAhead, kStages>;
  using Vector = Numbers<T, kWidth>;
  VBGEMM_DYNAMIC_SHARED(Shared, shared);
  T* const part = shared.b;
  T* const ring = shared.b + x.threads * kCols + thread_index();
  const int64_t row = first_row(x) + thread_index();
  const T* const from = x.a + (row < x.m ? row : x.m - 1);
#pragma unroll 1
  for (int p = 0; p < x.n; p += kCols) {
    T sum[kCols] = {}, b[kCols];
    int stage = 0;
    const auto start = [&](int k) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (k < x.k) cp_async<sizeof(T)>(ring + (stage * kAhead + i) * x.threads, from + int64_t{k + i} * x.m, true);
      }
      cp_async_commit_group();
      stage = stage == kStages - 1 ? 0 : stage + 1;
    };
    load_b(x, 0, p, b);
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) start(i * kAhead);
#pragma unroll 1
    for (int j = 0; j < x.k; j += x.threads) {
      block_barrier();
#pragma unroll
      for (int i = 0; i < kCols; i += kWidth) {
        Vector some;
#pragma unroll
        for (int v = 0; v < kWidth; ++v) some.element[v] = b[i + v];
        *reinterpret_cast<Vector*>(part + thread_index() * kCols + i) = some;
      }
      block_barrier();
      load_b(x, j + x.threads, p, b);
      const int end = j + x.threads < x.k ? j + x.threads : x.k;
#pragma unroll 1
      for (int l = j; l < end; l += kAhead) {
        cp_async_wait_group<kStages - 2>();
        const int oldest = stage == kStages - 1 ? 0 : stage + 1;  // `stage` will be started next, and is empty
        T a[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) a[i] = ring[(oldest * kAhead + i) * x.threads];
        start(l + (kStages - 1) * kAhead);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
#pragma unroll
          for (int col = 0; col < kCols; col += kWidth) {
            const Vector some = *reinterpret_cast<const Vector*>(part + (l - j + i) * kCols + col);
#pragma unroll
            for (int v = 0; v < kWidth; ++v) sum[col + v] += a[i] * some.element[v];
          }
        }
      }
    }
    if (row < x.m) store_c(x, row, p, sum);
  }
}

}  // namespace vbgemm::tsm2
