// A kernel's parameters: the plan, its range of thread blocks, and the buffer table. They are launch parameters, which a kernel reads
// without a load from global memory.
#pragma once
#include "descriptor.h"
#include "dtypes.h"
#include "gpu/arch/machine.h"

namespace vbgemm {

// An operand or a result, as XLA passes it.
struct Buffer {
  const void* data;
  int64_t elements;
};

static_assert(sizeof(Buffer) == kBufferBytes);
inline constexpr int kMaxParameterBuffers = max_parameter_buffers(kCdna);

struct KernelParameters {
  Descriptors plan;
  int32_t first_block;                // the launch's first block among the plan's blocks (tile kernels)
  int32_t launch_blocks;              // blocks of this launch (pipelined kernel, whose grid may be smaller)
  int32_t split_blocks;               // thread blocks for each split tile (the kernel that reduces split-K partial sums)
  int32_t num_buffers, num_operands;  // the table holds the operands first, then the results
  DType result;                       // dtype of the results
  bool next_may_start;                // the next kernel of the stream waits for this one before it touches memory
  Buffer sums;                        // workspace for the split-K partial sums, in the accumulator's type
  const void* maps;                   // each thread block's TileMaps (gpu/sm90/tile_maps.h), or null
  const Buffer* overflow;             // the whole table in global memory, where it does not fit the launch parameters; else null
  Buffer table[kMaxParameterBuffers];
};

// One section of a buffer table that is too long for the launch parameters; a kernel writes it to the workspace.
struct BufferChunk {
  Buffer* to;
  int32_t count;
  Buffer table[kMaxParameterBuffers];
};

// One member of a call that adds arrays: result = alpha x + beta y, elementwise. The result may be x or y itself.
struct Addition {
  const void *x, *y;
  void* result;
  int64_t elements;
};

// The members of one launch: as many as fit the launch parameters next to two pointers. The thread blocks of a member are consecutive.
template <class Member>
struct Members {
  static constexpr int kMax = (kMaxParameterBytes - 32) / static_cast<int>(sizeof(Member) + sizeof(int32_t));
  int32_t count;
  int32_t first_block[kMax + 1];  // the first thread block of each member, and one past the last thread block
  Member member[kMax];
};

struct AdditionParameters {
  const void *alpha, *beta;  // one scalar for each member, in the accumulator's type
  Members<Addition> additions;
};

// Parameters of the two kernels that sum squares. Both arrays hold accumulators: `partials` one for each thread block of the first kernel,
// `sums` one for each input array.
struct SquareSumParameters {
  void *partials, *sums;
  Members<Buffer> arrays;
};

// One member of a call that averages arrays (gpu/elementwise/averages.h). The average may be x or y itself.
struct Average {
  const void *x, *y;
  void *average, *lookahead;
  int64_t elements;
};

struct AverageParameters {
  const void* scales;  // alpha, beta, gamma and delta of all members, in the accumulator's type
  void* partials;      // an accumulator for each thread block
  Members<Average> averages;
};

static_assert(sizeof(KernelParameters) <= kMaxParameterBytes && sizeof(BufferChunk) <= kMaxParameterBytes &&
                  sizeof(AdditionParameters) <= kMaxParameterBytes && sizeof(SquareSumParameters) <= kMaxParameterBytes &&
                  sizeof(AverageParameters) <= kMaxParameterBytes && Members<Average>::kMax <= Members<Buffer>::kMax,
              "a launch's parameters");

}  // namespace vbgemm
