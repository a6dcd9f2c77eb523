// What the walk over a plan and the instruction-set-specific kernels have in common: one small product or the shares of one, and how to
// compute it.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "descriptor.h"

namespace vbgemm {

// A matrix in place; strides are in elements and may be anything. data points at element (0, 0).
struct Matrix {
  void* data;
  int64_t row_stride, col_stride;
};

// What happens to sums on their way to c: scale activation(alpha sum + beta source + bias), each addressed like c; data is null where
// there is none. source and bias are of c's dtype, scale of the accumulator's, which must be real. Where beta is 0, source isn't read.
struct Finish {
  double alpha[2], beta[2];  // real and imaginary parts
  Matrix source, bias;
  Activation activation;
  Matrix scale{};
};

// The two matrices of a further product: a m x k, b k x n.
struct Factors {
  int64_t k;
  Matrix a, b;
};

// c = finish(a b), with a m x k, b k x n. out_dtype is that of c, one that the arithmetic gives. k = 0 writes zeros.
struct Product {
  Kind kind;
  DType out_dtype;
  int64_t m, n, k;
  Matrix a, b, c;
  const Finish* finish;      // null: c = a b
  int64_t whole_m, whole_n;  // of the problem that this is a piece of
  bool past_caches;          // is c to be written past the caches?
};

// c = finish(the sum over `shares` of rows x cols sums). The sums are accumulators: rows `pitch` apart, shares `share_stride`.
struct ShareSum {
  Kind kind;
  DType out_dtype;
  int64_t rows, cols;
  const void* first;
  int64_t pitch, shares, share_stride;
  Matrix c;
  const Finish* finish;  // null: c = the sum
};

// A thread's working memory. It is bounded because a product of any size is cut into blocks that fit.
struct alignas(64) Scratch {
  static constexpr int kBytesA = 384 << 10, kBytesB = 96 << 10, kBytesSums = 256 << 10, kBytesResults = 16 << 10, kBytesTotals = 64 << 10;
  char a[kBytesA];               // a block of A, copied where it can't be read well in place: half of a level-2 cache
  char b[kBytesB];               // one panel of B
  char sums[kBytesSums];         // sums over the first part of a long K
  char results[kBytesResults];   // on their way past the caches
  char totals[2][kBytesTotals];  // of products that are added up, and of the next one
};

// The kernels of one instruction set. Every translation unit kernels_*.cc defines one.
struct Kernels {
  const char* name;
  void (*multiply)(const Product&, Scratch&);
  // c = finish(a b + the products of `more`, in their order), past no caches.
  void (*multiply_sum)(const Product&, const Factors* more, int64_t count, Scratch&);
  void (*add_shares)(const ShareSum&);
};
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif
extern const Kernels kPortableKernels;

// The best kernels this machine can run, or those that VBGEMM_CPU_ISA (avx512, avx2, portable) names if it can run them.
const Kernels& kernels();

}  // namespace vbgemm
