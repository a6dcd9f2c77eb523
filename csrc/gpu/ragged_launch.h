// The host side of ragged products on a GPU: one matrix product for each group of rows, where the groups' sizes are data on the device.
//
//   rows          out[rows of group i] = lhs[rows of group i] @ rhs[i]          (m, k) x (g, k, n) -> (m, n)
//   contraction   out[i] = lhs[rows of group i]^T @ rhs[rows of group i]        (m, k) x (m, n) -> (g, k, n)
//
// The groups' rows follow each other from row 0 on. A negative size counts as 0, and what reaches beyond row m is cut off. Of all
// `num_sizes` groups, those from *group_offset on, g of them, have a matrix; rows of other groups, and rows behind the last group, become
// zero, as do the contractions of empty groups. With one group of m rows this is an ordinary matrix product.
#pragma once
#include "../catalogue.h"
#include "../descriptor.h"
#include "gpu_vendor.h"

namespace vbgemm {

// What the pipelined kernel computes at a time: 128 x 256 elements of the result a block, by pairs of blocks that share what they copy, or
// alone; or 128 x 128.
enum class RaggedShape : int32_t { automatic, wide_pair, wide, narrow };

inline constexpr int kRaggedWorkspaceBytes = 4;

// One entry of a batch, or all there is.
struct RaggedEntry {
  Kind kind;                    // how products are formed; its element type is the operands'
  DType out_dtype;              // the operands', or float32 where they have 16 bits
  bool contraction;             // else rows
  bool transpose_rhs;           // rows: rhs is (g, n, k)
  bool wide_sizes;              // group_sizes are int64, else int32
  Activation activation;        // rows: the result is row_scale[row] activation(sum + bias[i]), rounded once
  int64_t m, k, n, g, num_sizes;
  const void *lhs, *rhs;        // device pointers, row-major; so are all below
  const void* group_sizes;      // (num_sizes)
  const int32_t* group_offset;  // one number; null: 0
  const void* bias;             // (g, n) of the result's dtype; null: none
  const void* row_scale;        // (m) accumulators, which must be real; null: none
  void* out;
  void* workspace;              // kRaggedWorkspaceBytes; null: blocks take tiles in turn, however long those take
  RaggedShape shape;            // automatic: by the sizes that the host knows
};

// Puts the product into the stream. It neither allocates nor waits nor copies, so it may be recorded into a CUDA graph; the sizes are read
// when the kernel runs. The result has the same bits in every run.
Error launch_ragged(const RaggedEntry& entry, Stream stream);

// Loads the kernel of a call onto the current device, before a launch of it may be recorded into a graph.
Error load_ragged(const RaggedEntry& entry);

}  // namespace vbgemm
