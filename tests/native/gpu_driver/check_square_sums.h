// The check of the kernels that sum squares: arrays of awkward sizes at aligned and odd addresses, compared with a plain loop; equal arrays
// must give equal bits at every address.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/elementwise/square_sums.h"
#include "gpu/host/launch.h"
#include "gpu_driver/arrays.h"
#include "gpu_driver/device.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

// All arrays in one device buffer; the elements between them are NaN.
template <class T>
class SquareSumsTrial {
 public:
  using Sum = Accumulator<T>;
  // Upper bound of the number of roundings: over a thread's elements at one place of its vectors, over these places, over the block's
  // threads, and over the chunks of an array, with some slack.
  static constexpr int kRoundings = kVectorsInFlight + 3 + 8 + 9;

  SquareSumsTrial(uint64_t seed, int margin) : random_(seed), margin_(margin) {}

  // Adds the same elements twice: at the beginning of a vector, and after it.
  void add(int elements) {
    std::vector<T> array;
    for (int i = 0; i < elements; ++i) {
      const double x = std::uniform_real_distribution<double>(0.5, 1)(random_);  // none so small that leaving it out would not show
      array.push_back(Number<T>::from(static_cast<Sum>(random_() & 1 ? x : -x)));
    }
    for (int shift : {0, 1}) {
      constexpr size_t kVector = SquareSums<T>::kVector;
      const size_t first = (host_.size() + margin_ + kVector - 1) / kVector * kVector + shift;
      host_.resize(first, Number<T>::from(NAN));
      host_.insert(host_.end(), array.begin(), array.end());
      first_.push_back(first);
      elements_.push_back(elements);
    }
    host_.resize(host_.size() + margin_, Number<T>::from(NAN));
  }
  size_t arrays() const { return elements_.size(); }

  int faults(const OwnStream& stream) const {
    const DeviceMemory memory(host_);
    std::vector<Buffer> arrays;
    for (size_t i = 0; i < elements_.size(); ++i) arrays.push_back({reinterpret_cast<T*>(memory.data()) + first_[i], elements_[i]});
    SquareSumsCall call{kDTypeOf<T>, arrays.data(), static_cast<int>(arrays.size()), nullptr, nullptr};
    const std::vector<Sum> untouched(num_partials(call) + margin_, Sum{-777});
    std::vector<Sum> found(arrays.size() + margin_, Sum{-777}), partials(untouched.size());
    const DeviceMemory sums(found), workspace(untouched);
    call.sums = sums.data();
    call.partials = workspace.data();
    require(square_sums(call, stream.get()), "square_sums");
    stream.wait();
    sums.read(found.data());
    workspace.read(partials.data());

    int faults = 0;
    for (size_t i = 0; i < arrays.size(); ++i) {
      const long double expected = sum_of(i);
      faults += !(std::fabs(found[i] - expected) <= kRoundings * Number<Sum>::kEpsilon / 2 * expected);
      faults += found[i] != found[i / 2 * 2];
    }
    for (int i = 0; i < margin_; ++i) faults += found[arrays.size() + i] != -777 || partials[partials.size() - 1 - i] != -777;
    return faults;
  }

 private:
  long double sum_of(size_t array) const {
    long double sum = 0;
    for (int i = 0; i < elements_[array]; ++i) {
      const long double x = Number<T>::wide(host_[first_[array] + i]).real();
      sum += x * x;
    }
    return sum;
  }

  std::mt19937_64 random_;
  const int margin_;
  std::vector<T> host_;
  std::vector<size_t> first_;
  std::vector<int> elements_;
};

template <class T>
SquareSumsTrial<T> square_sums_of_all_sizes(uint64_t seed, int margin) {
  SquareSumsTrial<T> trial(seed, margin);
  for (int elements : sizes_of_arrays(SquareSums<T>::kVector, SquareSums<T>::kChunk)) {
    trial.add(elements);
  }
  return trial;
}

template <class T>
SquareSumsTrial<T> more_square_sums_than_a_launch_holds(uint64_t seed, int margin) {
  SquareSumsTrial<T> trial(seed, margin);
  trial.add((kArrayThreads + 3) * SquareSums<T>::kChunk);  // more chunks than threads to add them
  for (int i = 0; i < Members<Buffer>::kMax + 3; ++i) trial.add(i % 5);
  return trial;
}

}  // namespace vbgemm::driver
