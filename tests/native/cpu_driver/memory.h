// Memory for the driver in which the processor detects reads and writes beyond its end.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace vbgemm::driver {

// Memory that ends where an unmapped page begins: sanitizers do not see masked vector loads, but the processor does.
template <class T>
struct GuardedAllocator {
  using value_type = T;
  static size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T), pages = whole_pages(bytes);
    void* base = mmap(nullptr, pages + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(static_cast<char*>(base) + 4096, pages, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
    return reinterpret_cast<T*>(static_cast<char*>(base) + 4096 + pages - bytes);
  }
  void deallocate(T* p, size_t count) {
    const size_t bytes = count * sizeof(T), pages = whole_pages(bytes);
    munmap(reinterpret_cast<char*>(p) + bytes - pages - 4096, pages + 8192);
  }
  template <class U>
  bool operator==(const GuardedAllocator<U>&) const {
    return true;
  }
  template <class U>
  bool operator!=(const GuardedAllocator<U>&) const {
    return false;
  }
};
using Bytes = std::vector<unsigned char, GuardedAllocator<unsigned char>>;

}  // namespace vbgemm::driver
