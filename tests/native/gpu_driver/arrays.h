// What the checks of kernels over many arrays share: which sizes they try, and where arrays lie in one buffer.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "gpu/tile/chunks.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

// Sizes close to a vector, to all threads' vectors and to a chunk, and arrays of zero, one and three elements.
constexpr std::array<int, 12> sizes_of_arrays(int vector, int chunk) {
  const int step = kArrayThreads * vector;
  return {0, 1, 3, vector, vector + 1, step - 1, step + vector, chunk - 1, chunk, chunk + 1, 2 * chunk + 5, 0};
}

// Appends an array between margins, `shift` elements behind the beginning of a vector, and returns where it begins.
template <class T>
int64_t place_array(std::vector<T>& host, int elements, int margin, int vector, int shift) {
  const int64_t first = (static_cast<int64_t>(host.size()) + margin + vector - 1) / vector * vector + shift;
  host.resize(first + elements + margin, Number<T>::from(-777));
  return first;
}

}  // namespace vbgemm::driver
