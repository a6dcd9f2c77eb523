// The custom call of ragged products: products over rows in groups whose sizes are data. This file has its contract, and the checks between
// its arguments and a kernel. jax_vbgemm/_src/ragged/lowering.py emits it under the name "vbgemm_ragged_v3" on every platform.
//
// Rows belong to groups in order: group j of total_groups has the next max(group_sizes[j], 0) rows, but rows from m on do not exist,
// whatever the sizes say. There are weights for `groups` groups only, beginning with group group_offset: group j has the weights w = j -
// group_offset if 0 <= w < groups. A row "has weights" if its group has; rows after the last group do not.
//
//   ragged rows         out[i] = row_scale[i] activation(lhs[i] op(rhs[w]) + bias[w]) where row i has weights, else zeros
//   gated ragged rows   out[i] = row_scale[i] activation(gate) up, where (gate, up) are both halves of lhs[i] op(rhs[w]) + bias[w]
//   ragged contraction  out[w] = accumulator[w] + sum over the rows i of w's group of lhs[i]^T rhs[i]; accumulator[w] where it has none, or
//                       zeros if there is no accumulator
//
// Group sizes are in device memory, and no host code reads them on a GPU. Weights and biases of groups without rows are never read, and the
// values of a row never reach the result of another group. Sums are computed in the accumulator's dtype, in an order that depends on the
// sizes and the attributes only.
//
// With `gather`, lhs has any number of rows, and row gather[i] of it (the first or last one if there is no such row) takes the place of
// lhs[i].
//
// Operands, all row-major; an operand that the call does not have is empty:
//   0 lhs           (lhs_rows, k)   lhs_rows is m without gather
//   1 rhs           ragged rows: (groups, k, n), or (groups, n, k) with transpose_rhs; ragged contraction: (m, n); lhs's dtype
//                   (gated: 2 n in place of n, here and for the bias)
//   2 group_sizes   (total_groups)  int32 or int64
//   3 bias          (groups, n)     the result's dtype
//   4 row_scale     (m)             the accumulator's dtype, which is real
//   5 group_offset  ()              int32; 0 if absent
//   6 gather        (m)             int32
//   7 accumulator   as the result, with whose memory it is aliased; only of a ragged contraction with results of float32
// Results:
//   0 out           ragged rows: (m, n); ragged contraction: (groups, k, n); lhs's dtype, or float32 if that has 16 bits
//   1 workspace     bytes (uint8) that the plan needs (ragged_workspace_bytes); absent if it needs none
// Attributes:
//   kind            how products are formed (Kind)
//   contraction     0: ragged rows; 1: ragged contraction, which has neither transpose_rhs nor operands 3, 4 and 6 nor activation
//   transpose_rhs   0 or 1
//   activation      Activation
//   gated           0 or 1
//   sizes           m, k, n, groups, total_groups, batch[0], batch[1], lhs_rows; all at least 1
//   batch_strides   two for each operand, in elements
//   plan            int32 words. CPU: empty. GPU: those of a RaggedPlan. Only the pipelined kernel has row_scale, gather, accumulators
//                   and gated products
//   catalogue       the hash of the catalogue of tiles that the plan refers to
//
// All of this is computed for batch[0] x batch[1] entries. Entry (b0, b1) of an operand begins b0 batch_strides[0] + b1 batch_strides[1]
// elements after its first entry; an operand that all entries share has strides of 0. Results are dense.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ffi_common.h"
#include "ragged.h"

namespace vbgemm {

struct RaggedArguments {
  ffi::RemainingArgs operands;
  ffi::RemainingRets results;
  int64_t kind, contraction, transpose_rhs, activation, gated;
  ffi::Span<const int64_t> sizes, batch_strides;
  ffi::Span<const int32_t> plan;
  int64_t catalogue;
};

#define VBGEMM_BIND_RAGGED_ARGUMENTS(binding)                 \
  binding.RemainingArgs()                                     \
      .RemainingRets()                                        \
      .Attr<int64_t>("kind")                                  \
      .Attr<int64_t>("contraction")                           \
      .Attr<int64_t>("transpose_rhs")                         \
      .Attr<int64_t>("activation")                            \
      .Attr<int64_t>("gated")                                 \
      .Attr<::xla::ffi::Span<const int64_t>>("sizes")         \
      .Attr<::xla::ffi::Span<const int64_t>>("batch_strides") \
      .Attr<::xla::ffi::Span<const int32_t>>("plan")          \
      .Attr<int64_t>("catalogue")

// Checks that products whose operands have one dtype have kernels. 8-bit types have no such kernels.
inline Fault check_ragged_kind(int64_t kind, ffi::DataType operands, ffi::DataType results) {
  const std::optional<DType> in = dtype_of(operands), out = dtype_of(results);
  if (kind < 0 || kind >= kKinds) {
    return "arithmetic (kind) " + std::to_string(kind) + " does not exist, expected 0 to " + std::to_string(kKinds - 1);
  }
  const Arithmetic& arithmetic = arithmetic_of(static_cast<Kind>(kind));
  if (!in || bytes_of(*in) == 1) return "no ragged product has kernels for operands of " + name_of(operands);
  if (arithmetic.lhs != *in || arithmetic.rhs != *in) {
    return std::string("arithmetic ") + arithmetic.name + " does not multiply operands of " + name_of(operands);
  }
  if (!out || !arithmetic.gives(*out)) return std::string("arithmetic ") + arithmetic.name + " gives no results of " + name_of(results);
  return {};
}

inline constexpr int kRaggedOperands = 8, kRaggedSizes = 8;
inline constexpr const char* kRaggedOperandNames[kRaggedOperands] = {"lhs",       "rhs",          "group_sizes", "bias",
                                                                     "row_scale", "group_offset", "gather",      "accumulator"};

// Checks how many operands, results and numbers a call has.
inline ffi::Error check_ragged_counts(const RaggedArguments& given) {
  const Bound counts[] = {
      {"the number of operands", static_cast<int64_t>(given.operands.size()), kRaggedOperands, kRaggedOperands, "those of a ragged call"},
      {"the number of results", static_cast<int64_t>(given.results.size()), 1, 2, "a ragged call has one beside its workspace"},
      {"the number of sizes", static_cast<int64_t>(given.sizes.size()), kRaggedSizes, kRaggedSizes, "those of a ragged call"},
      {"the number of batch strides", static_cast<int64_t>(given.batch_strides.size()), 2 * kRaggedOperands, 2 * kRaggedOperands,
       "two for each operand"},
  };
  return check_bounds(counts);
}

// Fills in the sizes and the flags of `call`.
inline ffi::Error check_ragged_sizes(const RaggedArguments& given, RaggedCall& call) {
  const auto& sizes = given.sizes;
  const auto of_size = [&sizes](const char* name, int i) { return Bound{name, sizes[i], 1, kRaggedMostSize, "sizes have 32 bits"}; };
  const Bound of_sizes[kRaggedSizes] = {
      of_size("m", 0),        of_size("k", 1),        of_size("n", 2),       of_size("groups", 3), of_size("total_groups", 4),
      of_size("batch[0]", 5), of_size("batch[1]", 6), of_size("lhs_rows", 7)};
  if (ffi::Error error = check_bounds(of_sizes); error.failure()) return error;
  call.m = sizes[0], call.k = sizes[1], call.n = sizes[2], call.groups = sizes[3], call.total_groups = sizes[4];
  call.batch[0] = sizes[5], call.batch[1] = sizes[6], call.lhs_rows = sizes[7];
  call.contraction = given.contraction != 0, call.transpose_rhs = given.transpose_rhs != 0, call.gated = given.gated != 0;
  if (call.columns() > kRaggedMostSize) return refuse("both halves of a gated product have too many columns for 32 bits");
  return ffi::Error::Success();
}

// Fills in the operands and the result of `call`, whose sizes are known: they must have as many elements as these need.
inline ffi::Error check_ragged_buffers(const ffi::AnyBuffer (&buffers)[kRaggedOperands], const ffi::AnyBuffer& out,
                                       const int64_t* batch_strides, RaggedCall& call) {
  const __int128 entry = call.contraction ? __int128{call.groups} * call.k * call.n : __int128{call.m} * call.n;
  const __int128 whole[kRaggedOperands] = {__int128{call.lhs_rows} * call.k,
                                           call.contraction ? __int128{call.m} * call.n : __int128{call.groups} * call.k * call.columns(),
                                           call.total_groups,
                                           __int128{call.groups} * call.columns(),
                                           call.m,
                                           1,
                                           call.m,
                                           entry};
  RaggedOperand* const operand[kRaggedOperands] = {&call.lhs,       &call.rhs,          &call.group_sizes, &call.bias,
                                                   &call.row_scale, &call.group_offset, &call.gather,      &call.accumulator};
  for (int i = 0; i < kRaggedOperands; ++i) {
    const int64_t elements = buffers[i].element_count(), *stride = batch_strides + 2 * i;
    *operand[i] = {elements ? buffers[i].untyped_data() : nullptr, {stride[0], stride[1]}};
    if (!elements && i >= 3) continue;
    const std::string name = kRaggedOperandNames[i];
    if (stride[0] < 0 || stride[1] < 0) return refuse(name + " has a negative batch stride");
    const __int128 end = (call.batch[0] - 1) * __int128{stride[0]} + (call.batch[1] - 1) * __int128{stride[1]} + whole[i];
    if (end > elements) return refuse(name + " has " + std::to_string(elements) + " elements, fewer than the call's sizes need");
  }
  if (entry * call.batch[0] * call.batch[1] != static_cast<int64_t>(out.element_count()))
    return refuse("the result has " + std::to_string(out.element_count()) + " elements, not the number that the call's sizes need");
  call.out = out.untyped_data();
  return ffi::Error::Success();
}

// Checks the dtypes of the operands beside lhs, and that the call has only operands that its product can have.
inline ffi::Error check_ragged_rules(const ffi::AnyBuffer (&buffers)[kRaggedOperands], RaggedCall& call) {
  if (buffers[1].element_type() != buffers[0].element_type()) return refuse("lhs and rhs must have one dtype");
  const ffi::DataType size_type = buffers[2].element_type();
  if (size_type != ffi::DataType::S32 && size_type != ffi::DataType::S64) return refuse("group_sizes must be int32 or int64");
  call.wide_sizes = size_type == ffi::DataType::S64;
  if (call.bias.data && dtype_of(buffers[3].element_type()) != call.out_dtype) return refuse("bias must have the result's dtype");
  const DType accumulator = accumulator_of(call.kind);
  const bool is_real = accumulator == DType::f32 || accumulator == DType::f64;
  if (call.row_scale.data && (!is_real || dtype_of(buffers[4].element_type()) != accumulator)) {
    return refuse("row_scale must have the accumulator's dtype, which must be real");
  }
  if (!is_real && (call.activation != Activation::none || call.gated)) return refuse("complex numbers have no activation");
  if (call.group_offset.data && buffers[5].element_type() != ffi::DataType::S32) return refuse("group_offset must be int32");
  if (call.gather.data && buffers[6].element_type() != ffi::DataType::S32) return refuse("gather must be int32");
  if (!call.gather.data && call.lhs_rows != call.m) return refuse("lhs must have m rows, as the call has no gather");
  const bool finishes = call.bias.data || call.row_scale.data || call.activation != Activation::none || call.gated;
  if (call.contraction && (call.transpose_rhs || finishes || call.gather.data)) {
    return refuse("a ragged contraction has neither transpose_rhs nor gather nor an epilogue");
  }
  if (call.accumulator.data) {
    if (!call.contraction) return refuse("only a ragged contraction has an accumulator");
    if (call.out_dtype != DType::f32 || buffers[7].element_type() != ffi::DataType::F32) {
      return refuse("an accumulator and its results must be float32");
    }
    if (call.accumulator.data != call.out) return refuse("the accumulator's memory must be that of the result");
  }
  return ffi::Error::Success();
}

// Fills in the plan of `call`, for which `has_tile` says which tiles of the catalogue there are. A GPU's handler calls this.
template <class HasTile>
inline ffi::Error check_ragged_plan(const RaggedArguments& given, const HasTile& has_tile, RaggedCall& call) {
  constexpr int kWords = sizeof(RaggedPlan) / sizeof(int32_t);
  if (given.plan.size() != kWords) return refuse("the plan of a ragged call on a GPU must have " + std::to_string(kWords) + " words");
  const int32_t* const words = given.plan.begin();
  const Bound bounds[] = {
      {"the plan's shape", words[0], 0, kRaggedShapes - 1, "RaggedShape"},
      {"the plan's counter", words[1], 0, 1, "it is used or not"},
      {"the plan's tile", words[2], -1, kNumTiles - 1, "rows of the catalogue"},
  };
  if (ffi::Error error = check_bounds(bounds); error.failure()) return error;
  call.plan = {static_cast<RaggedShape>(words[0]), words[1], words[2]};
  if (call.plan.tile >= 0) {
    if (given.catalogue != catalogue_hash()) return refuse("this program was planned with another version of jax_vbgemm: lower it again");
    const TileShape& tile = kTiles[call.plan.tile];
    if (!has_tile(tile)) return refuse(std::string("tile ") + tile.name + " has no kernel for this arithmetic here");
    if (max_tiles(call, tile.m, tile.n) > kRaggedMostTiles) return refuse("the call has too many tiles for 32 bits");
  }
  const int64_t needed = ragged_workspace_bytes(call);
  if (needed > 0 && call.workspace_bytes < needed) return refuse("the workspace must have " + std::to_string(needed) + " bytes");
  return ffi::Error::Success();
}

// Fills in `call` except for its plan, or returns an error that names the argument and the rule it breaks.
inline ffi::Error check_ragged(const RaggedArguments& given, RaggedCall& call) {
  if (ffi::Error error = check_ragged_counts(given); error.failure()) return error;
  if (ffi::Error error = check_ragged_sizes(given, call); error.failure()) return error;
  if (const Fault fault = check_activation(given.activation)) return refuse(*fault);
  call.activation = static_cast<Activation>(given.activation);

  const ffi::RemainingArgs& operands = given.operands;
  const ffi::AnyBuffer buffers[kRaggedOperands] = {*operands.get<ffi::AnyBuffer>(0), *operands.get<ffi::AnyBuffer>(1),
                                                   *operands.get<ffi::AnyBuffer>(2), *operands.get<ffi::AnyBuffer>(3),
                                                   *operands.get<ffi::AnyBuffer>(4), *operands.get<ffi::AnyBuffer>(5),
                                                   *operands.get<ffi::AnyBuffer>(6), *operands.get<ffi::AnyBuffer>(7)};
  const ffi::AnyBuffer out = **given.results.get<ffi::AnyBuffer>(0);
  if (const Fault fault = check_ragged_kind(given.kind, buffers[0].element_type(), out.element_type())) return refuse(*fault);
  call.dtype = *dtype_of(buffers[0].element_type()), call.out_dtype = *dtype_of(out.element_type());
  call.kind = static_cast<Kind>(given.kind);
  if (ffi::Error error = check_ragged_buffers(buffers, out, given.batch_strides.begin(), call); error.failure()) return error;
  if (ffi::Error error = check_ragged_rules(buffers, call); error.failure()) return error;

  call.workspace = nullptr, call.workspace_bytes = 0;
  if (given.results.size() == 2) {
    const ffi::AnyBuffer workspace = **given.results.get<ffi::AnyBuffer>(1);
    call.workspace = workspace.untyped_data(), call.workspace_bytes = static_cast<int64_t>(workspace.size_bytes());
  }
  call.plan = {RaggedShape::none, 0, -1};
  return ffi::Error::Success();
}

}  // namespace vbgemm
