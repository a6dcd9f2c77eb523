// The device as the stand-alone driver sees it: every error ends the program, and every allocation has an owner.
#pragma once
#include "gpu/arch/gpu_vendor.h"

#ifdef VBGEMM_GPU_VENDOR_HEADER
#include "emulation/device.h"
#else
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gpu_driver/runtime.h"

namespace vbgemm::driver {

inline void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_driver: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) { require(cudaMalloc(&data_, bytes ? bytes : 1), "cudaMalloc"); }
  template <class T>
  explicit DeviceMemory(const std::vector<T>& host) : DeviceMemory(host.size() * sizeof(T)) {
    write(host.data());
  }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data_); }

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }
  void write(const void* host) { write(host, bytes_, 0); }
  void write(const void* host, size_t bytes, size_t offset) {
    if (!bytes) return;
    require(cudaMemcpy(data() + offset, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
    // Small copies return before they arrive, and a stream of one's own does not wait for them.
    require(cudaDeviceSynchronize(), "copy to the device");
  }
  void read(void* host) const {
    if (bytes_) require(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "copy from the device");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

inline size_t free_device_memory() {
  size_t available = 0, total = 0;
  require(cudaMemGetInfo(&available, &total), "memory");
  return available;
}

class OwnStream {
 public:
  OwnStream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void wait() const { require(cudaStreamSynchronize(stream_), "kernel"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Captures what `record` enqueues on the stream, for replay.
class Graph {
 public:
  template <class Record>
  Graph(const OwnStream& stream, const Record& record) {
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "begin capture");
    record();
    require(cudaStreamEndCapture(stream.get(), &graph), "end capture");
    require(cudaGraphInstantiate(&graph_, graph, 0), "instantiate");
    require(cudaGraphDestroy(graph), "destroy graph");
    require(cudaGraphUpload(graph_, stream.get()), "upload graph");
  }
  Graph(Graph&& other) noexcept : graph_(other.graph_) { other.graph_ = nullptr; }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (graph_) cudaGraphExecDestroy(graph_);
  }
  void replay(const OwnStream& stream) const { require(cudaGraphLaunch(graph_, stream.get()), "replay"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace vbgemm::driver
#endif
