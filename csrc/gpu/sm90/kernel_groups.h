// The kernels of ragged products.
#pragma once
#include "gpu/sm90/block.h"
#include "gpu/sm90/copy_gather.h"
#include "gpu/sm90/store_groups.h"

namespace vbgemm {

template <class CutOfGroups>
struct GroupKernel {
  using Cut = CutOfGroups;
  using Source = GroupSource<Cut>;
  using Copier = std::conditional_t<Cut::kGathers, RowGatherer<Source>, NoCopier>;
  using Epilogue = GroupEpilogue<Source>;
};

// The kernel's name says which operands are contiguous across K: none or B for rows, both for a contraction.
#define VBGEMM_DEFINE_GROUP_KERNEL(name, kind, across_a, across_b, cols, cluster, gathers) \
  VBGEMM_DEFINE_PIPELINED(name, GroupParameters,                                           \
                          GroupKernel<vbgemm::GroupCut<vbgemm::Kind::kind, across_a, across_b, cols, cluster, gathers>>)

}  // namespace vbgemm
