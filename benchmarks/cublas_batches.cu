// cuBLAS on batches of products of different sizes: one after another (the "default execution" of Li et al. 2019, the "loop" of Zhang et
// al. 2025), and spread over eight streams ("concurrent kernel execution"). float32, row-major.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -o cublas_batches benchmarks/cublas_batches.cu
//   cublas_batches SIZES OUTPUT.csv [--cublas LIBRARY]
//
// SIZES has a line "NAME M N K" for each product; adjacent lines of one name are a batch. OUTPUT has the columns of the peers' figures
// (benchmarks/workloads.py, Row). graph_us is the least of five replays of a CUDA graph, stream_us the time of calls that the host
// enqueues. Operands come from memory: calls use different copies in turn. A call's result is compared with sums in float64.
#include <fstream>
#include <sstream>

#include "cublas_timing.h"

namespace {

using namespace vbgemm::timing;

struct Size {
  int m, n, k;
};

struct Batch {
  std::string name;
  std::vector<Size> sizes;
};

// A thread for each element of C; `wrong` counts those that differ.
__global__ void count_wrong(Size size, const float* a, const float* b, const float* c, int* wrong) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{size.m} * size.n) return;
  double sum = 0;
  for (int k = 0; k < size.k; ++k) sum += double{a[i / size.n * size.k + k]} * double{b[int64_t{k} * size.n + i % size.n]};
  if (!(fabs(c[i] - sum) <= 4 * sqrt(double(size.k)) * 0x1p-24 * sum)) atomicAdd(wrong, 1);
}

class Timer {
 public:
  static constexpr int kStreams = 8;
  // Each stream has a handle of its own, as a handle's workspace is one stream's at a time.
  Timer(std::FILE* csv, const std::string& library) : csv_(csv) {
    for (int i = 0; i < kStreams; ++i) cublas_.emplace_back(library);
    for (cudaStream_t& stream : streams_) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaMalloc(&wrong_, sizeof(int)));
  }

  bool time(const Batch& batch) {
    int64_t elements = 0;
    double flop = 0;
    for (const auto [m, n, k] : batch.sizes) elements += padded(m, k) + padded(k, n) + padded(m, n), flop += 2.0 * m * n * k;
    copies_ = static_cast<int>(std::clamp<int64_t>(kFootprint / (elements * 4), 1, 64)), elements_ = elements;
    CHECK(cudaMalloc(&memory_, elements * copies_ * sizeof(float)));
    fill<<<4096, 256>>>(memory_, elements * copies_);
    CHECK(cudaDeviceSynchronize());
    bool right = true;
    for (const int streams : {1, kStreams}) {
      const auto call = [&](int i) { enqueue(batch, i, streams); };
      call(0);
      const int wrong = count(batch);
      right &= wrong == 0;
      const double stream_us = host_us(call), graph = graph_us(streams_[0], std::clamp(static_cast<int>(4e3 / stream_us), 1, 64), 5, call);
      const std::string peer = streams == 1 ? "cublas_loop" : "cublas_8streams", group = batch.name.substr(0, batch.name.find('_'));
      std::fprintf(csv_, "%s,%s,%s,fp32,%zu,%.6g,cold,%.6g,%.6g,0,0,%d,\n", peer.c_str(), group.c_str(), batch.name.c_str(),
                   batch.sizes.size(), flop / 1e9, graph, stream_us, wrong);
    }
    CHECK(cudaFree(memory_));
    return right;
  }

 private:
  static constexpr int64_t kFootprint = 256 << 20;  // bytes of all copies: more than the caches hold
  static int64_t padded(int64_t rows, int64_t cols) { return (rows * cols + 63) / 64 * 64; }

  // Calls `use(index, size, a, b, c)` for every product of a copy.
  template <class Use>
  void each(const Batch& batch, int copy, const Use& use) const {
    float* at = memory_ + copy % copies_ * elements_;
    for (size_t i = 0; i < batch.sizes.size(); ++i) {
      const Size size = batch.sizes[i];
      float *const a = at, *const b = a + padded(size.m, size.k), *const c = b + padded(size.k, size.n);
      use(static_cast<int>(i), size, a, b, c);
      at = c + padded(size.m, size.n);
    }
  }

  // The products of one copy. Row-major C = A B is column-major C^T = B^T A^T.
  void enqueue(const Batch& batch, int copy, int streams) {
    CHECK(cudaEventRecord(events_[0], streams_[0]));
    for (int i = 1; i < streams; ++i) CHECK(cudaStreamWaitEvent(streams_[i], events_[0], 0));
    each(batch, copy, [&](int i, Size size, const float* a, const float* b, float* c) {
      cublas_[i % streams].multiply(streams_[i % streams], size.n, size.m, size.k, b, a, c);
    });
    for (int i = 1; i < streams; ++i) {
      CHECK(cudaEventRecord(events_[i], streams_[i]));
      CHECK(cudaStreamWaitEvent(streams_[0], events_[i], 0));
    }
  }

  int count(const Batch& batch) {
    int wrong = 0;
    CHECK(cudaMemsetAsync(wrong_, 0, sizeof(int), streams_[0]));
    each(batch, 0, [&](int, Size size, const float* a, const float* b, const float* c) {
      count_wrong<<<static_cast<int>((int64_t{size.m} * size.n + 255) / 256), 256, 0, streams_[0]>>>(size, a, b, c, wrong_);
    });
    CHECK(cudaMemcpyAsync(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost, streams_[0]));
    CHECK(cudaStreamSynchronize(streams_[0]));
    return wrong;
  }

  // The microseconds of a call that the host enqueues: the median of rounds of eight.
  template <class Call>
  double host_us(const Call& call) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> rounds(5);
    for (float& ms : rounds) {
      CHECK(cudaEventRecord(begin, streams_[0]));
      for (int i = 0; i < 8; ++i) call(i);
      CHECK(cudaEventRecord(end, streams_[0]));
      CHECK(cudaEventSynchronize(end));
      CHECK(cudaEventElapsedTime(&ms, begin, end));
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    std::sort(rounds.begin(), rounds.end());
    return 1e3 * rounds[2] / 8;
  }

  std::FILE* csv_;
  std::vector<Cublas> cublas_;
  cudaStream_t streams_[kStreams];
  cudaEvent_t events_[kStreams];
  int* wrong_;
  float* memory_ = nullptr;
  int64_t elements_ = 0;
  int copies_ = 1;
};

}  // namespace

int main(int count, char** words) {
  if (count != 3 && !(count == 5 && std::string(words[3]) == "--cublas")) {
    return std::fprintf(stderr, "cublas_batches SIZES OUTPUT.csv [--cublas LIBRARY]\n"), 2;
  }
  std::ifstream sizes(words[1]);
  std::FILE* const csv = std::fopen(words[2], "w");
  if (!sizes || !csv) return std::fprintf(stderr, "cublas_batches: cannot open %s or %s\n", words[1], words[2]), 2;
  const std::string library = count == 5 ? words[4] : "";
  if (!Cublas(library)) return 2;
  std::fprintf(csv, "peer,group,workload,precision,nprob,gflop,cache,graph_us,stream_us,max_rel_err,cw_err,nbad,note\n");
  std::vector<Batch> batches;
  std::string name;
  for (Size size; sizes >> name >> size.m >> size.n >> size.k;) {
    if (batches.empty() || batches.back().name != name) batches.push_back({name, {}});
    batches.back().sizes.push_back(size);
  }
  Timer timer(csv, library);
  bool right = true;
  for (const Batch& batch : batches) right &= timer.time(batch);
  std::fclose(csv);
  std::printf("cublas_batches: %zu batches, %s\n", batches.size(), right ? "all right" : "WRONG results");
  return right ? 0 : 1;
}
