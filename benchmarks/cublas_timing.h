// What the stand-alone timings of papers' experiments share: cuBLAS, which is loaded at run time, operands, and CUDA graphs.
#pragma once
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace vbgemm::timing {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}
#define CHECK(call) vbgemm::timing::check(call, #call)

// Uniform numbers in [0, 1) that depend only on the position.
template <class T>
__global__ void fill(T* x, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    x[i] = static_cast<T>((bits ^ bits >> 31) >> 40) * T{0x1p-24};
  }
}

// libcublas, or none where the loader does not find it.
class Cublas {
 public:
  // `path`: the library's file; "": version 13 or 12, where the loader finds it.
  explicit Cublas(const std::string& path) {
    for (const std::string& name : path.empty() ? std::vector<std::string>{"libcublas.so.13", "libcublas.so.12"} : std::vector{path}) {
      library_ = library_ ? library_ : dlopen(name.c_str(), RTLD_NOW);
    }
    if (!library_) {
      std::fprintf(stderr, "no cuBLAS: %s\n", dlerror());
      return;
    }
    find(set_stream_, "cublasSetStream_v2");
    find(set_workspace_, "cublasSetWorkspace_v2");
    find(float32_, "cublasSgemm_v2");
    find(float64_, "cublasDgemm_v2");
    int (*create)(void**);
    find(create, "cublasCreate_v2");
    if (create(&handle_) != 0) handle_ = nullptr;
    CHECK(cudaMalloc(&workspace_, kWorkspace));
  }
  explicit operator bool() const { return handle_; }

  // C[m x n] = A[m x k] B[k x n], all column-major.
  void multiply(cudaStream_t stream, int m, int n, int k, const float* a, const float* b, float* c) const {
    multiply(float32_, stream, m, n, k, a, b, c);
  }
  void multiply(cudaStream_t stream, int m, int n, int k, const double* a, const double* b, double* c) const {
    multiply(float64_, stream, m, n, k, a, b, c);
  }

 private:
  template <class T>
  using Gemm = int (*)(void*, int, int, int, int, int, const T*, const T*, int, const T*, int, const T*, T*, int);
  static constexpr size_t kWorkspace = 32 << 20;  // what cuBLAS takes on Hopper; its own would be allocated in a graph

  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function) return;
    std::fprintf(stderr, "cuBLAS has no %s\n", name);
    std::exit(2);
  }
  template <class T>
  void multiply(Gemm<T> gemm, cudaStream_t stream, int m, int n, int k, const T* a, const T* b, T* c) const {
    const T one = 1, zero = 0;
    set_stream_(handle_, stream);
    set_workspace_(handle_, workspace_, kWorkspace);  // which a change of the stream resets
    gemm(handle_, 0, 0, m, n, k, &one, a, m, b, k, &zero, c, m);
  }

  void *library_ = nullptr, *handle_ = nullptr, *workspace_ = nullptr;
  int (*set_stream_)(void*, cudaStream_t) = nullptr;
  int (*set_workspace_)(void*, void*, size_t) = nullptr;
  Gemm<float> float32_ = nullptr;
  Gemm<double> float64_ = nullptr;
};

// The microseconds of a call: the least of some replays of a CUDA graph of `calls` calls. `enqueue(i)` enqueues the i-th one.
template <class Enqueue>
double graph_us(cudaStream_t stream, int calls, int replays, const Enqueue& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) enqueue(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&replay, graph, 0));
  float least = INFINITY;
  for (int i = 0; i <= replays; ++i) {  // the first one warms up
    float ms = 0;
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(replay, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) least = std::min(least, ms);
  }
  CHECK(cudaGraphExecDestroy(replay));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return 1e3 * least / calls;
}

}  // namespace vbgemm::timing
