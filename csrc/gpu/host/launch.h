// The GPU kernels' host side: one call computes a whole plan, adds many arrays, or sums the squares of many.
#pragma once
#include "catalogue.h"
#include "gpu/tile/kernel_parameters.h"

namespace vbgemm {

struct GpuCall {
  Kind kind;  // of the products
  DType out_dtype;
  Descriptors plan;  // device pointers
  const Launch* launches;
  int num_launches;
  const void* const* buffers;  // device pointers, in a host array: operands, then results
  const int64_t* elements;     // of each buffer
  int num_buffers, num_operands;
  int64_t num_sums;  // accumulators that the plan's split tiles need
  void* workspace;   // device memory of workspace_bytes(); null where that is 0
};

// The workspace holds the table of buffers where the parameters cannot, then the sums of split K.
size_t workspace_bytes(Kind kind, int num_buffers, int64_t num_sums);

// The kernel's address for the launch functions; null where this build has none for the kind.
const void* find_kernel(Kind kind, Kernel kernel);

// Loads a kind's kernels onto the current device. CUDA does that at a kernel's first launch otherwise, and the first launch may be one
// that is only recorded into a graph.
Error load_kernels(Kind kind);

// Puts the call's kernels into the stream. It neither allocates nor waits nor copies, so it may be recorded into a CUDA graph. The host
// arrays are not needed after it returns.
Error launch(const GpuCall& call, Stream stream);

// Arrays of real floating-point numbers of 16 bits or more are added, and their squares summed.
constexpr bool has_array_kernels(DType dtype) { return !is_complex(dtype) && !is_integer(dtype) && bytes_of(dtype) > 1; }

struct AddScaledCall {
  DType dtype;               // of x, y and results; a real one
  const void *alpha, *beta;  // device pointers: accumulators, one of each a member
  const Addition* members;   // device pointers, in a host array
  int num_members;
};

// Puts as few kernels as hold the members into the stream; under the same conditions as launch().
Error add_scaled(const AddScaledCall& call, Stream stream);

struct SquareSumsCall {
  DType dtype;           // of the arrays; a real one
  const Buffer* arrays;  // device pointers, in a host array
  int num_arrays;
  void *sums, *partials;  // device pointers: accumulators, one an array and num_partials()
};

int64_t num_partials(const SquareSumsCall& call);

// Puts two kernels for as many arrays as they hold into the stream; under the same conditions as launch().
Error square_sums(const SquareSumsCall& call, Stream stream);

}  // namespace vbgemm
