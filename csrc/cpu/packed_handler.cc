// The CPU backend's XLA FFI handler of packed rows times weights of different shapes: "vbgemm_ragged_lists_v1", emitted by
// jax_vbgemm/_src/ragged/lists_lowering.py.
//
// Group i has the weights op(B_i) of shape (k_i, n_i), and the next max(group_sizes[i], 0) rows, of k_i numbers each in x and n_i numbers
// in y, packed without gaps. Rows from `rows` on do not exist, and a row that does not lie completely in x and y is left out.
//
//   packed rows         y = x op(B_i), row by row; elements of y that belong to no row are zero
//   packed contraction  D_i = x^T y over the rows of group i
//
// Operands: x (x_size), group_sizes (groups; int32 or int64), then the weights (k_i, n_i), or (n_i, k_i) with transpose_rhs. A contraction
// has y (y_size) in place of the weights. Results: y, or, of a contraction, the D_i (k_i, n_i). Attributes: kind, contraction,
// transpose_rhs; sizes: rows, x_size, y_size, entries; shapes: k_i, n_i of each group; shared: for each operand, 1 if all entries of the
// batch use the same one. Otherwise the entries of an operand are dense, as are those of the results.
#include "cpu/group_walk.h"
#include "cpu/handler.h"
#include "ffi_common.h"
#include "ragged_call.h"

namespace {

namespace ffi = xla::ffi;
using vbgemm::refuse;

ffi::Error Packed(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kind, int64_t contraction,
                  int64_t transpose_rhs, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> shapes, ffi::Span<const int64_t> shared) {
  vbgemm::PackedCall call{};
  const int64_t groups = static_cast<int64_t>(shapes.size() / 2);
  const size_t expected_operands = contraction ? 3 : 2 + groups, expected_results = contraction ? groups : 1;
  if (sizes.size() != 4 || shapes.size() % 2 || operands.size() != expected_operands || results.size() != expected_results ||
      shared.size() != operands.size()) {
    return refuse("malformed sizes, shapes, operands or results of packed rows");
  }
  for (const ffi::Span<const int64_t>& numbers : {sizes, shapes}) {
    for (const int64_t number : numbers) {
      if (number < 0 || number > INT32_MAX) return refuse("sizes of packed rows must be from 0 to 2**31 - 1");
    }
  }
  call.rows = sizes[0], call.x_size = sizes[1], call.y_size = sizes[2], call.entries = sizes[3];
  call.groups = groups, call.shapes = shapes.begin(), call.contraction = contraction != 0, call.transpose_rhs = transpose_rhs != 0;

  const auto in = vbgemm::dtype_of((*operands.get<ffi::AnyBuffer>(0)).element_type());
  const auto out = vbgemm::dtype_of((**results.get<ffi::AnyBuffer>(0)).element_type());
  if (const auto wrong = vbgemm::check_ragged_kind(kind, in, out)) return refuse(*wrong);
  call.dtype = *in, call.out_dtype = *out, call.kind = static_cast<vbgemm::Kind>(kind);

  std::vector<vbgemm::RaggedOperand> weights(groups);
  const auto elements_of = [&](int64_t group) { return shapes[2 * group] * shapes[2 * group + 1]; };
  for (size_t i = 0; i < operands.size(); ++i) {
    const ffi::AnyBuffer buffer = *operands.get<ffi::AnyBuffer>(i);
    const int64_t whole = i == 0 ? call.x_size : i == 1 ? groups : call.contraction ? call.y_size : elements_of(i - 2);
    if (static_cast<int64_t>(buffer.element_count()) != whole * (shared[i] ? 1 : call.entries)) {
      return refuse("operand " + std::to_string(i) + " of packed rows does not have the number of elements that the call's sizes need");
    }
    const bool is_sizes = i == 1;
    const ffi::DataType type = buffer.element_type();
    if (is_sizes ? type != ffi::DataType::S32 && type != ffi::DataType::S64 : vbgemm::dtype_of(type) != call.dtype) {
      return refuse("operand " + std::to_string(i) + " of packed rows does not have the call's dtype");
    }
    vbgemm::RaggedOperand& operand = i == 0 ? call.x : is_sizes ? call.group_sizes : call.contraction ? call.y : weights[i - 2];
    operand = {buffer.untyped_data(), {shared[i] ? 0 : whole, 0}};
    if (is_sizes) call.wide_sizes = type == ffi::DataType::S64;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(i);
    const int64_t whole = call.contraction ? elements_of(i) : call.y_size;
    if (static_cast<int64_t>(buffer.element_count()) != whole * call.entries || vbgemm::dtype_of(buffer.element_type()) != call.out_dtype) {
      return refuse("result " + std::to_string(i) + " of packed rows does not have the call's number of elements or dtype");
    }
    (call.contraction ? weights[i] : call.y) = vbgemm::RaggedOperand{buffer.untyped_data(), {whole, 0}};
  }
  call.weights = weights.data();
  vbgemm::run(call, &pool);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(vbgemm_cpu_packed, Packed,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("contraction")
                                  .Attr<int64_t>("transpose_rhs")
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<ffi::Span<const int64_t>>("shapes")
                                  .Attr<ffi::Span<const int64_t>>("shared"));
