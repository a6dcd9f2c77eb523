// The expected sum of a row of A times a column of B. The ordinary kernels promise every bit: K in increasing order, and K slices and
// groups of threads in a fixed order. Tensor-core kernels promise to come close to the result in float64.
#pragma once
#include <cmath>
#include <vector>

#include "gpu/simt/deep_tile.h"
#include "gpu/tile/add_partial_sums.h"
#include "gpu_driver/host_plan.h"
#include "gpu_driver/number.h"

namespace vbgemm::driver {

template <class T, class Right = T>
class ExpectedSum {
 public:
  using Sum = Accumulator<T>;

  Sum sum;
  Wide wide = 0;
  double size = 0;  // the sum of the products' magnitudes

  // a, b: the elements of the buffers that the problem names.
  ExpectedSum(const Problem& p, const Box& box, const T* a, const Right* b, int batch, int row, int col) {
    const TileShape& tile = kTiles[box.tile_id];
    const bool deep = tile.partition == ThreadPartition::sliced_k || (tile.partition == ThreadPartition::warp_sliced_k && !tile.tensor);
    const DeepSplit groups = tile.partition == ThreadPartition::sliced_k ? deep_split<T>(tile) : DeepSplit{1, 1, kWaveSize, kWaveSize};
    const int waves = tile.partition == ThreadPartition::sliced_k ? tile.threads / kWaveSize : 1;  // waves that split an element's K
    std::vector<Sum> sums;                                                                         // of each K slice
    for (int slice = 0; slice < box.slices; ++slice) {
      const int begin = box.slice_begin(slice), end = box.slice_begin(slice + 1);
      std::vector<Sum> of_group(deep ? waves * groups.groups : 1);
      for (int k = begin; k < end; ++k) {
        const Sum x = number(a[offset_of(p.a, p, batch, row, k)]), y = number(b[offset_of(p.b, p, batch, k, col)]);
        Sum& mine = of_group[deep ? group_of(groups, waves, k - begin) : 0];
        mine = fused(x, y, mine);
        const Wide product = multiplied(Number<Sum>::wide(x), Number<Sum>::wide(y));
        wide += product;
        size += std::fabs(product.real()) + std::fabs(product.imag());
      }
      sums.push_back(deep ? added_by_groups(of_group, groups.groups) : of_group[0]);
    }
    sum = added_by_parts(sums);
  }

 private:
  template <class E>
  static Sum number(E x) {
    return Number<Sum>::from(Number<E>::wide(x));
  }

  // Adds the K slices of each part in order, and then the parts.
  static Sum added_by_parts(const std::vector<Sum>& sums) {
    const size_t parts = parts_of(static_cast<int>(sums.size()));
    Sum total{};
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = sums.size() * part / parts, end = sums.size() * (part + 1) / parts;
      Sum sum = sums[begin];
      for (size_t i = begin + 1; i < end; ++i) sum = sum + sums[i];
      total = part == 0 ? sum : total + sum;
    }
    return total;
  }

  // Adds partial sums as tiles do that split K among groups of threads (deep_tile.h) or lanes (dot_tile.h): neighbours within a wave first,
  // then the waves.
  static Sum added_by_groups(std::vector<Sum> sums, size_t of_wave) {
    for (size_t distance = 1; distance < of_wave; distance *= 2) {
      for (size_t i = 0; i < sums.size(); i += 2 * distance) sums[i] = sums[i] + sums[i + distance];
    }
    Sum total = sums[0];
    for (size_t i = of_wave; i < sums.size(); i += of_wave) total = total + sums[i];
    return total;
  }

  // Returns the group of a tile's threads that takes a K element: the waves take turns, and distribute their steps over their groups.
  static int group_of(const DeepSplit& split, int waves, int k) {
    return k / split.depth % waves * split.groups + k % split.depth % split.groups;
  }
};

}  // namespace vbgemm::driver
