// The check of the kernels that add arrays: members of awkward sizes at aligned and odd addresses, compared bit for bit with a plain loop.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/elementwise/add_scaled.h"
#include "gpu/host/launch.h"
#include "gpu_driver/arrays.h"
#include "gpu_driver/device.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

// All members' arrays in one device buffer, separated by margins that must not change.
template <class T>
class AdditionTrial {
 public:
  using Sum = Accumulator<T>;
  enum class Result { apart, in_x, in_y };

  AdditionTrial(uint64_t seed, int margin) : random_(seed), margin_(margin) {}

  // shift: by how many elements the arrays miss the alignment of vectors; if `uneven`, x, y and the result are shifted differently.
  void add(int elements, Result where, int shift, bool uneven = false) {
    Member member{elements, where, {}, random_sum(), random_sum()};
    const int kind = std::uniform_int_distribution<int>(0, 3)(random_);
    if (kind == 0) member.alpha = member.beta = 1;
    if (kind == 1) member.beta = 0;
    for (int i = 0; i < 3; ++i) {
      const bool odd = !uneven || static_cast<int>(members_.size() % 3) == i;
      member.first[i] = i == 2 && where != Result::apart ? member.first[where == Result::in_y] : place(elements, odd ? shift : 0);
    }
    for (int i = 0; i < elements; ++i) {
      const bool unread = kind == 1 && where != Result::in_y;
      const Wide y = unread ? Wide(NAN) : Number<Sum>::wide(random_sum());
      host_[member.first[0] + i] = Number<T>::from(Number<Sum>::wide(random_sum()));
      host_[member.first[1] + i] = Number<T>::from(y);
    }
    members_.push_back(member);
  }
  size_t members() const { return members_.size(); }

  int faults(const OwnStream& stream) {
    std::vector<std::vector<T>> expected;
    for (const Member& member : members_) expected.push_back(sums_of(member));
    DeviceMemory memory(host_);
    std::vector<Sum> alpha, beta;
    std::vector<Addition> additions;
    for (const Member& member : members_) {
      T* const data = reinterpret_cast<T*>(memory.data());
      additions.push_back({data + member.first[0], data + member.first[1], data + member.first[2], member.elements});
      alpha.push_back(member.alpha);
      beta.push_back(member.beta);
    }
    const DeviceMemory alphas(alpha), betas(beta);
    const int count = static_cast<int>(members_.size());
    require(add_scaled({kDTypeOf<T>, kDTypeOf<T>, alphas.data(), betas.data(), additions.data(), count}, stream.get()), "add_scaled");
    stream.wait();
    std::vector<T> found(host_.size());
    memory.read(found.data());

    int faults = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      const int64_t first = members_[i].first[2];
      for (int e = 0; e < members_[i].elements; ++e) {
        faults += !same(found[first + e], expected[i][e]);
        found[first + e] = host_[first + e];  // what remains in `found` must be untouched
      }
    }
    return faults + (std::memcmp(found.data(), host_.data(), host_.size() * sizeof(T)) != 0);
  }

 private:
  struct Member {
    int elements;
    Result where;
    int64_t first[3];  // of x, y and the result
    Sum alpha, beta;
  };

  Sum random_sum() { return static_cast<Sum>(std::uniform_real_distribution<double>(-1, 1)(random_)); }

  int64_t place(int elements, int shift) { return place_array(host_, elements, margin_, AddScaled<T>::kVector, shift); }

  std::vector<T> sums_of(const Member& member) const {
    std::vector<T> sums;
    for (int i = 0; i < member.elements; ++i) {
      const auto number = [&](int operand) { return Number<Sum>::from(Number<T>::wide(host_[member.first[operand] + i])); };
      const Sum addend = member.beta == 0 ? Sum{-0.0} : member.beta * number(1);
      sums.push_back(Number<T>::from(Number<Sum>::wide(fused(member.alpha, number(0), addend))));
    }
    return sums;
  }

  std::mt19937_64 random_;
  const int margin_;
  std::vector<T> host_;
  std::vector<Member> members_;
};

template <class T>
AdditionTrial<T> additions_of_all_sizes(uint64_t seed, int margin) {
  using Result = typename AdditionTrial<T>::Result;
  AdditionTrial<T> trial(seed, margin);
  for (int elements : sizes_of_arrays(AddScaled<T>::kVector, AddScaled<T>::kChunk)) {
    for (const Result where : {Result::apart, Result::in_y, Result::in_x}) {
      trial.add(elements, where, 0);
      trial.add(elements, where, 1);
      trial.add(elements, where, 1, true);
    }
  }
  return trial;
}

template <class T>
AdditionTrial<T> more_additions_than_a_launch_holds(uint64_t seed, int margin) {
  AdditionTrial<T> trial(seed, margin);
  for (int i = 0; i < 2 * Members<Addition>::kMax + 3; ++i) trial.add(i % 5, AdditionTrial<T>::Result::in_y, i % 2);
  return trial;
}

}  // namespace vbgemm::driver
