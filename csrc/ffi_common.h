// The checks that the CPU and the GPU handler share, between a custom call's arguments and a kernel.
//
// The problem table is passed twice: inside the descriptor constant, where kernels read it, and as a host attribute, which is checked here
// against the buffers that XLA passes. Tile descriptors are not checked here: kernels check or clamp them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
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
#define SUM_DTYPE DTYPE
#define ARITHMETIC(...)
#include "dtypes.def"
    default: return std::nullopt;
  }
}

inline ffi::Error refuse(const std::string& why) { return ffi::Error::InvalidArgument("jax_vbgemm: " + why); }

inline ffi::Error unexpected_dtype(size_t buffer, ffi::DataType expected, ffi::DataType got) {
  const auto name = [](ffi::DataType type) {
    const std::optional<DType> dtype = dtype_of(type);
    return std::string(dtype ? name_of(*dtype) : "a dtype without kernels");
  };
  return refuse("buffer " + std::to_string(buffer) + ": expected " + name(expected) + ", got " + name(got));
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

// The arguments of both handlers after their contexts, and how they are bound.
struct Arguments {
  ffi::AnyBuffer descriptors;
  ffi::RemainingArgs operands;  // factors, then sources and biases (addends), then alphas and betas
  ffi::RemainingRets results;
  int64_t catalogue, kind;
  ffi::Span<const int64_t> problems, epilogues;
  ffi::Span<const int32_t> launches;
  int64_t num_factors, num_addends, num_runs, num_tiles, num_blocks, num_splits, num_sums;
};

#define VBGEMM_BIND_ARGUMENTS(binding)                    \
  binding.Arg<::xla::ffi::AnyBuffer>()                    \
      .RemainingArgs()                                    \
      .RemainingRets()                                    \
      .Attr<int64_t>("catalogue")                         \
      .Attr<int64_t>("kind")                              \
      .Attr<::xla::ffi::Span<const int64_t>>("problems")  \
      .Attr<::xla::ffi::Span<const int64_t>>("epilogues") \
      .Attr<::xla::ffi::Span<const int32_t>>("launches")  \
      .Attr<int64_t>("num_factors")                       \
      .Attr<int64_t>("num_addends")                       \
      .Attr<int64_t>("num_runs")                          \
      .Attr<int64_t>("num_tiles")                         \
      .Attr<int64_t>("num_blocks")                        \
      .Attr<int64_t>("num_splits")                        \
      .Attr<int64_t>("num_sums")

// Returns what is wrong with an epilogue, or null.
inline const char* check_epilogue(const Epilogue& e, const Problem& p, DType sum, const std::vector<int64_t>& elements, size_t num_factors,
                                  size_t num_addends, size_t num_operands) {
  const auto in_range = [](int32_t buffer, size_t first, size_t last) {
    return static_cast<size_t>(buffer) >= first && static_cast<size_t>(buffer) < last;
  };
  for (const Scalar* scalar : {&e.alpha, &e.beta}) {
    if (scalar->buffer < 0) continue;
    if (!in_range(scalar->buffer, num_factors + num_addends, num_operands)) return "alpha or beta is not among the call's scalars";
    if (scalar->offset < 0 || scalar->offset >= elements[scalar->buffer]) return "alpha or beta lies past its buffer";
  }
  for (const Operand* addend : {&e.source, &e.bias}) {
    if (addend->buffer < 0) continue;
    if (!in_range(addend->buffer, num_factors, num_factors + num_addends)) return "source or bias is not among the call's addends";
    if (!inside(*addend, p.m, p.n, p, elements[addend->buffer])) return "source or bias reaches past its buffer";
  }
  if (e.activation < Activation::none || e.activation > Activation::sigmoid) return "unknown activation";
  if (e.activation != Activation::none && is_complex(sum)) return "complex numbers have no activation";
  if (e.activation != Activation::none && is_integer(sum)) return "integers have no activation";
  return nullptr;
}

// Fills in `call`, or returns an error that names the argument and the rule it breaks. extra_results: results after those of the products
// (a workspace).
inline ffi::Error check_call(const Arguments& given, size_t extra_results, Call& call) {
  const auto& [descriptors, args, rets, catalogue, kind, table, epilogue_table, launches, num_factors, num_addends, num_runs, num_tiles,
               num_blocks, num_splits, num_sums] = given;
  constexpr int64_t kProblemWords = sizeof(Problem) / 8, kRunInts = sizeof(TileRun) / 4, kTileInts = sizeof(ReadyTile) / 4,
                    kSplitInts = sizeof(SplitTile) / 4;
  constexpr int64_t kCatalogue = catalogue_hash();  // at compile time, because a call of small products takes only a few microseconds
  if (catalogue != kCatalogue) {
    return refuse("this program was planned with another tile catalogue (" + std::to_string(catalogue) + ") than this build has (" +
                  std::to_string(kCatalogue) + "): lower or export it again with this version");
  }
  if (args.size() < 1 || rets.size() < 1 + extra_results) return refuse("a call needs at least one operand and one result");
  if (num_factors < 1 || num_addends < 0 || num_factors + num_addends > static_cast<int64_t>(args.size())) {
    return refuse("more factors and addends than operands");
  }
  if (table.size() % kProblemWords || num_runs < 0 || num_tiles < num_runs || num_blocks > num_tiles || num_tiles > INT32_MAX ||
      num_splits < 0 || num_splits > num_tiles || (num_splits > 0 && num_runs > 0) || num_sums < 0 || num_sums > INT64_MAX / 64) {
    return refuse("malformed problem table or tile counts");
  }
  call.num_sums = num_sums;
  const int64_t num_problems = table.size() / kProblemWords;
  const bool finishing = epilogue_table.size() > 0;
  static_assert(sizeof(Epilogue) == sizeof(Problem));
  if (finishing && epilogue_table.size() != table.size()) return refuse("there must be one epilogue for each problem, or none");
  const bool one_tile_a_block = num_blocks == num_tiles;
  const bool ready = num_runs == 0 && num_tiles > 0;
  const int64_t expected = num_problems * kProblemWords * (finishing ? 4 : 2) + (ready ? num_tiles * kTileInts : num_runs * kRunInts) +
                           num_splits * kSplitInts + (one_tile_a_block ? 0 : num_blocks + 1);
  if (descriptors.element_type() != ffi::DataType::S32 || static_cast<int64_t>(descriptors.element_count()) != expected) {
    return refuse("the descriptor constant has " + std::to_string(descriptors.element_count()) + " words, the problem table needs " +
                  std::to_string(expected));
  }
  if (reinterpret_cast<uintptr_t>(descriptors.untyped_data()) % 8) return refuse("the descriptor constant is not aligned to 8 bytes");

  const size_t num_operands = args.size(), num_results = rets.size() - extra_results;
  const size_t ends[] = {static_cast<size_t>(num_factors), static_cast<size_t>(num_factors + num_addends), num_operands};
  std::vector<int64_t>& elements = call.elements;
  elements.resize(num_operands + num_results);
  call.buffers.resize(num_operands + num_results);
  call.num_operands = static_cast<int32_t>(num_operands);
  std::vector<ffi::DataType> types(elements.size());
  std::optional<size_t> first_of[4];  // the first buffer of the factors, addends, scalars and results, if any
  for (size_t i = 0; i < elements.size(); ++i) {
    ffi::AnyBuffer buffer = i >= num_operands ? **rets.get<ffi::AnyBuffer>(i - num_operands) : *args.get<ffi::AnyBuffer>(i);
    types[i] = buffer.element_type();
    std::optional<size_t>& first = first_of[(i >= ends[0]) + (i >= ends[1]) + (i >= ends[2])];
    // Factors may be of two types: the side that a factor is on decides which.
    if (first && i >= ends[0] && types[i] != types[*first]) return unexpected_dtype(i, types[*first], types[i]);
    if (!first) first = i;
    elements[i] = buffer.element_count();
    call.buffers[i] = buffer.untyped_data();
  }
  const std::optional<DType> factor = dtype_of(types[0]), out = dtype_of(types[num_operands]);
  if (kind < 0 || kind >= kKinds) return refuse("arithmetic (kind) " + std::to_string(kind) + " does not exist");
  const Arithmetic& arithmetic = arithmetic_of(static_cast<Kind>(kind));
  for (size_t i = 1; i < ends[0]; ++i) {
    const bool one_type = arithmetic.lhs == arithmetic.rhs;
    if (types[i] != types[0] && (one_type || !dtype_of(types[i]))) return unexpected_dtype(i, types[0], types[i]);
  }
  if (!factor || !out || !arithmetic.gives(*out)) return refuse("no kernel for these operand and result dtypes");
  if (*factor != arithmetic.lhs && *factor != arithmetic.rhs) {
    return refuse("arithmetic (kind) " + std::to_string(kind) + " does not multiply operands of this dtype");
  }
  if (first_of[1] && types[*first_of[1]] != types[num_operands]) return refuse("sources and biases must have the results' dtype");
  if (first_of[2] && dtype_of(types[*first_of[2]]) != arithmetic.accumulator()) {
    return refuse("alphas and betas must have the accumulator's dtype");
  }
  call.kind = static_cast<Kind>(kind);
  call.out_dtype = *out;

  const Problem* problems = reinterpret_cast<const Problem*>(table.begin());
  for (int64_t i = 0; i < num_problems; ++i) {
    const Problem& p = problems[i];
    const auto problem = [i](const char* rule) { return refuse("problem " + std::to_string(i) + ": " + rule); };
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || p.inner_batch < 1) return problem("negative size");
    const auto in_range = [](int32_t buffer, size_t first, size_t last) {
      return buffer >= 0 && static_cast<size_t>(buffer) >= first && static_cast<size_t>(buffer) < last;
    };
    if (!in_range(p.a.buffer, 0, ends[0]) || !in_range(p.b.buffer, 0, ends[0]) ||
        !in_range(p.c.buffer, num_operands, num_operands + num_results)) {
      return problem("names a buffer that the call does not have");
    }
    if (dtype_of(types[p.a.buffer]) != arithmetic.lhs || dtype_of(types[p.b.buffer]) != arithmetic.rhs) {
      return problem("a factor's dtype is not that of its side of the arithmetic");
    }
    if (!inside(p.a, p.m, p.k, p, elements[p.a.buffer])) return problem("the left operand reaches past its buffer");
    if (!inside(p.b, p.k, p.n, p, elements[p.b.buffer])) return problem("the right operand reaches past its buffer");
    if (!inside(p.c, p.m, p.n, p, elements[p.c.buffer])) return problem("the result reaches past its buffer");
    const bool overlaps = (p.m > 1 && p.c.row_stride == 0) || (p.n > 1 && p.c.col_stride == 0) ||
                          (p.batch > p.inner_batch && p.c.batch_stride[0] == 0) ||
                          (p.batch > 1 && p.inner_batch > 1 && p.c.batch_stride[1] == 0);
    if (overlaps) return problem("the result overlaps itself");
    if (!finishing) continue;
    const Epilogue& epilogue = reinterpret_cast<const Epilogue*>(epilogue_table.begin())[i];
    const char* wrong = check_epilogue(epilogue, p, arithmetic.accumulator(), elements, ends[0], num_addends, num_operands);
    if (wrong) return problem(wrong);
  }

  if (launches.size() % 3) return refuse("malformed launch table");
  call.launches = reinterpret_cast<const Launch*>(launches.begin());
  call.num_launches = static_cast<int32_t>(launches.size() / 3);
  for (int i = 0; i < call.num_launches; ++i) {
    const Launch& launch = call.launches[i];
    if (launch.kernel < 0 || launch.kernel >= kKernels || launch.first_block < 0 || launch.num_blocks < 0 ||
        static_cast<int64_t>(launch.first_block) + launch.num_blocks > num_blocks) {
      return refuse("launch " + std::to_string(i) + " names blocks that the plan does not have");
    }
  }

  const char* at = static_cast<const char*>(descriptors.untyped_data());
  call.plan.problems = reinterpret_cast<const Problem*>(at);
  at += num_problems * sizeof(Problem);
  call.plan.epilogues = finishing ? reinterpret_cast<const Epilogue*>(at) : nullptr;
  if (finishing) at += num_problems * sizeof(Epilogue);
  call.plan.runs = ready ? nullptr : reinterpret_cast<const TileRun*>(at);
  call.plan.tiles = ready ? reinterpret_cast<const ReadyTile*>(at) : nullptr;
  at += ready ? num_tiles * sizeof(ReadyTile) : num_runs * sizeof(TileRun);
  call.plan.splits = reinterpret_cast<const SplitTile*>(at);
  at += num_splits * sizeof(SplitTile);
  call.plan.block_first = one_tile_a_block ? nullptr : reinterpret_cast<const int32_t*>(at);
  call.plan.num_problems = static_cast<int32_t>(num_problems);
  call.plan.num_runs = static_cast<int32_t>(num_runs);
  call.plan.num_tiles = static_cast<int32_t>(num_tiles);
  call.plan.num_splits = static_cast<int32_t>(num_splits);
  call.plan.num_blocks = static_cast<int32_t>(num_blocks);
  return ffi::Error::Success();
}

}  // namespace vbgemm
