// Runs a plan on the CPU: the caller and helpers from a thread pool claim blocks until none is left.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "cpu/share.h"
#include "descriptor.h"

namespace vbgemm {

struct CpuCall {
  Kind kind;
  DType out_dtype;  // of the results: one that the arithmetic gives
  Descriptors plan;
  void* const* buffers;     // operands, then results
  const int64_t* elements;  // of each
  int32_t num_operands, num_buffers;
  void* sums;  // memory for the accumulators of split tiles
  int64_t num_sums;
  bool past_caches;  // results are written past the caches where that pays
};

// Are operands and results more than a cache holds, so that results won't be there when somebody reads them?
bool fills_caches(const CpuCall& call);

// "avx512", "avx2" or "portable": the kernels in use. The environment variable VBGEMM_CPU_ISA names others; what isn't known, or what
// this machine can't run, is ignored.
const char* isa();

// A range of a call's pieces of work: blocks of tiles and, when all of them are done, split tiles whose shares are added up.
void run_blocks(const CpuCall& call, int64_t begin, int64_t end);
void add_splits(const CpuCall& call, int64_t begin, int64_t end);

// How many threads the work deserves.
int64_t threads_for_blocks(const CpuCall& call, int64_t available);
int64_t threads_for_splits(const CpuCall& call, int64_t available);

// Pool: anything with num_threads() and Schedule(f), such as XLA's FFI thread pool, or null.
template <class Pool>
void run(const CpuCall& call, Pool* pool) {
  const int64_t available = pool ? pool->num_threads() : 1;
  share([&call](int64_t begin, int64_t end) { run_blocks(call, begin, end); }, call.plan.num_blocks, threads_for_blocks(call, available),
        pool);
  if (call.plan.num_splits == 0) return;
  share([&call](int64_t begin, int64_t end) { add_splits(call, begin, end); }, call.plan.num_splits, threads_for_splits(call, available),
        pool);
}

}  // namespace vbgemm
