// The contract of the custom call that quantizes, and the checks between it and its kernels (quantize_launch.h).
//
// Attributes: form (QuantizeForm), activation, and of_rows: values have a scale for each row and 128 columns; otherwise, and always in the
// transpose, for each 128 x 128. Operands and results are those of QuantizeParameters; an absent one is (0,):
//
//   x           (matrices, source rows, part columns), of the plain form and the gradient
//   sums        (1, source rows, 2 part columns), of the gated forms, in one matrix; in a gradient, part columns are a multiple of 128
//   index       int32 (rows,); place: int32 (rows,); row_scale: float32 (source rows,), of the gated forms
//   values      (matrices, value rows, columns), and transposed (matrices, columns, rows)
//   row_scales  float32 (matrices, value rows, blocks of columns), with of_rows
//   block_scales  float32 (matrices, blocks of rows, blocks of columns) of values without of_rows, else (.., blocks of columns, of rows)
//   partials    float32 (value rows, blocks of part columns), of a gradient
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>

#include "ffi_common.h"
#include "gpu/host/quantize_launch.h"

namespace vbgemm {

struct QuantizeArguments {
  ffi::AnyBuffer x, sums, index, place, row_scale;
  ffi::AnyBuffer values, transposed, row_scales, block_scales, partials;
  int64_t form, activation;
  bool of_rows;
};

inline bool is_given(const ffi::AnyBuffer& buffer) { return buffer.dimensions().size() != 1 || buffer.element_count() > 0; }

// An error if a buffer does not have the expected shape or is present although not `wanted`; empty if it fits.
inline Fault check_buffer(const char* name, const ffi::AnyBuffer& buffer, bool wanted, ffi::DataType type,
                          std::initializer_list<int64_t> shape) {
  if (!wanted) return is_given(buffer) ? std::string(name) + " is not for this form" : Fault{};
  const auto dimensions = buffer.dimensions();
  const bool fits = dimensions.size() == shape.size() && std::equal(shape.begin(), shape.end(), dimensions.begin());
  if (fits && buffer.element_type() == type) return {};
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return std::string(name) + " must be " +
         (type == ffi::DataType::F32   ? "float32 ("
          : type == ffi::DataType::S32 ? "int32 ("
                                       : "(") +
         text + ")";
}

// Fills in `call`, or returns an error.
inline Fault check_quantize(const QuantizeArguments& given, QuantizeCall& call) {
  if (given.form < 0 || given.form >= kQuantizeForms) return "form " + std::to_string(given.form) + " does not exist";
  if (Fault fault = check_activation(given.activation)) return fault;
  call.form = static_cast<QuantizeForm>(given.form);
  const bool gated = call.form != QuantizeForm::plain, gradient = call.form == QuantizeForm::gated_gradient;
  const auto activation = static_cast<Activation>(given.activation);
  if (gated && activation != Activation::silu && activation != Activation::gelu) return "a gate must be silu or gelu";
  const ffi::AnyBuffer source = call.form == QuantizeForm::gated ? given.sums : given.x;
  const std::optional<DType> from = dtype_of(source.element_type());
  if (!from || (*from != DType::f32 && *from != DType::bf16 && *from != DType::f16)) return "operands must be float32, bfloat16 or float16";
  if (source.dimensions().size() != 3) return "x and sums must have three dimensions";
  const bool gathers = is_given(given.index), places = is_given(given.place), scaled = is_given(given.row_scale);
  const bool in_rows = is_given(given.values), in_columns = is_given(given.transposed), of_rows = given.of_rows && in_rows;
  if (!in_rows && !in_columns) return "values or transposed must be wanted";
  const int64_t matrices = source.dimensions()[0], source_rows = source.dimensions()[1];
  const int64_t part_cols = source.dimensions()[2] / (call.form == QuantizeForm::gated ? 2 : 1), cols = (gradient ? 2 : 1) * part_cols;
  const int64_t rows = gathers && given.index.dimensions().size() == 1 ? given.index.dimensions()[0] : source_rows;
  const int64_t value_rows = places && in_rows && given.values.dimensions().size() == 3 ? given.values.dimensions()[1] : rows;
  // Four times the columns, so that the bytes of a row of sums fit 32 bits.
  if (std::max({matrices, source_rows, rows, value_rows, cols, 4 * part_cols}) > INT32_MAX - kQuantizeBlock)
    return "a dimension does not fit in 32 bits";
  if (gated && matrices != 1) return "gated forms have one matrix";
  if (part_cols % kQuantizeVectorElements) return "columns must be a multiple of 8";
  if (in_columns && rows % kTransposedVectorElements) return "rows of transposed must be a multiple of 16";
  if (gradient && part_cols % kQuantizeBlock) return "a gradient's halves must be multiples of 128 columns";
  const ffi::AnyBuffer result = in_rows ? given.values : given.transposed;
  const std::optional<DType> to = dtype_of(result.element_type());
  if (!to || (*to != DType::e4m3 && *to != DType::e5m2)) return "the results must be float8_e4m3fn or float8_e5m2";
  const auto blocks = [](int64_t size) { return tiles_over(size, kQuantizeBlock); };
  const bool as_values = in_rows && !of_rows;
  const int64_t down = as_values ? blocks(rows) : blocks(cols), across = as_values ? blocks(cols) : blocks(rows);
  constexpr auto kFloat = ffi::DataType::F32, kIndex = ffi::DataType::S32;
  const auto type = source.element_type(), narrow = result.element_type();
  for (const Fault& fault : {
           check_buffer("x", given.x, call.form != QuantizeForm::gated, type, {matrices, source_rows, part_cols}),
           check_buffer("sums", given.sums, gated, type, {1, source_rows, 2 * part_cols}),
           check_buffer("index", given.index, gathers, kIndex, {rows}),
           check_buffer("place", given.place, places && gathers, kIndex, {rows}),
           check_buffer("row_scale", given.row_scale, scaled && gated, kFloat, {source_rows}),
           check_buffer("values", given.values, in_rows, narrow, {matrices, value_rows, cols}),
           check_buffer("transposed", given.transposed, in_columns, narrow, {matrices, cols, rows}),
           check_buffer("row_scales", given.row_scales, of_rows, kFloat, {matrices, value_rows, blocks(cols)}),
           check_buffer("block_scales", given.block_scales, as_values || in_columns, kFloat, {matrices, down, across}),
           check_buffer("partials", given.partials, gradient && is_given(given.partials), kFloat, {value_rows, blocks(part_cols)}),
       }) {
    if (fault) return fault;
  }
  if (as_values && places) return "rows are placed where values have scales of their own";
  const auto data = [](const ffi::AnyBuffer& buffer) { return is_given(buffer) ? buffer.untyped_data() : nullptr; };
  call.dtype = *from, call.matrices = matrices;
  QuantizeParameters& p = call.parameters;
  p = {};
  p.x = data(given.x), p.sums = data(given.sums), p.row_scale = static_cast<const float*>(data(given.row_scale));
  p.index = static_cast<const int32_t*>(data(given.index)), p.place = static_cast<const int32_t*>(data(given.place));
  p.values = data(given.values), p.transposed = data(given.transposed);
  p.row_scales = static_cast<float*>(data(given.row_scales)), p.block_scales = static_cast<float*>(data(given.block_scales));
  p.partials = static_cast<float*>(data(given.partials));
  p.source_rows = static_cast<int32_t>(source_rows), p.rows = static_cast<int32_t>(rows);
  p.value_rows = static_cast<int32_t>(value_rows), p.cols = static_cast<int32_t>(cols), p.part_cols = static_cast<int32_t>(part_cols);
  p.dtype = *to, p.activation = activation, p.reciprocal = 1.0f / (*to == DType::e4m3 ? 448 : 57344);
  return {};
}

}  // namespace vbgemm
