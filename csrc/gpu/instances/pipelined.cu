// Large products of bfloat16 and float16, accumulated in float32: TMA copies and wgmma.
#include "gpu/sm90/block.h"
#include "gpu/sm90/copy_threads.h"
#include "gpu/sm90/store_plan.h"
#include "gpu/tile/kernels.h"

namespace vbgemm {
template <class Source>
using PlanBlock = PipelinedBlock<Source, ThreadCopier<Source>, PlanEpilogue<Source>>;
}

VBGEMM_DEFINE_PIPELINED(vbgemm_m384_pipelined_bfloat16, PlanParameters, PlanBlock<vbgemm::PlanSource<vbgemm::Kind::bf16>>)
VBGEMM_DEFINE_PIPELINED(vbgemm_m384_pipelined_float16, PlanParameters, PlanBlock<vbgemm::PlanSource<vbgemm::Kind::f16>>)
