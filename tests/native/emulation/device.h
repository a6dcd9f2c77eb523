// The emulated device, as the checks see it: its memory is the host's, and its streams do everything at once.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "gpu/arch/gpu_vendor.h"

namespace vbgemm::driver {

inline void require(Error error, const char* what) {
  if (error == kSuccess) return;
  std::fprintf(stderr, "emulation: %s: %s\n", what, error_name(error));
  std::exit(2);
}

// As a GPU's, it begins at a multiple of 256 bytes: tensor maps lie in it.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : data_(static_cast<char*>(::operator new(bytes, kAlignment))), bytes_(bytes) {}
  template <class T>
  explicit DeviceMemory(const std::vector<T>& host) : DeviceMemory(host.size() * sizeof(T)) {
    write(host.data());
  }
  char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  void write(const void* host) { write(host, bytes_, 0); }
  void write(const void* host, size_t bytes, size_t offset) {
    if (bytes) std::memcpy(data() + offset, host, bytes);
  }
  void read(void* host) const {
    if (bytes_) std::memcpy(host, data(), bytes_);
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Free {
    void operator()(char* data) const { ::operator delete(data, kAlignment); }
  };

  std::unique_ptr<char, Free> data_;
  size_t bytes_;
};

inline size_t free_device_memory() { return 0; }

class OwnStream {
 public:
  Stream get() const { return {}; }
  void wait() const {}
};

class Graph {
 public:
  Graph(const OwnStream&, std::function<void()> record) : record_(std::move(record)) {}
  void replay(const OwnStream&) const { record_(); }

 private:
  std::function<void()> record_;
};

}  // namespace vbgemm::driver
