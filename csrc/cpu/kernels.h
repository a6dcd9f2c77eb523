// The interface between the walk over a plan and the kernels of one instruction set: the description of a small product or of split-K
// partial sums, and the functions that compute it.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "descriptor.h"

namespace vbgemm {

// A matrix in a buffer. Strides are in elements and may have any value; data points at element (0, 0).
struct Matrix {
  void* data;
  int64_t row_stride, col_stride;
};

// The epilogue: scale activation(alpha sum + beta source + bias). source, bias and scale are addressed like c; their data is null where the
// epilogue does not have them. source and bias have c's dtype; scale has the accumulator's, which must be real. If beta is 0, source is not
// read.
struct Finish {
  double alpha[2], beta[2];  // real and imaginary parts
  Matrix source, bias;
  Activation activation;
  Matrix scale{};
};

// The factors of a further product of a sum: a is m x k, b is k x n.
struct Factors {
  int64_t k;
  Matrix a, b;
};

// c = finish(a b), where a is m x k and b is k x n. out_dtype is the dtype of c, one that the arithmetic can give. k = 0 writes zeros.
struct Product {
  Kind kind;
  DType out_dtype;
  int64_t m, n, k;
  Matrix a, b, c;
  const Finish* finish;      // null: c = a b
  int64_t whole_m, whole_n;  // sizes of the whole problem that this product is a part of
  bool may_stream;           // whether c may be written by streaming (non-temporal) stores
};

// c = finish(the sum over `slices` sets of split-K partial sums, each rows x cols accumulators). The rows of a set are `pitch` apart, the
// sets `slice_stride`.
struct PartialSums {
  Kind kind;
  DType out_dtype;
  int64_t rows, cols;
  const void* first;
  int64_t pitch, slices, slice_stride;  // in accumulators
  Matrix c;
  const Finish* finish;  // null: c = the sum
};

// A thread's working memory. Its size is fixed, because a product of any size is cut into blocks that fit.
struct alignas(64) Scratch {
  static constexpr int kBytesA = 384 << 10, kBytesB = 96 << 10, kBytesSums = 256 << 10, kBytesResults = 16 << 10, kBytesTotals = 64 << 10;
  char a[kBytesA];               // a copy of a block of A that cannot be read efficiently in place: half of a level-2 cache
  char b[kBytesB];               // one panel of B
  char sums[kBytesSums];         // partial sums over the first parts of a large K
  char results[kBytesResults];   // results before their streaming stores
  char totals[2][kBytesTotals];  // the running total of a sum of products, and the next product
};

// The kernels of one instruction set. Each translation unit kernels_*.cc defines one such set.
struct Kernels {
  const char* name;
  void (*multiply)(const Product&, Scratch&);
  // c = finish(a b + the products of `more`, in order), without streaming stores.
  void (*multiply_sum)(const Product&, const Factors* more, int64_t count, Scratch&);
  void (*add_partial_sums)(const PartialSums&);
};
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif
extern const Kernels kPortableKernels;

// Returns the best kernels that this machine can run, or those that VBGEMM_CPU_ISA (avx512, avx2, portable) names, if the machine can run
// them.
const Kernels& kernels();

}  // namespace vbgemm
