// The fields of the records of descriptor.h, which _core exports to Python, where
// jax_vbgemm/_src/native/records.py builds NumPy dtypes from them. If a field is missing here, the file does not compile.
#pragma once
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

#include "descriptor.h"

namespace vbgemm {

struct Field {
  const char* name;
  const char* type;  // a scalar type in NumPy's notation, or the name of a record
  int count;         // number of elements of an array, else 1
  size_t offset, bytes;
};

struct RecordLayout {
  const char* name;
  size_t bytes;
  const Field* fields;
  int num_fields;
};

template <class T>
constexpr const char* type_name();
template <>
constexpr const char* type_name<int32_t>() {
  return "<i4";
}
template <>
constexpr const char* type_name<int64_t>() {
  return "<i8";
}
template <>
constexpr const char* type_name<double>() {
  return "<f8";
}
template <>
constexpr const char* type_name<Activation>() {
  return type_name<std::underlying_type_t<Activation>>();
}
template <>
constexpr const char* type_name<Operand>() {
  return "Operand";
}
template <>
constexpr const char* type_name<Scalar>() {
  return "Scalar";
}
template <>
constexpr const char* type_name<Part>() {
  return "Part";
}

template <class Member>
constexpr Field field(const char* name, size_t offset) {
  using T = std::remove_reference_t<Member>;
  return {name, type_name<std::remove_extent_t<T>>(), std::is_array_v<T> ? static_cast<int>(std::extent_v<T>) : 1, offset, sizeof(T)};
}

#define VBGEMM_FIELD_AS(record, name, member) field<decltype(std::declval<record&>().member)>(name, offsetof(record, member))
#define VBGEMM_FIELD(record, member) VBGEMM_FIELD_AS(record, #member, member)
#define VBGEMM_POSITION(record)                                                                               \
  VBGEMM_FIELD_AS(record, "tile_id", position.tile_id), VBGEMM_FIELD_AS(record, "rows", position.rows),       \
      VBGEMM_FIELD_AS(record, "cols", position.cols), VBGEMM_FIELD_AS(record, "depth", position.depth),       \
      VBGEMM_FIELD_AS(record, "problem", position.problem), VBGEMM_FIELD_AS(record, "batch", position.batch), \
      VBGEMM_FIELD_AS(record, "row", position.row), VBGEMM_FIELD_AS(record, "col", position.col)

inline constexpr Field kOperandFields[] = {
    VBGEMM_FIELD(Operand, buffer),     VBGEMM_FIELD(Operand, reserved),   VBGEMM_FIELD(Operand, offset),
    VBGEMM_FIELD(Operand, row_stride), VBGEMM_FIELD(Operand, col_stride), VBGEMM_FIELD(Operand, batch_stride),
};
inline constexpr Field kProblemFields[] = {
    VBGEMM_FIELD(Problem, m),     VBGEMM_FIELD(Problem, n),           VBGEMM_FIELD(Problem, k),
    VBGEMM_FIELD(Problem, batch), VBGEMM_FIELD(Problem, inner_batch), VBGEMM_FIELD(Problem, reserved),
    VBGEMM_FIELD(Problem, a),     VBGEMM_FIELD(Problem, b),           VBGEMM_FIELD(Problem, c),
};
inline constexpr Field kScalarFields[] = {
    VBGEMM_FIELD(Scalar, real),     VBGEMM_FIELD(Scalar, imag),   VBGEMM_FIELD(Scalar, buffer),
    VBGEMM_FIELD(Scalar, reserved), VBGEMM_FIELD(Scalar, offset),
};
inline constexpr Field kEpilogueFields[] = {
    VBGEMM_FIELD(Epilogue, alpha), VBGEMM_FIELD(Epilogue, beta),       VBGEMM_FIELD(Epilogue, source),
    VBGEMM_FIELD(Epilogue, bias),  VBGEMM_FIELD(Epilogue, activation), VBGEMM_FIELD(Epilogue, reserved),
};
inline constexpr Field kTileRunFields[] = {
    VBGEMM_FIELD(TileRun, problem), VBGEMM_FIELD(TileRun, tile_id), VBGEMM_FIELD(TileRun, row),      VBGEMM_FIELD(TileRun, col),
    VBGEMM_FIELD(TileRun, batch),   VBGEMM_FIELD(TileRun, k_begin), VBGEMM_FIELD(TileRun, k_end),    VBGEMM_FIELD(TileRun, first_tile),
    VBGEMM_FIELD(TileRun, tiles_y), VBGEMM_FIELD(TileRun, tiles_x), VBGEMM_FIELD(TileRun, mirrored), VBGEMM_FIELD(TileRun, reserved),
};
inline constexpr Field kPartFields[] = {
    VBGEMM_FIELD(Part, offset), VBGEMM_FIELD(Part, row_stride), VBGEMM_FIELD(Part, col_stride),
    VBGEMM_FIELD(Part, buffer), VBGEMM_FIELD(Part, mirrored),
};
inline constexpr Field kReadyTileFields[] = {
    VBGEMM_POSITION(ReadyTile),
    VBGEMM_FIELD_AS(ReadyTile, "a", part[0]),
    VBGEMM_FIELD_AS(ReadyTile, "b", part[1]),
    VBGEMM_FIELD_AS(ReadyTile, "c", part[2]),
    VBGEMM_FIELD(ReadyTile, reserved),
};
inline constexpr Field kSplitTileFields[] = {
    VBGEMM_POSITION(SplitTile),        VBGEMM_FIELD(SplitTile, c),
    VBGEMM_FIELD(SplitTile, first),    VBGEMM_FIELD(SplitTile, slice_stride),
    VBGEMM_FIELD(SplitTile, slices),   VBGEMM_FIELD(SplitTile, pitch),
    VBGEMM_FIELD(SplitTile, reserved),
};
#undef VBGEMM_POSITION
#undef VBGEMM_FIELD
#undef VBGEMM_FIELD_AS

#define VBGEMM_LAYOUT(record) \
  RecordLayout { #record, sizeof(record), k##record##Fields, static_cast<int>(std::size(k##record##Fields)) }
inline constexpr RecordLayout kLayouts[] = {
    VBGEMM_LAYOUT(Operand), VBGEMM_LAYOUT(Problem), VBGEMM_LAYOUT(Scalar),    VBGEMM_LAYOUT(Epilogue),
    VBGEMM_LAYOUT(TileRun), VBGEMM_LAYOUT(Part),    VBGEMM_LAYOUT(ReadyTile), VBGEMM_LAYOUT(SplitTile),
};
#undef VBGEMM_LAYOUT

// Whether the layouts name every byte of their records once, in order.
constexpr bool layouts_are_complete() {
  for (const RecordLayout& layout : kLayouts) {
    size_t end = 0;
    for (int i = 0; i < layout.num_fields; ++i) {
      if (layout.fields[i].offset != end) return false;
      end += layout.fields[i].bytes;
    }
    if (end != layout.bytes) return false;
  }
  return true;
}
static_assert(layouts_are_complete(), "a field of descriptor.h is missing or out of order here");

}  // namespace vbgemm
