// The check of the kernels that average arrays: arrays of awkward sizes at aligned and odd addresses, the averages compared bit for bit
// with a plain loop, and their sums of squares with a sum in a wider type.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/elementwise/averages.h"
#include "gpu/host/launch.h"
#include "gpu_driver/arrays.h"
#include "gpu_driver/check_square_sums.h"
#include "gpu_driver/device.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

// All arrays in one device buffer, separated by margins that must not change. Averages replace y in place for every other member.
template <class T>
class AveragesTrial {
 public:
  using Sum = Accumulator<T>;

  AveragesTrial(uint64_t seed, int margin) : random_(seed), margin_(margin) {}

  void add(int elements) {
    const bool in_place = members_.size() % 2 == 0;
    const int shift = static_cast<int>(members_.size()) / 2 % 2;
    Member member{elements, {}};
    for (int i = 0; i < 4; ++i) member.first[i] = i == 2 && in_place ? member.first[1] : place(elements, shift);
    for (int i = 0; i < elements; ++i) {
      for (int operand : {0, 1})
        host_[member.first[operand] + i] = Number<T>::from(std::uniform_real_distribution<double>(0.5, 1)(random_));
    }
    members_.push_back(member);
  }
  size_t members() const { return members_.size(); }

  int faults(const OwnStream& stream) const {
    const std::vector<Sum> scales{Sum(0.25), Sum(0.75), Sum(0.5), Sum(1.5)};
    const DeviceMemory memory(host_), factors(scales);
    std::vector<Average> given;
    for (const Member& member : members_) {
      const auto at = [&](int i) { return reinterpret_cast<T*>(memory.data()) + member.first[i]; };
      given.push_back({at(0), at(1), at(2), at(3), member.elements});
    }
    AveragesCall call{kDTypeOf<T>, factors.data(), given.data(), static_cast<int>(given.size()), nullptr, nullptr};
    const std::vector<Sum> untouched(num_partials(call) + margin_, Sum{-777});
    std::vector<Sum> sums(given.size() + margin_, Sum{-777}), partials(untouched.size());
    const DeviceMemory results(sums), workspace(untouched);
    call.sums = results.data();
    call.partials = workspace.data();
    require(averages(call, stream.get()), "averages");
    stream.wait();
    std::vector<T> expected = host_, found(host_.size());
    memory.read(found.data());
    results.read(sums.data());
    workspace.read(partials.data());

    int faults = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Member& member = members_[i];
      long double squares = 0;
      for (int e = 0; e < member.elements; ++e) {
        const auto number = [&](int array) { return Number<Sum>::from(Number<T>::wide(expected[member.first[array] + e])); };
        const Sum x = number(0);
        const auto put = [&](int array, Sum value) { expected[member.first[array] + e] = Number<T>::from(Number<Sum>::wide(value)); };
        put(2, fused(scales[0], x, scales[1] * number(1)));
        put(3, fused(scales[2], x, scales[3] * number(2)));
        const long double ahead = number(3);
        squares += ahead * ahead;
      }
      faults += !(std::fabs(sums[i] - squares) <= SquareSumsTrial<T>::kRoundings * Number<Sum>::kEpsilon / 2 * squares);
    }
    for (int i = 0; i < margin_; ++i) faults += sums[given.size() + i] != -777 || partials[partials.size() - 1 - i] != -777;
    for (size_t i = 0; i < found.size(); ++i) faults += !same(found[i], expected[i]);
    return faults;
  }

 private:
  struct Member {
    int elements;
    int64_t first[4];  // of x, y, the average and what is ahead
  };

  int64_t place(int elements, int shift) { return place_array(host_, elements, margin_, Averages<T>::kVector, shift); }

  std::mt19937_64 random_;
  const int margin_;
  std::vector<T> host_;
  std::vector<Member> members_;
};

template <class T>
AveragesTrial<T> averages_of_all_sizes(uint64_t seed, int margin) {
  AveragesTrial<T> trial(seed, margin);
  for (int elements : sizes_of_arrays(Averages<T>::kVector, SquareSums<T>::kChunk)) {
    for (int i = 0; i < 4; ++i) trial.add(elements);  // in place or not, aligned or not
  }
  return trial;
}

template <class T>
AveragesTrial<T> more_averages_than_a_launch_holds(uint64_t seed, int margin) {
  AveragesTrial<T> trial(seed, margin);
  for (int i = 0; i < Members<Average>::kMax + 3; ++i) trial.add(i % 5);
  return trial;
}

}  // namespace vbgemm::driver
