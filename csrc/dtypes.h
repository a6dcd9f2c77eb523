// The element types and arithmetics of dtypes.def as constexpr tables, for host and device code.
#pragma once
#include <cstdint>
#include <string_view>

namespace vbgemm {

enum class DType : int32_t {
#define DTYPE(id, ...) id,
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
};

// The properties of an element type in dtypes.def.
struct DTypeInfo {
  const char* name;
  DType accumulator;
  int32_t bytes, parts;                  // a complex number has two parts
  int32_t exponent_bits, fraction_bits;  // of one part; an integer has no exponent
  bool has_infinities;
  uint32_t results;  // bit set of types
};

// Element types that C++ does not have: plain data, the same on the host and all devices. Each backend has its own conversions to
// arithmetic types.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
template <DType>
struct Float8 {
  uint8_t bits;
};
struct Int4Pair {
  uint8_t bits;
};
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real real, imag;
};
template <class T>
inline constexpr bool kIsComplex = false;
template <class Real>
inline constexpr bool kIsComplex<Complex<Real>> = true;

namespace dtype_table {
// Sets of types, by the names of the types.
#define DTYPE(id, ...) inline constexpr uint32_t id = 1u << static_cast<int>(DType::id);
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"

inline constexpr DTypeInfo kInfo[] = {
#define DTYPE(id, name, xla, element, accumulator, exponent, fraction, infinities, results) \
  {#name, DType::accumulator, sizeof(element), 1 + kIsComplex<element>, exponent, fraction, infinities, results},
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
};
}  // namespace dtype_table

inline constexpr int kDTypes = sizeof(dtype_table::kInfo) / sizeof(DTypeInfo);
constexpr const DTypeInfo& info_of(DType dtype) { return dtype_table::kInfo[static_cast<int>(dtype)]; }
constexpr const char* name_of(DType dtype) { return info_of(dtype).name; }
constexpr int bytes_of(DType dtype) { return info_of(dtype).bytes; }
constexpr int bits_of(DType dtype) { return dtype == DType::s4 ? 4 : 8 * bytes_of(dtype); }
constexpr bool is_complex(DType dtype) { return info_of(dtype).parts == 2; }
constexpr bool is_integer(DType dtype) { return info_of(dtype).exponent_bits == 0; }
constexpr DType accumulator_of(DType dtype) { return info_of(dtype).accumulator; }

// An arithmetic: how products are formed, like the .kind of a tcgen05.mma instruction.
enum class Kind : int32_t {
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, ...) id,
#include "dtypes.def"
};

// The types of an arithmetic: those of its two operands, the type of its sums, and the types to which the sums may be rounded.
struct Arithmetic {
  const char* name;
  DType lhs, rhs;
  bool has_tensor_kernels;  // on some vendor's GPUs

  constexpr DType accumulator() const { return accumulator_of(lhs); }
  constexpr uint32_t results() const { return info_of(lhs).results & info_of(rhs).results; }
  constexpr bool gives(DType result) const { return results() >> static_cast<int>(result) & 1; }
};
inline constexpr Arithmetic kArithmetics[] = {
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, set, name, lhs, rhs, ordinary, tensor) {#name, DType::lhs, DType::rhs, std::string_view(#tensor) != "NONE"},
#include "dtypes.def"
};
inline constexpr int kKinds = sizeof(kArithmetics) / sizeof(Arithmetic);
constexpr const Arithmetic& arithmetic_of(Kind kind) { return kArithmetics[static_cast<int>(kind)]; }
constexpr const char* name_of(Kind kind) { return arithmetic_of(kind).name; }
constexpr DType accumulator_of(Kind kind) { return arithmetic_of(kind).accumulator(); }
constexpr int accumulator_bytes(Kind kind) { return bytes_of(accumulator_of(kind)); }

// Returns the first arithmetic of dtypes.def that multiplies two types without conversion, or kKinds if there is none.
constexpr Kind kind_of(DType lhs, DType rhs) {
  int kind = 0;
  while (kind < kKinds && !(kArithmetics[kind].lhs == lhs && kArithmetics[kind].rhs == rhs)) ++kind;
  return static_cast<Kind>(kind);
}
constexpr Kind plain_kind_of(Kind kind) { return kind_of(arithmetic_of(kind).lhs, arithmetic_of(kind).rhs); }

constexpr bool arithmetics_are_sound() {
  for (const Arithmetic& one : kArithmetics) {
    if (bytes_of(one.lhs) != bytes_of(one.rhs) || accumulator_of(one.lhs) != accumulator_of(one.rhs)) return false;
    // The CPU swaps the sides of a transposed product.
    if (!one.gives(one.accumulator()) || kind_of(one.rhs, one.lhs) == static_cast<Kind>(kKinds)) return false;
  }
  return kKinds <= 32 && kDTypes <= 32;
}
static_assert(arithmetics_are_sound());

// The C++ type of an element type's elements, and the element type of a C++ type.
template <DType>
struct ElementOf;
template <class T>
struct DTypeOf;
#define DTYPE(id, name, xla, element, ...)    \
  template <>                                 \
  struct ElementOf<DType::id> {               \
    using type = element;                     \
  };                                          \
  template <>                                 \
  struct DTypeOf<element> {                   \
    static constexpr DType value = DType::id; \
  };
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
template <DType kDType>
using Element = typename ElementOf<kDType>::type;
template <class T>
inline constexpr DType kDTypeOf = DTypeOf<T>::value;
// Constants, because device code cannot call the functions above.
template <class T>
inline constexpr uint32_t kResultsOf = info_of(kDTypeOf<T>).results;
template <class T>
using Accumulator = Element<accumulator_of(kDTypeOf<T>)>;

// The types of elements that an arithmetic multiplies.
template <Kind kKind>
using LeftOf = Element<arithmetic_of(kKind).lhs>;
template <Kind kKind>
using RightOf = Element<arithmetic_of(kKind).rhs>;

// Sets of arithmetics, for tiles.def.
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, set, ...) inline constexpr uint32_t set = 1u << static_cast<int>(Kind::id);
#include "dtypes.def"

}  // namespace vbgemm
