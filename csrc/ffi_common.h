// The checks of a custom call's arguments that the CPU and GPU handlers share.
//
// The problem table is passed twice: inside the descriptor constant, where kernels read it, and as a host attribute, which is checked here
// against the buffers that XLA passes. Tile descriptors are not checked here: kernels check or clamp them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catalogue.h"
#include "descriptor.h"
#include "xla/ffi/api/ffi.h"

namespace vbgemm {

namespace ffi = xla::ffi;

// A checked call. `plan` points into the descriptor constant, which is device memory on a GPU.
struct Call {
  Kind kind;        // the arithmetic of the products
  DType out_dtype;  // dtype of the results, one that the arithmetic can give
  Descriptors plan;
  const Launch* launches;
  int32_t num_launches;
  std::vector<void*> buffers;     // first the operands, then the results
  std::vector<int64_t> elements;  // elements of each buffer
  int32_t num_operands;
  int64_t num_sums;  // accumulators that split-K tiles need in the workspace
};

inline std::optional<DType> dtype_of(ffi::DataType type) {
  switch (type) {
#define DTYPE(id, name, xla, ...) \
  case ffi::DataType::xla: return DType::id;
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
    default: return std::nullopt;
  }
}

inline ffi::Error refuse(const std::string& why) { return ffi::Error::InvalidArgument("jax_vbgemm: " + why); }

constexpr uint32_t set_of(DType dtype) { return 1u << static_cast<int>(dtype); }

inline std::string name_of(ffi::DataType type) {
  const std::optional<DType> dtype = dtype_of(type);
  return dtype ? name_of(*dtype) : "a dtype without kernels";
}

// expected: a bit set of types.
inline ffi::Error unexpected_dtype(const std::string& what, uint32_t expected, ffi::DataType got) {
  std::string names;
  for (int i = 0; i < kDTypes; ++i) {
    if (expected >> i & 1) names += (names.empty() ? "" : " or ") + std::string(name_of(static_cast<DType>(i)));
  }
  return refuse(what + ": expected " + names + ", got " + name_of(got));
}

// Whether the last element that a rows x cols x batch operand touches is inside its buffer. Strides must not be negative.
inline bool inside(const Operand& x, int64_t rows, int64_t cols, const Problem& p, int64_t elements) {
  if (rows == 0 || cols == 0 || p.batch == 0) return true;
  const int64_t inner = p.batch < p.inner_batch ? p.batch : p.inner_batch;
  const int64_t outer = (static_cast<int64_t>(p.batch) + p.inner_batch - 1) / p.inner_batch;
  __int128 last = x.offset;
  if (x.offset < 0) return false;
  const int64_t counts[4] = {rows, cols, outer, inner}, strides[4] = {x.row_stride, x.col_stride, x.batch_stride[0], x.batch_stride[1]};
  for (int i = 0; i < 4; ++i) {
    if (strides[i] < 0) return false;
    last += static_cast<__int128>(counts[i] - 1) * strides[i];
  }
  return last < elements;
}

// A macro lists a call's attributes once. These macros turn the list into a struct's members and into XLA's decoder for it.
#define VBGEMM_MEMBER(type, name) type name
#define VBGEMM_STRUCT_MEMBER(type, name) ::xla::ffi::StructMember<type>(#name)
#define VBGEMM_COMMA ,

// The attributes of a call of planned products.
// clang-format off
#define VBGEMM_ATTRIBUTES(ATTRIBUTE, SEPARATOR)                                                                                     \
  ATTRIBUTE(int64_t, catalogue) SEPARATOR ATTRIBUTE(int64_t, kind) SEPARATOR                                                        \
  ATTRIBUTE(::xla::ffi::Span<const int64_t>, problems) SEPARATOR ATTRIBUTE(::xla::ffi::Span<const int64_t>, epilogues) SEPARATOR    \
  ATTRIBUTE(::xla::ffi::Span<const int32_t>, launches) SEPARATOR                                                                    \
  ATTRIBUTE(int64_t, num_factors) SEPARATOR ATTRIBUTE(int64_t, num_addends) SEPARATOR ATTRIBUTE(int64_t, num_runs) SEPARATOR        \
  ATTRIBUTE(int64_t, num_tiles) SEPARATOR ATTRIBUTE(int64_t, num_blocks) SEPARATOR ATTRIBUTE(int64_t, num_splits) SEPARATOR         \
  ATTRIBUTE(int64_t, num_sums)
// clang-format on

struct Attributes {
  VBGEMM_ATTRIBUTES(VBGEMM_MEMBER, ;);
};

// The arguments of a handler after its context.
struct Arguments : Attributes {
  ffi::AnyBuffer descriptors;
  ffi::RemainingArgs operands;  // factors, then sources and biases (addends), then alphas and betas
  ffi::RemainingRets results;

  static constexpr int64_t kProblemWords = sizeof(Problem) / sizeof(int64_t);
  int64_t num_problems() const { return static_cast<int64_t>(problems.size()) / kProblemWords; }
  bool has_epilogues() const { return epilogues.size() > 0; }
  bool has_ready_tiles() const { return num_runs == 0 && num_tiles > 0; }
  bool has_one_tile_a_block() const { return num_blocks == num_tiles; }
};

// The end of each group of a call's buffers, in their order.
struct BufferEnds {
  size_t factors, addends, operands, results;
};

// A value of a call, its lower and upper bound, and the reason, in words.
struct Bound {
  const char* name;
  int64_t value, low, high;
  const char* reason;
};
template <size_t kCount>
ffi::Error check_bounds(const Bound (&bounds)[kCount]) {
  for (const Bound& one : bounds) {
    if (one.value >= one.low && one.value <= one.high) continue;
    return refuse(std::string(one.name) + " is " + std::to_string(one.value) + ", expected " + std::to_string(one.low) + " to " +
                  std::to_string(one.high) + ": " + one.reason);
  }
  return ffi::Error::Success();
}

// Checks the attributes by themselves.
inline ffi::Error check_attributes(const Arguments& given, size_t extra_results) {
  constexpr int64_t kCatalogue = catalogue_hash();  // at compile time, because a call of small products takes only a few microseconds
  if (given.catalogue != kCatalogue) {
    return refuse("this program was planned with another tile catalogue (" + std::to_string(given.catalogue) + ") than this build has (" +
                  std::to_string(kCatalogue) + "): lower or export it again with this version");
  }
  const int64_t operands = static_cast<int64_t>(given.operands.size()), results = static_cast<int64_t>(given.results.size());
  const Bound buffer_bounds[] = {
      {"the number of operands", operands, 1, INT32_MAX, "a call has at least one factor"},
      {"the number of results", results, static_cast<int64_t>(1 + extra_results), INT32_MAX, "a call has a result beside its workspace"},
      {"num_factors", given.num_factors, 1, operands, "factors are operands"},
  };
  if (ffi::Error error = check_bounds(buffer_bounds); error.failure()) return error;
  const Bound others[] = {
      {"num_addends", given.num_addends, 0, operands - given.num_factors, "addends are operands after the factors"},
      {"kind", given.kind, 0, kKinds - 1, "these arithmetics exist"},
      {"num_tiles", given.num_tiles, 0, INT32_MAX, "tiles have 32-bit numbers"},
      {"num_runs", given.num_runs, 0, given.num_tiles, "a run has at least one tile"},
      {"num_blocks", given.num_blocks, 0, given.num_tiles, "a block has at least one tile"},
      {"num_splits", given.num_splits, 0, given.num_runs > 0 ? 0 : given.num_tiles, "a split tile has K slices, which are not in runs"},
      {"num_sums", given.num_sums, 0, INT64_MAX / 64, "their bytes have a 64-bit number"},
  };
  if (ffi::Error error = check_bounds(others); error.failure()) return error;
  if (given.problems.size() % Arguments::kProblemWords) {
    return refuse("the problem table has " + std::to_string(given.problems.size()) + " words, expected a multiple of " +
                  std::to_string(Arguments::kProblemWords));
  }
  static_assert(sizeof(Epilogue) == sizeof(Problem));
  if (given.has_epilogues() && given.epilogues.size() != given.problems.size()) {
    return refuse("the table of epilogues has " + std::to_string(given.epilogues.size()) + " words, expected none or " +
                  std::to_string(given.problems.size()) + ": one epilogue for each problem");
  }
  return ffi::Error::Success();
}

// Checks that the descriptor constant has the size that the attributes imply.
inline ffi::Error check_descriptors(const Arguments& given) {
  constexpr int64_t kRunInts = sizeof(TileRun) / 4, kTileInts = sizeof(ReadyTile) / 4, kSplitInts = sizeof(SplitTile) / 4;
  const int64_t tables = given.num_problems() * Arguments::kProblemWords * (given.has_epilogues() ? 4 : 2);
  const int64_t tiles = given.has_ready_tiles() ? given.num_tiles * kTileInts : given.num_runs * kRunInts;
  const int64_t expected = tables + tiles + given.num_splits * kSplitInts + (given.has_one_tile_a_block() ? 0 : given.num_blocks + 1);
  const ffi::AnyBuffer& descriptors = given.descriptors;
  if (descriptors.element_type() != ffi::DataType::S32) {
    return unexpected_dtype("the descriptor constant", set_of(DType::s32), descriptors.element_type());
  }
  if (static_cast<int64_t>(descriptors.element_count()) != expected) {
    return refuse("the descriptor constant has " + std::to_string(descriptors.element_count()) + " words, expected " +
                  std::to_string(expected) + " for the call's problems and tiles");
  }
  if (reinterpret_cast<uintptr_t>(descriptors.untyped_data()) % alignof(ReadyTile)) {
    return refuse("the descriptor constant is not aligned to " + std::to_string(alignof(ReadyTile)) + " bytes");
  }
  return ffi::Error::Success();
}

// Fills in the call's buffers and dtypes, and checks that the arithmetic supports the dtypes. dtypes: of the buffers.
inline ffi::Error check_buffers(const Arguments& given, const BufferEnds& ends, Call& call, std::vector<DType>& dtypes) {
  call.kind = static_cast<Kind>(given.kind);
  const Arithmetic& arithmetic = arithmetic_of(call.kind);
  call.buffers.resize(ends.results);
  call.elements.resize(ends.results);
  dtypes.resize(ends.results);
  call.num_operands = static_cast<int32_t>(ends.operands);
  const ffi::DataType result_type = (**given.results.get<ffi::AnyBuffer>(0)).element_type();
  const std::optional<DType> out = dtype_of(result_type);
  if (!out || !arithmetic.gives(*out)) {
    return unexpected_dtype("buffer " + std::to_string(ends.operands), arithmetic.results(), result_type);
  }
  call.out_dtype = *out;
  // The two factors may have different types: a factor's side decides which.
  const uint32_t factors = set_of(arithmetic.lhs) | set_of(arithmetic.rhs);
  for (size_t i = 0; i < ends.results; ++i) {
    const ffi::AnyBuffer buffer =
        i >= ends.operands ? **given.results.get<ffi::AnyBuffer>(i - ends.operands) : *given.operands.get<ffi::AnyBuffer>(i);
    const bool is_scalar = i >= ends.addends && i < ends.operands;
    const uint32_t expected = i < ends.factors ? factors : set_of(is_scalar ? arithmetic.accumulator() : *out);
    const std::optional<DType> dtype = dtype_of(buffer.element_type());
    if (!dtype || !(expected & set_of(*dtype))) {
      return unexpected_dtype("buffer " + std::to_string(i), expected, buffer.element_type());
    }
    dtypes[i] = *dtype;
    call.elements[i] = buffer.element_count();
    call.buffers[i] = buffer.untyped_data();
  }
  return ffi::Error::Success();
}

// An error in words; empty if there is none.
using Fault = std::optional<std::string>;

// Checks that a buffer is in the group [first, last) of the call's buffers.
inline Fault check_group(const char* name, int32_t buffer, const char* group, size_t first, size_t last) {
  if (buffer >= 0 && static_cast<size_t>(buffer) >= first && static_cast<size_t>(buffer) < last) return {};
  const std::string buffers = first == last ? "of which the call has none" : std::to_string(first) + " to " + std::to_string(last - 1);
  return std::string(name) + " is buffer " + std::to_string(buffer) + ", expected one of the " + group + ", " + buffers;
}

inline Fault check_inside(const char* name, const Operand& x, int64_t rows, int64_t cols, const Problem& p, const Call& call) {
  if (inside(x, rows, cols, p, call.elements[x.buffer])) return {};
  return std::string(name) + " reaches past its buffer of " + std::to_string(call.elements[x.buffer]) + " elements";
}

inline Fault check_activation(int64_t activation) {
  if (activation >= 0 && activation < kActivations) return {};
  return "activation " + std::to_string(activation) + " does not exist, expected 0 to " + std::to_string(kActivations - 1);
}

inline Fault check_epilogue(const Epilogue& e, const Problem& p, const Call& call, const BufferEnds& ends) {
  for (const auto& [name, scalar] : {std::pair("alpha", &e.alpha), std::pair("beta", &e.beta)}) {
    if (scalar->buffer < 0) continue;
    if (Fault fault = check_group(name, scalar->buffer, "scalars", ends.addends, ends.operands)) return fault;
    if (scalar->offset < 0 || scalar->offset >= call.elements[scalar->buffer]) {
      return std::string(name) + " is element " + std::to_string(scalar->offset) + " of a buffer of " +
             std::to_string(call.elements[scalar->buffer]);
    }
  }
  for (const auto& [name, addend] : {std::pair("the source", &e.source), std::pair("the bias", &e.bias)}) {
    if (addend->buffer < 0) continue;
    if (Fault fault = check_group(name, addend->buffer, "addends", ends.factors, ends.addends)) return fault;
    if (Fault fault = check_inside(name, *addend, p.m, p.n, p, call)) return fault;
  }
  if (Fault fault = check_activation(static_cast<int64_t>(e.activation))) return fault;
  const DType sum = accumulator_of(call.kind);
  if (e.activation != Activation::none && is_complex(sum)) return "complex numbers have no activation";
  if (e.activation != Activation::none && is_integer(sum)) return "integers have no activation";
  return {};
}

// Whether two elements of C share an address because a stride is 0.
inline bool overlaps_itself(const Problem& p) {
  return (p.m > 1 && p.c.row_stride == 0) || (p.n > 1 && p.c.col_stride == 0) || (p.batch > p.inner_batch && p.c.batch_stride[0] == 0) ||
         (p.batch > 1 && p.inner_batch > 1 && p.c.batch_stride[1] == 0);
}

inline Fault check_problem(const Problem& p, const Call& call, const BufferEnds& ends, const std::vector<DType>& dtypes) {
  for (const auto& [name, size] : {std::pair("m", p.m), std::pair("n", p.n), std::pair("k", p.k), std::pair("batch", p.batch)}) {
    if (size < 0) return std::string("negative size ") + name + " = " + std::to_string(size);
  }
  if (p.inner_batch < 1) return "inner_batch is " + std::to_string(p.inner_batch) + ", expected at least 1";
  constexpr const char *kLeft = "the left operand", *kRight = "the right operand", *kResult = "the result";
  if (Fault fault = check_group(kLeft, p.a.buffer, "factors", 0, ends.factors)) return fault;
  if (Fault fault = check_group(kRight, p.b.buffer, "factors", 0, ends.factors)) return fault;
  if (Fault fault = check_group(kResult, p.c.buffer, "results", ends.operands, ends.results)) return fault;
  const Arithmetic& arithmetic = arithmetic_of(call.kind);
  for (const auto& [buffer, side] : {std::pair(p.a.buffer, arithmetic.lhs), std::pair(p.b.buffer, arithmetic.rhs)}) {
    if (dtypes[buffer] == side) continue;
    return std::string("the arithmetic has ") + name_of(side) + " on the side of buffer " + std::to_string(buffer) + ", got " +
           name_of(dtypes[buffer]);
  }
  if (Fault fault = check_inside(kLeft, p.a, p.m, p.k, p, call)) return fault;
  if (Fault fault = check_inside(kRight, p.b, p.k, p.n, p, call)) return fault;
  if (Fault fault = check_inside(kResult, p.c, p.m, p.n, p, call)) return fault;
  if (overlaps_itself(p)) return "the result overlaps itself";
  return {};
}

inline ffi::Error check_problems(const Arguments& given, const Call& call, const BufferEnds& ends, const std::vector<DType>& dtypes) {
  const Problem* problems = reinterpret_cast<const Problem*>(given.problems.begin());
  const Epilogue* epilogues = given.has_epilogues() ? reinterpret_cast<const Epilogue*>(given.epilogues.begin()) : nullptr;
  for (int64_t i = 0; i < given.num_problems(); ++i) {
    Fault fault = check_problem(problems[i], call, ends, dtypes);
    if (!fault && epilogues) fault = check_epilogue(epilogues[i], problems[i], call, ends);
    if (fault) return refuse("problem " + std::to_string(i) + ": " + *fault);
  }
  return ffi::Error::Success();
}

inline ffi::Error check_launches(const Arguments& given, Call& call) {
  constexpr size_t kInts = sizeof(Launch) / sizeof(int32_t);
  if (given.launches.size() % kInts) {
    return refuse("the table of launches has " + std::to_string(given.launches.size()) + " numbers, expected a multiple of " +
                  std::to_string(kInts));
  }
  call.launches = reinterpret_cast<const Launch*>(given.launches.begin());
  call.num_launches = static_cast<int32_t>(given.launches.size() / kInts);
  for (int i = 0; i < call.num_launches; ++i) {
    const Launch& launch = call.launches[i];
    const auto launch_fault = [i](const std::string& what) { return refuse("launch " + std::to_string(i) + ": " + what); };
    if (launch.kernel < 0 || launch.kernel >= kKernels) {
      return launch_fault("kernel " + std::to_string(launch.kernel) + " does not exist, expected 0 to " + std::to_string(kKernels - 1));
    }
    const int64_t end = static_cast<int64_t>(launch.first_block) + launch.num_blocks;
    if (launch.first_block < 0 || launch.num_blocks < 0 || end > given.num_blocks) {
      return launch_fault(std::to_string(launch.num_blocks) + " blocks from block " + std::to_string(launch.first_block) +
                          " on, but the plan has " + std::to_string(given.num_blocks));
    }
  }
  return ffi::Error::Success();
}

// The parts of the descriptor constant, which descriptor.h lists.
inline Descriptors parts_of_descriptors(const Arguments& given) {
  const int64_t num_problems = given.num_problems();
  const bool ready = given.has_ready_tiles();
  Descriptors plan{};
  const char* at = static_cast<const char*>(given.descriptors.untyped_data());
  plan.tiles = ready ? reinterpret_cast<const ReadyTile*>(at) : nullptr;
  if (ready) at += given.num_tiles * sizeof(ReadyTile);
  plan.problems = reinterpret_cast<const Problem*>(at);
  at += num_problems * sizeof(Problem);
  plan.epilogues = given.has_epilogues() ? reinterpret_cast<const Epilogue*>(at) : nullptr;
  if (given.has_epilogues()) at += num_problems * sizeof(Epilogue);
  plan.runs = ready ? nullptr : reinterpret_cast<const TileRun*>(at);
  at += given.num_runs * sizeof(TileRun);
  plan.splits = reinterpret_cast<const SplitTile*>(at);
  at += given.num_splits * sizeof(SplitTile);
  plan.block_first = given.has_one_tile_a_block() ? nullptr : reinterpret_cast<const int32_t*>(at);
  plan.num_problems = static_cast<int32_t>(num_problems);
  plan.num_runs = static_cast<int32_t>(given.num_runs);
  plan.num_tiles = static_cast<int32_t>(given.num_tiles);
  plan.num_splits = static_cast<int32_t>(given.num_splits);
  plan.num_blocks = static_cast<int32_t>(given.num_blocks);
  return plan;
}

// Fills in `call`, or returns an error that names the argument and the rule it breaks. extra_results: results after those of the products
// (a workspace).
inline ffi::Error check_call(const Arguments& given, size_t extra_results, Call& call) {
  if (ffi::Error error = check_attributes(given, extra_results); error.failure()) return error;
  if (ffi::Error error = check_descriptors(given); error.failure()) return error;
  const size_t factors = static_cast<size_t>(given.num_factors), operands = given.operands.size();
  const BufferEnds ends{factors, factors + static_cast<size_t>(given.num_addends), operands,
                        operands + given.results.size() - extra_results};
  std::vector<DType> dtypes;
  if (ffi::Error error = check_buffers(given, ends, call, dtypes); error.failure()) return error;
  if (ffi::Error error = check_problems(given, call, ends, dtypes); error.failure()) return error;
  if (ffi::Error error = check_launches(given, call); error.failure()) return error;
  call.plan = parts_of_descriptors(given);
  call.num_sums = given.num_sums;
  return ffi::Error::Success();
}

}  // namespace vbgemm

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(vbgemm::Attributes, VBGEMM_ATTRIBUTES(VBGEMM_STRUCT_MEMBER, VBGEMM_COMMA));
