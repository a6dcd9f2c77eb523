// The custom call of ragged products: products over groups of rows with runtime sizes. This file has its contract, and the checks between
// its arguments and a kernel. jax_vbgemm/_src/ragged/lowering.py emits it under the name "vbgemm_ragged_v8" on every platform.
//
// Rows belong to groups in order: group j of total_groups has the next max(group_sizes[j], 0) rows, but rows from m on do not exist,
// whatever the sizes say. There are weights for `groups` groups only, beginning with group group_offset: group j has the weights w = j -
// group_offset if 0 <= w < groups. A row "has weights" if its group has; rows after the last group do not. ragged_operands.def lists the
// operands and defines the result.
//
// Group sizes are in device memory, and no host code reads them on a GPU. Weights and biases of groups without rows are never read, and the
// values of a row never reach the result of another group. Sums are computed in the accumulator's dtype, in an order that depends on the
// sizes and the attributes only.
//
// With `gather`, lhs has any number of rows, and row gather[i] of it (the first or last one if there is no such row) takes the place of
// lhs[i].
//
// Operands and results are row-major. With transpose_rhs, rhs is (groups, rhs_columns, rhs_k), and so is second; in a contraction, both
// factors are (columns, rows). An absent operand has no elements and rank 1. Results: out, and the workspace (uint8,
// ragged_workspace_bytes), absent if the plan needs none. The accumulator, which only a ragged contraction with float32 results has, is
// aliased with the result. Operands of the accumulator's type are for real numbers. The result has lhs's dtype, or float32 if that has 16
// bits; of 8-bit factors it is bfloat16 or float32.
//
// A batch of `entries` products is one product, whose rows and matrices are those of its entries, one entry after another. An entry has
// m / entries rows, groups / entries matrices and, in order: a group without weights, a group for each matrix, and a group without weights.
// The sizes of its groups sum to its number of rows, and there is no group_offset. If lhs has fewer rows, or rhs fewer matrices, than all
// entries, they are those of the first entries, and the following entries have the same again.
//
// All sizes are at least 1 and follow from the operands' dimensions.
//
// The attributes are those of RaggedAttributes. catalogue is the hash of the catalogue of tiles to which `tile` refers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "ffi_common.h"
#include "ragged.h"

namespace vbgemm {

// The attributes: how products are formed (a Kind); the form of the call; and its RaggedPlan, which is {none, false, -1} on the CPU.
// clang-format off
#define VBGEMM_RAGGED_ATTRIBUTES(ATTRIBUTE, SEPARATOR)                                    \
  ATTRIBUTE(int64_t, kind) SEPARATOR                                                      \
  ATTRIBUTE(bool, contraction) SEPARATOR ATTRIBUTE(bool, transpose_rhs) SEPARATOR         \
  ATTRIBUTE(int64_t, activation) SEPARATOR ATTRIBUTE(bool, gated) SEPARATOR ATTRIBUTE(int64_t, halves) SEPARATOR \
  ATTRIBUTE(bool, fast_accumulation) SEPARATOR ATTRIBUTE(bool, undefined_rest) SEPARATOR ATTRIBUTE(int64_t, entries) SEPARATOR \
  ATTRIBUTE(int64_t, shape) SEPARATOR ATTRIBUTE(bool, counted) SEPARATOR ATTRIBUTE(int64_t, tile) SEPARATOR \
  ATTRIBUTE(int64_t, catalogue)
// clang-format on

struct RaggedAttributes {
  VBGEMM_RAGGED_ATTRIBUTES(VBGEMM_MEMBER, ;);
};

struct RaggedArguments {
  ffi::RemainingArgs operands;
  ffi::RemainingRets results;
  RaggedAttributes attributes;
};

// Checks that kernels exist for this arithmetic (kind) and dtype of lhs.
inline Fault check_ragged_kind(int64_t kind, ffi::DataType operands, ffi::DataType results) {
  const std::optional<DType> in = dtype_of(operands), out = dtype_of(results);
  if (kind < 0 || kind >= kKinds) {
    return "arithmetic (kind) " + std::to_string(kind) + " does not exist, expected 0 to " + std::to_string(kKinds - 1);
  }
  const Arithmetic& arithmetic = arithmetic_of(static_cast<Kind>(kind));
  if (!in) return "no ragged product has kernels for operands of " + name_of(operands);
  if (arithmetic.lhs != *in) {
    return std::string("arithmetic ") + arithmetic.name + " does not multiply operands of " + name_of(operands);
  }
  if (!out || !gives_ragged(static_cast<Kind>(kind), *out)) {
    return std::string("arithmetic ") + arithmetic.name + " gives no results of " + name_of(results);
  }
  return {};
}

inline std::string text_of(const ffi::Span<const int64_t>& dimensions) {
  std::string text;
  for (const int64_t size : dimensions) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "(" + text + ")";
}

// The sizes of a call, as far as the operands read so far determine them.
class KnownSizes {
 public:
  // Reads the dimensions of an operand.
  Fault read(const RaggedOperandInfo& operand, const OperandShape& shape, bool transposed, const ffi::AnyBuffer& buffer) {
    const ffi::Span<const int64_t> dimensions = buffer.dimensions();
    const auto fault = [&](const std::string& rule) { return operand.name + (" is " + text_of(dimensions)) + ": " + rule; };
    if (static_cast<int>(dimensions.size()) != shape.rank) return fault("it must have " + std::to_string(shape.rank) + " dimensions");
    for (int i = 0; i < shape.rank; ++i) {
      const int place = transposed && i >= shape.rank - 2 ? 2 * shape.rank - 3 - i : i;  // for a matrix, the last two
      const int64_t size = dimensions[i];
      int64_t& known = sizes_[static_cast<int>(shape.sizes[place])];
      const char* const name = kRaggedSizeNames[static_cast<int>(shape.sizes[place])];
      if (size < 1 || size > kRaggedMostSize) return fault(std::string(name) + " must be 1 to " + std::to_string(kRaggedMostSize));
      if (known && known != size) return fault(std::string(name) + " is " + std::to_string(known) + " elsewhere");
      known = size;
    }
    return {};
  }
  int64_t operator[](RaggedSize size) const { return sizes_[static_cast<int>(size)]; }

 private:
  int64_t sizes_[kRaggedSizes] = {};
};

inline const RaggedOperandInfo& result_info() { return kRaggedOperandTable[kRaggedOperands]; }

// Whether an operand of the table is present.
inline bool is_given(int index, const ffi::AnyBuffer& buffer) {
  return index < kRaggedRequired || buffer.element_count() > 0 || buffer.dimensions().size() != 1;
}

inline bool has_real_sums(const RaggedCall& call) {
  const DType accumulator = ragged_accumulator_of(call.kind);
  return accumulator == DType::f32 || accumulator == DType::f64;
}

// Checks the dtype of an operand other than lhs.
inline Fault check_ragged_dtype(const RaggedOperandInfo& operand, ffi::DataType type, RaggedCall& call) {
  const std::string name = operand.name;
  const std::optional<DType> dtype = dtype_of(type);
  switch (operand.type) {
    case RaggedType::lhs: return {};
    case RaggedType::rhs:
      if (&operand == &kRaggedOperandTable[1] && dtype) call.rhs_dtype = *dtype;
      if (dtype == call.rhs_dtype && (dtype == arithmetic_of(call.kind).rhs || may_be_mixed(call.kind, *dtype))) return {};
      return name + " must have the dtype that the arithmetic multiplies on its side, or be narrower weights of 16-bit rows";
    case RaggedType::result: return dtype == call.out_dtype ? Fault{} : name + " must have the result's dtype";
    case RaggedType::accumulator:
      if (dtype == ragged_accumulator_of(call.kind) && has_real_sums(call)) return {};
      return name + " must have the accumulator's dtype, which must be real";
    case RaggedType::index: return type == ffi::DataType::S32 ? Fault{} : name + " must be int32";
    case RaggedType::group_size: call.wide_sizes = type == ffi::DataType::S64;
  }
  return call.wide_sizes || type == ffi::DataType::S32 ? Fault{} : name + " must be int32 or int64";
}

// Fills in the sizes of `call`, whose form is known, its operands and its result.
inline Fault check_ragged_buffers(const RaggedArguments& given, RaggedCall& call) {
  const ffi::AnyBuffer out = **given.results.get<ffi::AnyBuffer>(0);
  KnownSizes known;
  if (Fault fault = known.read(result_info(), shape_of(call, result_info()), false, out)) return fault;
  for (int i = 0; i < kRaggedOperands; ++i) {
    const RaggedOperandInfo& operand = kRaggedOperandTable[i];
    const ffi::AnyBuffer buffer = *given.operands.get<ffi::AnyBuffer>(i);
    const OperandShape& shape = shape_of(call, operand);
    call.*kRaggedMembers[i] = nullptr;
    if (!is_given(i, buffer)) continue;
    if (shape.rank < 0)
      return std::string(call.contraction ? "a ragged contraction has no " : "only a ragged contraction has an ") + operand.name;
    // Which operands have a transposed form: in ragged rows those with a matrix for each group; in a contraction both factors and their
    // scales.
    const bool transposed = call.transpose_rhs && shape.rank == (call.contraction ? 2 : 3);
    if (Fault fault = known.read(operand, shape, transposed, buffer)) return fault;
    if (Fault fault = check_ragged_dtype(operand, buffer.element_type(), call)) return fault;
    call.*kRaggedMembers[i] = buffer.untyped_data();
  }
  call.lhs_rows = known[RaggedSize::lhs_rows], call.k = known[RaggedSize::k];
  call.m = known[RaggedSize::m], call.n = known[RaggedSize::n];
  call.total_groups = known[RaggedSize::total_groups];
  // A batch of ragged rows may have no operand with a matrix for each of its groups.
  call.groups =
      call.entries > 1 ? call.total_groups - 2 * call.entries : known[call.contraction ? RaggedSize::groups : RaggedSize::rhs_groups];
  call.rhs_groups = call.contraction ? call.groups : known[RaggedSize::rhs_groups];
  call.lhs_blocks = known[RaggedSize::lhs_blocks];
  call.rhs_k_blocks = known[RaggedSize::rhs_k_blocks], call.rhs_column_blocks = known[RaggedSize::rhs_column_blocks];
  for (const RaggedSize derived :
       {RaggedSize::groups, RaggedSize::columns, RaggedSize::lhs_columns, RaggedSize::rhs_k, RaggedSize::rhs_columns}) {
    if (known[derived] && known[derived] != call.size(derived)) {
      return kRaggedSizeNames[static_cast<int>(derived)] + (" is " + std::to_string(known[derived])) + ", expected " +
             std::to_string(call.size(derived));
    }
  }
  call.out = out.untyped_data();
  return {};
}

// Checks that the sizes are those of a batch of call.entries products, or of one product.
inline Fault check_ragged_batch(const RaggedCall& call) {
  const std::string batch = "a batch of " + std::to_string(call.entries) + " entries ";
  if (call.groups < call.entries || call.groups % call.entries || call.m % call.entries) {
    return batch + "must have equally many rows, and equally many matrices, in each entry";
  }
  if (call.entries > 1 && call.group_offset) return batch + "has no group_offset";
  const int64_t matrices = call.groups / call.entries;
  if (!call.gather && (call.m % call.lhs_rows || call.lhs_rows % call.entry_rows())) {
    return call.entries > 1 ? batch + "must have rows of lhs for some number of entries"
                            : "lhs must have m rows, as the call has no gather";
  }
  if (call.lhs_scale && !call.gather && call.lhs_rows != call.m) return batch + "must have scaled rows of lhs for each entry";
  if (call.groups % call.rhs_groups || call.rhs_groups % matrices) return batch + "must have matrices of rhs for some number of entries";
  if (call.contraction && call.transpose_rhs && (call.lhs_rows != call.m || (call.entries > 1 && call.entry_rows() % kScaledDepth))) {
    return "a ragged contraction with transpose_rhs must have rows of its own, a multiple of 128, in each entry";
  }
  return {};
}

// Checks that the call has only operands and attributes that its product supports.
inline Fault check_ragged_rules(const RaggedCall& call) {
  if (!has_real_sums(call) && (call.activation != Activation::none || call.gated)) return "complex numbers have no activation";
  if (call.contraction && (call.activation != Activation::none || call.gated)) return "a ragged contraction has no epilogue";
  if (call.contraction && call.transpose_rhs && (!has_scales(call.kind) || call.halves != RaggedHalves::none)) {
    return "a ragged contraction has transpose_rhs for 8-bit factors only, and then no halves";
  }
  const bool of_rows = call.halves == RaggedHalves::columns || call.halves == RaggedHalves::k;
  if (call.contraction ? of_rows : call.halves > RaggedHalves::k) {
    return std::string("halves of ") + kRaggedHalvesNames[static_cast<int>(call.halves)] + " are not for this form";
  }
  if (of_rows != (call.second != nullptr)) return "second must be given with halves of columns or of k, and only with them";
  if ((call.halves == RaggedHalves::k && call.k % 2) || (call.halves == RaggedHalves::columns && call.columns() % 2)) {
    return "what comes in halves must be even";
  }
  if (call.lhs_scale && !has_scales(call.kind)) return "lhs_scale is for 8-bit factors";
  if (call.rhs_scale && !has_scales(call.kind) && !call.is_mixed())
    return "rhs_scale is for 8-bit factors and for narrower weights of 16-bit rows";
  if (call.is_mixed() && (call.contraction || !call.transpose_rhs || call.halves != RaggedHalves::none)) {
    return "narrower weights of 16-bit rows must be transposed and in one array";
  }
  const auto blocks = [](const void* scale, int64_t given, int64_t size, int each) {
    return !scale || given == 1 || given == tiles_over(size, each);
  };
  if (call.contraction && !call.transpose_rhs && (call.lhs_scale || call.rhs_scale)) {
    return "a ragged contraction with scales must have transpose_rhs";
  }
  const int64_t depth = call.contraction ? call.m : call.k;
  const bool per_column = has_column_scales(call);
  if (!blocks(call.lhs_scale, call.lhs_blocks, call.k, call.contraction ? kScaledColumns : kScaledDepth) ||
      (call.contraction && !blocks(call.lhs_scale, call.rhs_k_blocks, depth, kScaledDepth)) ||
      !blocks(call.rhs_scale, call.rhs_k_blocks, depth, kScaledDepth) ||
      !(blocks(call.rhs_scale, call.rhs_column_blocks, call.columns(), kScaledColumns) || per_column)) {
    return "a scale must have one block, or one for each 128 K elements and 128 columns";
  }
  if (per_column && call.rhs_column_blocks > 1 && call.rhs_k_blocks > 1 && !call.is_mixed()) {
    return "beside 8-bit lhs, a scale of a single column must have all of K";
  }
  if (call.gated && call.rhs_scale && call.rhs_column_blocks > 1 && !per_column && call.n % kScaledColumns) {
    return "blocks of columns of a gated product must not lie in both halves";
  }
  if (call.halves == RaggedHalves::k && call.gated) return "a gated product has halves of columns";
  if (std::max(call.columns(), std::max(call.lhs_columns(), call.rhs_columns())) > kRaggedMostSize) {
    return "both halves have too many columns for 32 bits";
  }
  if (call.undefined_rest && call.contraction) return "a contraction has no rows without weights that could be undefined";
  if (call.accumulator && call.out_dtype != DType::f32) return "an accumulator and its results must be float32";
  if (call.accumulator && call.accumulator != call.out) return "the accumulator's memory must be that of the result";
  return {};
}

// Fills in `call` except for its plan, or returns an error.
inline Fault check_ragged_call(const RaggedArguments& given, RaggedCall& call) {
  const RaggedAttributes& attributes = given.attributes;
  if (given.operands.size() != kRaggedOperands) {
    return "a ragged call has " + std::to_string(kRaggedOperands) + " operands, not " + std::to_string(given.operands.size());
  }
  if (given.results.size() < 1 || given.results.size() > 2) return "a ragged call has one result beside its workspace";
  if (Fault fault = check_activation(attributes.activation)) return fault;
  if (attributes.halves < 0 || attributes.halves >= kRaggedHalves)
    return "halves are " + std::to_string(attributes.halves) + ", which does not exist";
  call.halves = static_cast<RaggedHalves>(attributes.halves);
  call.contraction = attributes.contraction, call.transpose_rhs = attributes.transpose_rhs, call.gated = attributes.gated;
  call.activation = static_cast<Activation>(attributes.activation);
  call.fast_accumulation = attributes.fast_accumulation, call.undefined_rest = attributes.undefined_rest;
  if (attributes.entries < 1 || attributes.entries > kRaggedMostSize) return "a batch must have at least one entry, in 32 bits";
  call.entries = attributes.entries;
  const ffi::AnyBuffer lhs = *given.operands.get<ffi::AnyBuffer>(0), out = **given.results.get<ffi::AnyBuffer>(0);
  if (Fault fault = check_ragged_kind(attributes.kind, lhs.element_type(), out.element_type())) return fault;
  call.dtype = *dtype_of(lhs.element_type()), call.out_dtype = *dtype_of(out.element_type());
  call.kind = static_cast<Kind>(attributes.kind);
  if (Fault fault = check_ragged_buffers(given, call)) return fault;
  if (Fault fault = check_ragged_batch(call)) return fault;
  if (Fault fault = check_ragged_rules(call)) return fault;
  if (given.results.size() == 2) {
    const ffi::AnyBuffer workspace = **given.results.get<ffi::AnyBuffer>(1);
    call.workspace = workspace.untyped_data(), call.workspace_bytes = static_cast<int64_t>(workspace.size_bytes());
  }
  return {};
}

// Fills in the plan of `call`; `has_tile` tells whether a tile of the catalogue exists.
template <class HasTile>
inline Fault check_ragged_plan(const RaggedAttributes& attributes, const HasTile& has_tile, RaggedCall& call) {
  if (attributes.shape < 0 || attributes.shape >= kRaggedShapes)
    return "the plan's shape is " + std::to_string(attributes.shape) + ", which does not exist";
  if (attributes.tile < -1 || attributes.tile >= kNumTiles)
    return "the plan's tile is " + std::to_string(attributes.tile) + ", which does not exist";
  call.plan = {static_cast<RaggedShape>(attributes.shape), attributes.counted, static_cast<int32_t>(attributes.tile)};
  if (call.plan.tile >= 0) {
    if (attributes.catalogue != catalogue_hash()) return "this program was planned with another version of jax_vbgemm: lower it again";
    const TileShape& tile = kTiles[call.plan.tile];
    if (!has_tile(tile)) return std::string("tile ") + tile.name + " has no kernel for this arithmetic here";
    if (max_tiles(call, tile.m, tile.n) > kRaggedMostTiles) return "the call has too many tiles for 32 bits";
  }
  const int64_t needed = ragged_workspace_bytes(call);
  if (needed > 0 && call.workspace_bytes < needed) return "the workspace must have " + std::to_string(needed) + " bytes";
  return {};
}

}  // namespace vbgemm

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(vbgemm::RaggedAttributes, VBGEMM_RAGGED_ATTRIBUTES(VBGEMM_STRUCT_MEMBER, VBGEMM_COMMA));
