// The contract of the custom call that quantizes, and the checks between it and its kernel.
//
// Operands: x (matrices, source rows, columns), and the index, int32 (rows,), or (0,) where each row of x becomes a row itself. Results:
// values (matrices, rows, columns), transposed (matrices, columns, rows), one of them (0,) if it is not wanted, and scales
// (quantize_launch.h). The attribute of_rows: a scale for each row and 128 columns, of values alone; otherwise for each 128 x 128.
#pragma once
#include "ffi_common.h"
#include "gpu/host/quantize_launch.h"

namespace vbgemm {

// Whether a buffer is one that is not wanted.
inline bool is_absent(const ffi::AnyBuffer& buffer) { return buffer.dimensions().size() == 1 && buffer.element_count() == 0; }

inline bool has_shape(const ffi::AnyBuffer& buffer, std::initializer_list<int64_t> shape) {
  const auto dimensions = buffer.dimensions();
  return dimensions.size() == shape.size() && std::equal(shape.begin(), shape.end(), dimensions.begin());
}

// Fills in `call`, or returns an error that names the buffer and the rule it breaks.
inline ffi::Error check_quantize(ffi::AnyBuffer x, ffi::AnyBuffer index, ffi::AnyBuffer values, ffi::AnyBuffer transposed,
                                 ffi::AnyBuffer scales, bool of_rows, QuantizeCall& call) {
  const std::optional<DType> from = dtype_of(x.element_type());
  if (!from || (*from != DType::f32 && *from != DType::bf16 && *from != DType::f16))
    return refuse("x must be float32, bfloat16 or float16");
  if (x.dimensions().size() != 3) return refuse("x must have three dimensions");
  const bool gathers = !is_absent(index), in_rows = !is_absent(values), in_columns = !is_absent(transposed);
  const int64_t matrices = x.dimensions()[0], source_rows = x.dimensions()[1], cols = x.dimensions()[2];
  if (gathers && (index.element_type() != ffi::DataType::S32 || index.dimensions().size() != 1))
    return refuse("index must be int32 (rows,)");
  const int64_t rows = gathers ? index.dimensions()[0] : source_rows;
  if (std::max({source_rows, rows, cols}) > INT32_MAX - kQuantizeBlock) return refuse("a dimension of x or index has no 32 bits");
  if (!in_rows && !in_columns) return refuse("values or transposed must be wanted");
  const std::optional<DType> to = dtype_of((in_rows ? values : transposed).element_type());
  if (!to || (*to != DType::e4m3 && *to != DType::e5m2)) return refuse("the results must be float8_e4m3fn or float8_e5m2");
  if (in_rows && !has_shape(values, {matrices, rows, cols})) return refuse("values must have x's shape with the rows of index");
  if (in_columns && (!has_shape(transposed, {matrices, cols, rows}) || dtype_of(transposed.element_type()) != to)) {
    return refuse("transposed must have the transposed shape, and the dtype of values");
  }
  if (of_rows && in_columns) return refuse("scales of rows are for values alone");
  if (cols % kQuantizePiece || (in_columns && rows % kQuantizePiece))
    return refuse("columns, and rows of transposed, must be multiples of 8");
  const auto blocks = [](int64_t size) { return (size + kQuantizeBlock - 1) / kQuantizeBlock; };
  const int64_t down = of_rows ? rows : blocks(rows), across = blocks(cols);
  if (scales.element_type() != ffi::DataType::F32 || !has_shape(scales, {matrices, in_rows ? down : across, in_rows ? across : down})) {
    return refuse("scales must be float32, one for each block");
  }
  call.dtype = *from, call.matrices = matrices;
  QuantizeParameters& p = call.parameters;
  p = {};
  p.x = x.untyped_data(), p.index = gathers ? static_cast<const int32_t*>(index.untyped_data()) : nullptr;
  p.values = in_rows ? values.untyped_data() : nullptr, p.transposed = in_columns ? transposed.untyped_data() : nullptr;
  p.scales = static_cast<float*>(scales.untyped_data());
  p.source_rows = static_cast<int32_t>(source_rows), p.rows = static_cast<int32_t>(rows), p.cols = static_cast<int32_t>(cols);
  p.dtype = *to, p.of_rows = of_rows;
  p.largest = *to == DType::e4m3 ? 448 : 57344, p.reciprocal = 1 / p.largest;
  return ffi::Error::Success();
}

}  // namespace vbgemm
