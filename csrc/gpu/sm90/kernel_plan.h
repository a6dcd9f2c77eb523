// The kernel of large 16-bit products of a plan.
#pragma once
#include "gpu/sm90/block.h"
#include "gpu/sm90/copy_threads.h"
#include "gpu/sm90/store_plan.h"

namespace vbgemm {

template <Kind kKind>
struct PlanKernel {
  using Source = PlanSource<kKind>;
  using Cut = typename Source::Cut;
  using Copier = ThreadCopier<Source>;
  using Epilogue = PlanEpilogue<Source>;
};

#define VBGEMM_DEFINE_PLAN_KERNEL(name, kind) \
  VBGEMM_DEFINE_PIPELINED(vbgemm_m384_pipelined_##name, PlanParameters, PlanKernel<vbgemm::Kind::kind>)

}  // namespace vbgemm
