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
  if (shapes.size() % 2) return refuse("the shapes of packed rows are " + std::to_string(shapes.size()) + " numbers, expected two a group");
  const int64_t num_operands = contraction ? 3 : 2 + groups, num_results = contraction ? groups : 1;
  const vbgemm::Bound counts[] = {
      {"the number of groups", groups, contraction ? 1 : 0, INT32_MAX, "a contraction has at least one result"},
      {"the number of sizes", static_cast<int64_t>(sizes.size()), 4, 4, "rows, x_size, y_size, entries"},
      {"the number of operands", static_cast<int64_t>(operands.size()), num_operands, num_operands, "those of packed rows"},
      {"the number of results", static_cast<int64_t>(results.size()), num_results, num_results, "those of packed rows"},
      {"the number of flags in `shared`", static_cast<int64_t>(shared.size()), num_operands, num_operands, "one for each operand"},
  };
  if (ffi::Error error = vbgemm::check_bounds(counts); error.failure()) return error;
  for (const auto& [name, numbers] : {std::pair("sizes", sizes), std::pair("shapes", shapes)}) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] >= 0 && numbers[i] <= INT32_MAX) continue;
      return refuse(std::string(name) + "[" + std::to_string(i) + "] of packed rows is " + std::to_string(numbers[i]) +
                    ", expected 0 to 2**31 - 1");
    }
  }
  call.rows = sizes[0], call.x_size = sizes[1], call.y_size = sizes[2], call.entries = sizes[3];
  call.groups = groups, call.shapes = shapes.begin(), call.contraction = contraction != 0, call.transpose_rhs = transpose_rhs != 0;

  const ffi::DataType in = (*operands.get<ffi::AnyBuffer>(0)).element_type(), out = (**results.get<ffi::AnyBuffer>(0)).element_type();
  if (const vbgemm::Fault fault = vbgemm::check_ragged_kind(kind, in, out)) return refuse(*fault);
  call.dtype = *vbgemm::dtype_of(in), call.out_dtype = *vbgemm::dtype_of(out), call.kind = static_cast<vbgemm::Kind>(kind);

  std::vector<vbgemm::RaggedOperand> weights(groups);
  const auto elements_of = [&](int64_t group) { return shapes[2 * group] * shapes[2 * group + 1]; };
  for (size_t i = 0; i < operands.size(); ++i) {
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
    if (!is_sizes && vbgemm::dtype_of(type) != call.dtype) return vbgemm::unexpected_dtype(name(), vbgemm::set_of(call.dtype), type);
    vbgemm::RaggedOperand& operand = i == 0 ? call.x : is_sizes ? call.group_sizes : call.contraction ? call.y : weights[i - 2];
    operand = {buffer.untyped_data(), {shared[i] ? 0 : whole, 0}};
    if (is_sizes) call.wide_sizes = type == ffi::DataType::S64;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(i);
    const int64_t whole = call.contraction ? elements_of(i) : call.y_size;
    const auto name = [i] { return "result " + std::to_string(i) + " of packed rows"; };
    const int64_t elements = static_cast<int64_t>(buffer.element_count()), expected = whole * call.entries;
    if (elements != expected) {
      return refuse(name() + " has " + std::to_string(elements) + " elements, expected " + std::to_string(expected));
    }
    if (vbgemm::dtype_of(buffer.element_type()) != call.out_dtype) {
      return vbgemm::unexpected_dtype(name(), vbgemm::set_of(call.out_dtype), buffer.element_type());
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
