// Runs a plan on the CPU: the caller and helpers from a thread pool claim blocks of tiles until none is left.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "cpu/parallel_for.h"
#include "descriptor.h"

namespace vbgemm {

struct CpuCall {
  Kind kind;
  DType out_dtype;  // dtype of the results, one that the arithmetic can give
  Descriptors plan;
  void* const* buffers;     // first the operands, then the results
  const int64_t* elements;  // elements of each buffer
  int32_t num_operands, num_buffers;
  void* sums;  // workspace for the split-K partial sums
  int64_t num_sums;
  bool may_stream;  // permits streaming stores
};

// Whether operands and results exceed the caches, so that the results will no longer be cached when they are read.
bool fills_caches(const CpuCall& call);

// The kernels in use: "avx512", "avx2" or "portable". The environment variable VBGEMM_CPU_ISA selects others; an unknown name, or one that
// this machine cannot run, is ignored.
const char* isa();

// Execute a range of a call's work: blocks of tiles and, after all blocks are done, the reduction of split-K tiles.
void run_blocks(const CpuCall& call, int64_t begin, int64_t end);
void add_splits(const CpuCall& call, int64_t begin, int64_t end);

// The number of threads that pay off for the work.
int64_t threads_for_blocks(const CpuCall& call, int64_t available);
int64_t threads_for_splits(const CpuCall& call, int64_t available);

// Pool: any type with num_threads() and Schedule(f), such as XLA's FFI thread pool; may be null.
template <class Pool>
void run(const CpuCall& call, Pool* pool) {
  const int64_t available = pool ? pool->num_threads() : 1;
  parallel_for([&call](int64_t begin, int64_t end) { run_blocks(call, begin, end); }, call.plan.num_blocks,
               threads_for_blocks(call, available), pool);
  if (call.plan.num_splits == 0) return;
  parallel_for([&call](int64_t begin, int64_t end) { add_splits(call, begin, end); }, call.plan.num_splits,
               threads_for_splits(call, available), pool);
}

}  // namespace vbgemm
