// What a kernel is given: the plan, its range of blocks, and the buffers, all in the launch's parameters.
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
  int32_t first_block;                // of the tiles' kernels
  int32_t split_blocks;               // of the kernel that adds up split K, for each tile
  int32_t num_buffers, num_operands;  // operands come first, then results
  DType result;                       // of the results
  Buffer sums;                        // accumulators: the shares of split K
  const Buffer* overflow;             // the whole table, where the parameters cannot hold it
  Buffer table[kMaxParameterBuffers];
};

// A piece of a table on its way to the workspace.
struct BufferChunk {
  Buffer* to;
  int32_t count;
  Buffer table[kMaxParameterBuffers];
};

// result = alpha x + beta y, element by element, of one member of a call that adds arrays. The result may be x or y itself.
struct Addition {
  const void *x, *y;
  void* result;
  int64_t elements;
};

// What a launch works on: as many members as fit into its parameters beside two pointers. A member's blocks lie beside each other.
template <class Member>
struct Members {
  static constexpr int kMost = (kMostParameterBytes - 32) / static_cast<int>(sizeof(Member) + sizeof(int32_t));
  int32_t count;
  int32_t first_block[kMost + 1];  // of each member, and behind the last
  Member member[kMost];
};

struct AdditionParameters {
  const void *alpha, *beta;  // accumulators, one of each a member
  Members<Addition> additions;
};

// Of the kernels that sum squares: accumulators, one of each block of the first and one of each array.
struct SquareSumParameters {
  void *partials, *sums;
  Members<Buffer> arrays;
};

static_assert(sizeof(KernelParameters) <= kMostParameterBytes && sizeof(BufferChunk) <= kMostParameterBytes &&
                  sizeof(AdditionParameters) <= kMostParameterBytes && sizeof(SquareSumParameters) <= kMostParameterBytes,
              "a launch's parameters");

}  // namespace vbgemm
