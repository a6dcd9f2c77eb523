// The host side of the GPU kernels. One call computes a whole plan, adds many arrays, averages them, or sums their squares.
#pragma once
#include "catalogue.h"
#include "gpu/tile/kernel_parameters.h"

namespace vbgemm {

struct GpuCall {
  Kind kind;  // the arithmetic of the products
  DType out_dtype;
  Descriptors plan;       // device pointers
  bool plan_is_computed;  // by the kernel ahead in the stream; otherwise it is a constant of the program
  const Launch* launches;
  int num_launches;
  const void* const* buffers;  // device pointers in a host array: first the operands, then the results
  const int64_t* elements;     // of each buffer
  int num_buffers, num_operands;
  int64_t num_sums;  // accumulators in the workspace that the plan's split-K tiles need
  void* workspace;   // device memory of workspace_bytes(); null if that is 0
};

// Whether a launch has pipelined tiles.
inline bool has_pipelined_tiles(const Launch* launches, int num_launches) {
  for (int i = 0; i < num_launches; ++i) {
    if (launches[i].kernel >= 0 && launches[i].kernel < kKernels && kKernelShapes[launches[i].kernel].pipelined) return true;
  }
  return false;
}

// Size of the workspace (gpu_workspace_bytes).
size_t workspace_bytes(Kind kind, int num_buffers, int64_t num_sums, bool pipelined);

// Returns the kernel's address for the launch functions, or null if this build has no such kernel for the arithmetic.
const void* find_kernel(Kind kind, Kernel kernel);

// Loads the kernels of an arithmetic onto the current device. CUDA otherwise loads a kernel at its first launch, and that launch may be one
// that is only recorded into a graph.
Error load_kernels(Kind kind);

// Enqueues the call's kernels on the stream. It neither allocates, waits nor copies, so that it may be recorded into a CUDA graph. The host
// arrays are not needed after it returns.
Error launch(const GpuCall& call, Stream stream);

// Whether arrays of a dtype can be added and their squares summed: real floating-point dtypes of at least 16 bits.
constexpr bool has_array_kernels(DType dtype) { return !is_complex(dtype) && !is_integer(dtype) && bytes_of(dtype) > 1; }

// Whether arrays of one dtype can be added with results of another one, for matrices that are then multiplied in the narrower dtype.
constexpr bool can_add_into(DType dtype, DType result) {
  return has_array_kernels(dtype) && (dtype == result || (dtype == DType::f32 && (result == DType::bf16 || result == DType::f16)) ||
                                      (dtype == DType::bf16 && result == DType::f16));
}

struct AddScaledCall {
  DType dtype, result;       // of x and y, and of the results; real dtypes
  const void *alpha, *beta;  // device pointers; one accumulator of each for every member
  const Addition* members;   // device pointers, in a host array
  int num_members;
};

// Enqueues the smallest number of kernels that hold all members on the stream, under the conditions of launch().
Error add_scaled(const AddScaledCall& call, Stream stream);

struct SquareSumsCall {
  DType dtype;           // of the arrays; a real dtype
  const Buffer* arrays;  // device pointers, in a host array
  int num_arrays;
  void *sums, *partials;  // device pointers to accumulators: one for each array, and num_partials() of them
};

int64_t num_partials(const SquareSumsCall& call);

// Enqueues two kernels on the stream for each set of arrays that fits one launch, under the conditions of launch().
Error square_sums(const SquareSumsCall& call, Stream stream);

struct AveragesCall {
  DType dtype;             // of the arrays; a real dtype
  const void* scales;      // device pointer to four accumulators
  const Average* members;  // device pointers, in a host array
  int num_members;
  void *sums, *partials;  // sums of the lookahead values' squares, as in a SquareSumsCall
};

int64_t num_partials(const AveragesCall& call);

// As square_sums().
Error averages(const AveragesCall& call, Stream stream);

}  // namespace vbgemm
