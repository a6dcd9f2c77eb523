// Fig. 3 of Zhang et al. 2025 on the GPU at hand: how fast kernels of 64, 128, 256 and 512 threads compute a batch of large products by
// tiles of nine sizes. The package's kernels have 128 or 256 threads, so these ones exist for this experiment alone. They have the paper's
// K step of 16 (Table 3) and are otherwise as the authors' released kernels: float32, two stages in shared memory, and a barrier in each
// step. A step's operands are loaded after the products of the previous one, so that only other thread blocks hide the latency of loads.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -o thread_tiles benchmarks/thread_tiles.cu
//   thread_tiles OUTPUT.csv
//
// The time is the least of five replays of a CUDA graph. Operands come from memory, as one call reads and writes 201 MB. Every kernel is
// first run on two small products and compared with sums in float64 on the host; the exit status is 1 if a result is wrong.
#include "cublas_timing.h"

namespace {

using namespace vbgemm::timing;

// Equal row-major products C = A B, one behind the other. All sizes are multiples of the tile's and of the K step.
struct Products {
  const float *a, *b;
  float* c;
  int m, n, k, count;
};

// How the threads of a block divide a tile: as a grid of threads, each of which computes `kRows` x `kCols` elements.
template <int kTileRows_, int kTileCols_, int kThreads_>
struct Division {
  static constexpr int kTileRows = kTileRows_, kTileCols = kTileCols_, kThreads = kThreads_, kStep = 16;
  static constexpr int kElements = kTileRows * kTileCols > kThreads ? kTileRows * kTileCols / kThreads : 1;  // the paper's W_CP
  static constexpr int rows() {
    int rows = 1;
    while (4 * rows * rows <= kElements) rows *= 2;
    return rows;
  }
  static constexpr int kRows = rows(), kCols = kElements / kRows;
  static constexpr int kGridRows = kTileRows / kRows, kGridCols = kTileCols / kCols;  // threads beyond the grid only load
  static constexpr int kPitch = kTileRows + 4;  // of A in shared memory, where its steps of K are rows: fewer bank conflicts
  static constexpr int kUnrolled = kElements <= 64 ? kStep : 1024 / kElements;
  static_assert(kGridRows * kRows == kTileRows && kGridCols * kCols == kTileCols && kGridRows * kGridCols <= kThreads);
};

// Where in the tile a thread's i-th row or column is, for `kOwn` of them and `kGrid` threads: adjacent threads have adjacent vectors of up
// to four.
template <int kOwn, int kGrid>
__device__ constexpr int place(int thread, int i) {
  constexpr int kVector = kOwn < 4 ? kOwn : 4;
  return (i / kVector * kGrid + thread) * kVector + i % kVector;
}

// A thread block computes one tile of one product.
template <class D>
__global__ void __launch_bounds__(D::kThreads) multiply(Products x) {
  __shared__ __align__(16) float shared_a[2][D::kStep][D::kPitch];
  __shared__ __align__(16) float shared_b[2][D::kStep][D::kTileCols];
  const int thread = threadIdx.x, across = x.n / D::kTileCols, tiles = across * (x.m / D::kTileRows);
  const int product = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int row = tile / across * D::kTileRows, col = tile % across * D::kTileCols;
  const float* const a = x.a + (int64_t{product} * x.m + row) * x.k;
  const float* const b = x.b + int64_t{product} * x.k * x.n + col;
  const auto load = [&](int stage, int k) {
#pragma unroll
    for (int i = thread; i < D::kTileRows * D::kStep; i += D::kThreads) {
      shared_a[stage][i % D::kStep][i / D::kStep] = a[int64_t{i / D::kStep} * x.k + k + i % D::kStep];
    }
#pragma unroll
    for (int i = thread; i < D::kStep * D::kTileCols; i += D::kThreads) {
      shared_b[stage][i / D::kTileCols][i % D::kTileCols] = b[int64_t{k + i / D::kTileCols} * x.n + i % D::kTileCols];
    }
  };
  const int grid_row = thread / D::kGridCols, grid_col = thread % D::kGridCols;
  const bool multiplies = grid_row < D::kGridRows;
  float sum[D::kRows][D::kCols] = {};
  load(0, 0);
  int stage = 0;
#pragma unroll 1
  for (int k = 0; k < x.k; k += D::kStep) {
    __syncthreads();
    if (multiplies) {
#pragma unroll(D::kUnrolled)
      for (int l = 0; l < D::kStep; ++l) {
        float left[D::kRows], right[D::kCols];
#pragma unroll
        for (int i = 0; i < D::kRows; ++i) left[i] = shared_a[stage][l][place<D::kRows, D::kGridRows>(grid_row, i)];
#pragma unroll
        for (int j = 0; j < D::kCols; ++j) right[j] = shared_b[stage][l][place<D::kCols, D::kGridCols>(grid_col, j)];
#pragma unroll
        for (int i = 0; i < D::kRows; ++i) {
#pragma unroll
          for (int j = 0; j < D::kCols; ++j) sum[i][j] += left[i] * right[j];
        }
      }
    }
    stage ^= 1;  // all threads have read this stage before the barrier
    if (k + D::kStep < x.k) load(stage, k + D::kStep);
  }
  if (!multiplies) return;
  float* const c = x.c + (int64_t{product} * x.m + row) * x.n + col;
#pragma unroll
  for (int i = 0; i < D::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < D::kCols; ++j) {
      c[int64_t{place<D::kRows, D::kGridRows>(grid_row, i)} * x.n + place<D::kCols, D::kGridCols>(grid_col, j)] = sum[i][j];
    }
  }
}

constexpr int kMostElements = 64 * 512 * 512;  // of an operand
constexpr Products kTimed{nullptr, nullptr, nullptr, 512, 512, 512, 64}, kChecked{nullptr, nullptr, nullptr, 256, 128, 80, 2};

class Experiment {
 public:
  explicit Experiment(std::FILE* csv) : csv_(csv) {
    for (float** array : {&a_, &b_, &c_}) CHECK(cudaMalloc(array, kMostElements * sizeof(float)));
    CHECK(cudaStreamCreate(&stream_));
    fill<<<4096, 256>>>(a_, kMostElements);
    fill<<<4096, 256>>>(b_, kMostElements);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaDeviceGetAttribute(&most_threads_, cudaDevAttrMaxThreadsPerMultiProcessor, 0));
    constexpr int m = kChecked.m, n = kChecked.n, k = kChecked.k, count = kChecked.count;
    const std::vector<float> a = host(a_, count * m * k), b = host(b_, count * k * n);
    for (int i = 0; i < count * m * n; ++i) {
      double sum = 0;
      for (int l = 0; l < k; ++l) sum += double{a[i / n * k + l]} * double{b[(i / (m * n) * k + l) * n + i % n]};
      expected_.push_back(sum);
    }
  }
  Experiment(const Experiment&) = delete;
  ~Experiment() {
    for (float* array : {a_, b_, c_}) CHECK(cudaFree(array));
    CHECK(cudaStreamDestroy(stream_));
  }

  // Kernels of 64 to 512 threads for a tile.
  template <int kTileRows, int kTileCols>
  void tile() {
    kernel<Division<kTileRows, kTileCols, 64>>();
    kernel<Division<kTileRows, kTileCols, 128>>();
    kernel<Division<kTileRows, kTileCols, 256>>();
    kernel<Division<kTileRows, kTileCols, 512>>();
  }
  bool right() const { return right_; }

 private:
  static std::vector<float> host(const float* array, int64_t count) {
    std::vector<float> copy(count);
    CHECK(cudaMemcpy(copy.data(), array, count * sizeof(float), cudaMemcpyDeviceToHost));
    return copy;
  }

  template <class D>
  void launch(Products x) {
    x.a = a_, x.b = b_, x.c = c_;
    multiply<D><<<x.count*(x.m / D::kTileRows) * (x.n / D::kTileCols), D::kThreads, 0, stream_>>>(x);
    CHECK(cudaGetLastError());
  }

  template <class D>
  void kernel() {
    CHECK(cudaMemsetAsync(c_, 0xff, expected_.size() * sizeof(float), stream_));  // NaN
    launch<D>(kChecked);
    CHECK(cudaStreamSynchronize(stream_));
    const std::vector<float> found = host(c_, expected_.size());
    const double allowed = 4 * std::sqrt(static_cast<double>(kChecked.k)) * 0x1p-24;  // all terms are positive
    int wrong = 0;
    for (size_t i = 0; i < found.size(); ++i) wrong += !(std::fabs(found[i] - expected_[i]) <= allowed * expected_[i]);
    right_ &= wrong == 0;
    if (wrong) std::printf("WRONG: %d elements of %d x %d, %d threads\n", wrong, D::kTileRows, D::kTileCols, D::kThreads);

    cudaFuncAttributes about;
    int blocks = 0;
    CHECK(cudaFuncGetAttributes(&about, multiply<D>));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, multiply<D>, D::kThreads, 0));
    const double us = graph_us(stream_, 5, 5, [&](int) { launch<D>(kTimed); });
    const double flop = 2.0 * kTimed.count * kTimed.m * kTimed.n * kTimed.k;
    std::fprintf(csv_, "%d,%d,%d,%.6g,%.4g,%d,%zu,%.4g,%d\n", D::kTileRows, D::kTileCols, D::kThreads, us, flop / us / 1e6, about.numRegs,
                 about.localSizeBytes, static_cast<double>(blocks) * D::kThreads / most_threads_, wrong);
  }

  std::FILE* csv_;
  float *a_, *b_, *c_;
  cudaStream_t stream_;
  int most_threads_ = 0;
  std::vector<double> expected_;  // results of kChecked
  bool right_ = true;
};

}  // namespace

int main(int count, char** words) {
  std::FILE* const csv = count == 2 ? std::fopen(words[1], "w") : nullptr;
  if (!csv) return std::fprintf(stderr, "thread_tiles OUTPUT.csv\n"), 2;
  std::fprintf(csv, "rows,cols,threads,us,tflops,registers,spilled,occupancy,nbad\n");
  Experiment experiment(csv);
  experiment.tile<8, 8>();
  experiment.tile<8, 16>();
  experiment.tile<16, 16>();
  experiment.tile<16, 32>();
  experiment.tile<32, 32>();
  experiment.tile<32, 64>();
  experiment.tile<64, 64>();
  experiment.tile<64, 128>();
  experiment.tile<128, 128>();
  std::fclose(csv);
  std::puts(experiment.right() ? "thread_tiles: all results are right" : "thread_tiles: WRONG results");
  return experiment.right() ? 0 : 1;
}
