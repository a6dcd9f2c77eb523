// The custom call of packed rows times weights of different shapes. This file has its contract, and the checks between its arguments and a
// kernel. jax_vbgemm/_src/ragged/lists_lowering.py emits it, on the CPU under the name "vbgemm_ragged_lists_v1", and on GPUs under the name
// "vbgemm_gpu_ragged_lists_v1".
//
// Group i has the weights op(B_i) of shape (k_i, n_i), and the next max(group_sizes[i], 0) rows, of k_i numbers each in x and n_i numbers
// in y, packed without gaps. Rows from `rows` on do not exist, and a row that does not lie completely in x and y is left out.
//
//   packed rows         y = x op(B_i), row by row; elements of y that belong to no row are zero
//   packed contraction  D_i = x^T y over the rows of group i
//
// Operands: x (x_size), group_sizes (groups; int32 or int64), then the weights (k_i, n_i), or (n_i, k_i) with transpose_rhs. A contraction
// has y (y_size) in place of the weights. On a GPU there is a last operand, (groups, 2) of int32, which holds k_i and n_i for the device.
// Results: y, or, of a contraction, the D_i (k_i, n_i). On a GPU there is a last result, the workspace: packed_workspace_bytes() of uint8.
// Attributes: kind, contraction, transpose_rhs; sizes: rows, x_size, y_size, entries; shapes: k_i, n_i of each group; shared: for each
// operand but the GPU's, 1 if all entries of the batch use the same one. Otherwise the entries of an operand are dense, as are those of the
// results. On a GPU also tile, the row of the catalogue by which the call is computed, and catalogue, the catalogue's hash.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ffi_common.h"
#include "ragged_call.h"

namespace vbgemm {

struct PackedArguments {
  ffi::RemainingArgs operands;
  ffi::RemainingRets results;
  int64_t kind, contraction, transpose_rhs;
  ffi::Span<const int64_t> sizes, shapes, shared;
};

// The arguments of a GPU alone.
struct PackedGpuArguments {
  int64_t tile, catalogue;
};

#define VBGEMM_BIND_PACKED_ARGUMENTS(binding)          \
  binding.RemainingArgs()                              \
      .RemainingRets()                                 \
      .Attr<int64_t>("kind")                           \
      .Attr<int64_t>("contraction")                    \
      .Attr<int64_t>("transpose_rhs")                  \
      .Attr<::xla::ffi::Span<const int64_t>>("sizes")  \
      .Attr<::xla::ffi::Span<const int64_t>>("shapes") \
      .Attr<::xla::ffi::Span<const int64_t>>("shared")

// Fills in `call`, and `weights`, to which it refers, or returns an error that names the argument and the rule it breaks. `extra`: how many
// operands and results there are beside those of every platform.
inline ffi::Error check_packed(const PackedArguments& given, int extra, std::vector<RaggedOperand>& weights, PackedCall& call) {
  const ffi::RemainingArgs& operands = given.operands;
  const ffi::RemainingRets& results = given.results;
  const ffi::Span<const int64_t>&sizes = given.sizes, &shapes = given.shapes, &shared = given.shared;
  const int64_t groups = static_cast<int64_t>(shapes.size() / 2);
  if (shapes.size() % 2) return refuse("the shapes of packed rows are " + std::to_string(shapes.size()) + " numbers, expected two a group");
  const bool contraction = given.contraction != 0;
  const int64_t num_operands = contraction ? 3 : 2 + groups, num_results = contraction ? groups : 1;
  const Bound counts[] = {
      {"the number of groups", groups, contraction ? 1 : 0, INT32_MAX, "a contraction has at least one result"},
      {"the number of sizes", static_cast<int64_t>(sizes.size()), 4, 4, "rows, x_size, y_size, entries"},
      {"the number of operands", static_cast<int64_t>(operands.size()) - extra, num_operands, num_operands, "those of packed rows"},
      {"the number of results", static_cast<int64_t>(results.size()) - extra, num_results, num_results, "those of packed rows"},
      {"the number of flags in `shared`", static_cast<int64_t>(shared.size()), num_operands, num_operands, "one for each operand"},
  };
  if (ffi::Error error = check_bounds(counts); error.failure()) return error;
  for (const auto& [name, numbers] : {std::pair("sizes", sizes), std::pair("shapes", shapes)}) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] >= 0 && numbers[i] <= INT32_MAX) continue;
      return refuse(std::string(name) + "[" + std::to_string(i) + "] of packed rows is " + std::to_string(numbers[i]) +
                    ", expected 0 to 2**31 - 1");
    }
  }
  call.rows = sizes[0], call.x_size = sizes[1], call.y_size = sizes[2], call.entries = sizes[3];
  call.groups = groups, call.shapes = shapes.begin(), call.contraction = contraction, call.transpose_rhs = given.transpose_rhs != 0;

  const ffi::DataType in = (*operands.get<ffi::AnyBuffer>(0)).element_type(), out = (**results.get<ffi::AnyBuffer>(0)).element_type();
  if (const Fault fault = check_ragged_kind(given.kind, in, out)) return refuse(*fault);
  call.dtype = *dtype_of(in), call.out_dtype = *dtype_of(out), call.kind = static_cast<Kind>(given.kind);

  weights.assign(groups, {});
  const auto elements_of = [&](int64_t group) { return shapes[2 * group] * shapes[2 * group + 1]; };
  for (int64_t i = 0; i < num_operands; ++i) {
    const ffi::AnyBuffer buffer = *operands.get<ffi::AnyBuffer>(i);
    const int64_t whole = i == 0 ? call.x_size : i == 1 ? groups : call.contraction ? call.y_size : elements_of(i - 2);
    const auto name = [i] { return "operand " + std::to_string(i) + " of packed rows"; };
    const int64_t elements = static_cast<int64_t>(buffer.element_count()), expected = whole * (shared[i] ? 1 : call.entries);
    if (elements != expected) {
      return refuse(name() + " has " + std::to_string(elements) + " elements, expected " + std::to_string(expected));
    }
    const bool is_sizes = i == 1;
    const ffi::DataType type = buffer.element_type();
    if (is_sizes && type != ffi::DataType::S32 && type != ffi::DataType::S64) {
      return refuse(name() + ", the group sizes, must be int32 or int64");
    }
    if (!is_sizes && dtype_of(type) != call.dtype) return unexpected_dtype(name(), set_of(call.dtype), type);
    RaggedOperand& operand = i == 0 ? call.x : is_sizes ? call.group_sizes : call.contraction ? call.y : weights[i - 2];
    operand = {buffer.untyped_data(), {shared[i] ? 0 : whole, 0}};
    if (is_sizes) call.wide_sizes = type == ffi::DataType::S64;
  }
  for (int64_t i = 0; i < num_results; ++i) {
    const ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(i);
    const int64_t whole = call.contraction ? elements_of(i) : call.y_size;
    const auto name = [i] { return "result " + std::to_string(i) + " of packed rows"; };
    const int64_t elements = static_cast<int64_t>(buffer.element_count()), expected = whole * call.entries;
    if (elements != expected) {
      return refuse(name() + " has " + std::to_string(elements) + " elements, expected " + std::to_string(expected));
    }
    if (dtype_of(buffer.element_type()) != call.out_dtype) {
      return unexpected_dtype(name(), set_of(call.out_dtype), buffer.element_type());
    }
    (call.contraction ? weights[i] : call.y) = RaggedOperand{buffer.untyped_data(), {whole, 0}};
  }
  call.weights = weights.data();
  return ffi::Error::Success();
}

// Fills in what a GPU needs beside that; `has_tile` says which tiles of the catalogue there are.
template <class HasTile>
inline ffi::Error check_packed_on_gpu(const PackedArguments& given, const PackedGpuArguments& of_gpu, const HasTile& has_tile,
                                      PackedCall& call) {
  if (of_gpu.catalogue != catalogue_hash()) return refuse("this program was planned with another version of jax_vbgemm: lower it again");
  const Bound bounds[] = {{"the tile", of_gpu.tile, 0, kNumTiles - 1, "rows of the catalogue"}};
  if (ffi::Error error = check_bounds(bounds); error.failure()) return error;
  call.tile = static_cast<int32_t>(of_gpu.tile);
  const TileShape& tile = kTiles[call.tile];
  if (!has_tile(tile)) return refuse(std::string("tile ") + tile.name + " has no kernel for this arithmetic here");
  if (max_packed_tiles(call, tile) > kRaggedMostTiles) return refuse("the call has too many tiles for 32 bits");
  const ffi::AnyBuffer shapes = *given.operands.get<ffi::AnyBuffer>(given.operands.size() - 1);
  if (shapes.element_type() != ffi::DataType::S32 || static_cast<int64_t>(shapes.element_count()) != 2 * call.groups) {
    return refuse("the last operand of packed rows on a GPU must hold two int32 for each group");
  }
  call.device_shapes = static_cast<const int32_t*>(shapes.untyped_data());
  const ffi::AnyBuffer workspace = **given.results.get<ffi::AnyBuffer>(given.results.size() - 1);
  call.workspace = workspace.untyped_data();
  const int64_t needed = packed_workspace_bytes(call);
  if (static_cast<int64_t>(workspace.size_bytes()) < needed) return refuse("the workspace must have " + std::to_string(needed) + " bytes");
  return ffi::Error::Success();
}

}  // namespace vbgemm
