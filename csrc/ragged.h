// A ragged product (rows in groups of runtime sizes) as kernels receive it; ragged_call.h defines its semantics.
#pragma once
#include <cstdint>

#include "catalogue.h"
#include "descriptor.h"

namespace vbgemm {

// The sizes of a call, from which the shapes of its operands are built. columns: of the sums and of a bias in ragged rows, 2 n in a gated
// product. lhs_columns, rhs_k and rhs_columns differ from k, k and columns (n in a contraction) only if the call has halves. The block
// counts are those of the scales. Of a batch these are the sizes of all entries together, but lhs_rows and rhs_groups may be those of the
// entries that have lhs or rhs of their own.
enum class RaggedSize : int32_t {
  lhs_rows,
  m,
  k,
  n,
  columns,
  groups,
  total_groups,
  rhs_groups,
  lhs_columns,
  rhs_k,
  rhs_columns,
  lhs_blocks,
  rhs_k_blocks,
  rhs_column_blocks
};
inline constexpr const char* kRaggedSizeNames[] = {
    "lhs_rows",   "m",           "k",     "n",           "columns",    "groups",       "total_groups",
    "rhs_groups", "lhs_columns", "rhs_k", "rhs_columns", "lhs_blocks", "rhs_k_blocks", "rhs_column_blocks"};
inline constexpr int kRaggedSizes = sizeof(kRaggedSizeNames) / sizeof(kRaggedSizeNames[0]);

// The type of an operand: the type of lhs, of rhs, of the result or of the sums, int32, or int32 or int64.
enum class RaggedType : int32_t { lhs, rhs, result, accumulator, index, group_size };
inline constexpr const char* kRaggedTypeNames[] = {"lhs", "rhs", "result", "accumulator", "index", "group_size"};

// Which operand is given in halves, so that one call takes weights in two arrays without copying them or cotangents. Ragged rows: the two
// halves of each matrix's columns, or of its K, are in the arrays rhs and second. Ragged contraction: one half of an operand with twice the
// columns is used.
enum class RaggedHalves : int32_t { none, columns, k, lhs_first, lhs_second, rhs_first, rhs_second };
inline constexpr const char* kRaggedHalvesNames[] = {"none", "columns", "k", "lhs_first", "lhs_second", "rhs_first", "rhs_second"};
inline constexpr int kRaggedHalves = sizeof(kRaggedHalvesNames) / sizeof(kRaggedHalvesNames[0]);
// rank -1: the operand is absent.
struct OperandShape {
  int rank;
  RaggedSize sizes[3];
};
// The kernel of a call: on the CPU, tiles of the catalogue on a GPU, or the pipelined kernel.
enum RaggedKernel { kRaggedCpu = 1, kRaggedTiles = 2, kRaggedPipelined = 4 };
inline constexpr const char* kRaggedKernelNames[] = {"cpu", "tiles", "pipelined"};

struct RaggedOperandInfo {
  const char* name;
  RaggedType type;
  int kernels;  // a set of RaggedKernel
  OperandShape rows, contraction;
};

namespace ragged_table {
constexpr RaggedSize lhs_rows = RaggedSize::lhs_rows, m = RaggedSize::m, k = RaggedSize::k, n = RaggedSize::n,
                     columns = RaggedSize::columns, groups = RaggedSize::groups, total_groups = RaggedSize::total_groups,
                     rhs_groups = RaggedSize::rhs_groups, lhs_columns = RaggedSize::lhs_columns, rhs_k = RaggedSize::rhs_k,
                     rhs_columns = RaggedSize::rhs_columns, lhs_blocks = RaggedSize::lhs_blocks, rhs_k_blocks = RaggedSize::rhs_k_blocks,
                     rhs_column_blocks = RaggedSize::rhs_column_blocks;
constexpr int cpu = kRaggedCpu, tiles = kRaggedTiles, pipelined = kRaggedPipelined, all = cpu | tiles | pipelined;
constexpr OperandShape absent{-1, {}};
template <class... Size>
constexpr OperandShape shape(Size... sizes) {
  return {sizeof...(sizes), {sizes...}};
}
// The operands, followed by the result.
inline constexpr RaggedOperandInfo kTable[] = {
#define OPERAND(name, type, kernels, rows, contraction) {#name, RaggedType::type, kernels, rows, contraction},
#define RESULT OPERAND
#include "ragged_operands.def"
};
}  // namespace ragged_table
inline constexpr const RaggedOperandInfo* kRaggedOperandTable = ragged_table::kTable;
inline constexpr int kRaggedOperands = sizeof(ragged_table::kTable) / sizeof(ragged_table::kTable[0]) - 1, kRaggedRequired = 3;

// The tile shape of the pipelined kernel on a GPU: 128 rows by a number of columns of the result for each CTA, and the CTAs in a cluster,
// which share copies. none: the call is not for the pipelined kernel. (Which shape is fastest depends on the device: ragged/plan.py.)
enum class RaggedShape : int32_t { none, wide_pair, wide, narrow };
struct RaggedShapeInfo {
  const char* name;
  int columns, cluster;
};
inline constexpr RaggedShapeInfo kRaggedShapeTable[] = {{"none", 0, 0}, {"wide_pair", 256, 2}, {"wide", 256, 1}, {"narrow", 128, 1}};
inline constexpr int kRaggedShapes = sizeof(kRaggedShapeTable) / sizeof(kRaggedShapeTable[0]);
constexpr const RaggedShapeInfo& info_of(RaggedShape shape) { return kRaggedShapeTable[static_cast<int>(shape)]; }

// How a GPU computes a call: the pipelined kernel's shape, whether its CTAs take tiles from a counter in the workspace, and the tile of the
// catalogue for GPUs and operands that the pipelined kernel does not support, or -1.
struct RaggedPlan {
  RaggedShape shape;
  bool counted;
  int32_t tile;
};

// Whether an arithmetic's operands have scales: those of 8 bits have. The scales are float32, and so are the scaled sums, even for int8.
constexpr bool has_scales(Kind kind) { return bytes_of(arithmetic_of(kind).lhs) == 1; }
constexpr DType ragged_accumulator_of(Kind kind) { return has_scales(kind) ? DType::f32 : accumulator_of(kind); }
// Whether ragged products of an arithmetic may have results of a type.
constexpr bool gives_ragged(Kind kind, DType result) {
  return has_scales(kind) ? result == DType::bf16 || result == DType::f32 : arithmetic_of(kind).gives(result);
}

struct RaggedCall {
  DType dtype, rhs_dtype, out_dtype;  // of lhs, of rhs and of the result
  Kind kind;
  bool contraction, transpose_rhs, gated;
  RaggedHalves halves;
  Activation activation;
  bool wide_sizes;         // group_sizes are int64
  bool fast_accumulation;  // the tensor cores may accumulate 8-bit floats over all of K, with about 14 bits
  bool undefined_rest;     // rows without weights are not written (they may be the majority); otherwise they become zeros
  int64_t m, k, n, groups, total_groups, lhs_rows, rhs_groups;
  int64_t entries;                                      // of the batch; 1 without one
  int64_t lhs_blocks, rhs_k_blocks, rhs_column_blocks;  // of the scales, if there are any
#define OPERAND(name, ...) const void* name;            // null if absent; the accumulator shares the result's memory
#define RESULT(...)
#include "ragged_operands.def"
  void* out;
  void* workspace;
  int64_t workspace_bytes;
  RaggedPlan plan;  // on a GPU

  int64_t entry_rows() const { return m / entries; }
  int64_t columns() const { return gated ? 2 * n : n; }  // of the sums
  // Whether rhs has a narrower type than its arithmetic.
  bool is_mixed() const { return rhs_dtype != arithmetic_of(kind).rhs; }
  int64_t lhs_columns() const { return halves == RaggedHalves::lhs_first || halves == RaggedHalves::lhs_second ? 2 * k : k; }
  int64_t rhs_k() const { return halves == RaggedHalves::k ? k / 2 : k; }
  int64_t rhs_columns() const {
    if (halves == RaggedHalves::rhs_first || halves == RaggedHalves::rhs_second) return 2 * n;
    return halves == RaggedHalves::columns ? columns() / 2 : columns();
  }
  int64_t size(RaggedSize which) const {
    const int64_t sizes[kRaggedSizes] = {lhs_rows,
                                         m,
                                         k,
                                         n,
                                         columns(),
                                         groups,
                                         total_groups,
                                         rhs_groups,
                                         lhs_columns(),
                                         rhs_k(),
                                         rhs_columns(),
                                         lhs_blocks,
                                         rhs_k_blocks,
                                         rhs_column_blocks};
    return sizes[static_cast<int>(which)];
  }
};

// The operands of a call, in the order of their table.
inline constexpr const void* RaggedCall::* kRaggedMembers[kRaggedOperands] = {
#define OPERAND(name, ...) &RaggedCall::name,
#define RESULT(...)
#include "ragged_operands.def"
};

// The shape of a call's operand or result.
inline const OperandShape& shape_of(const RaggedCall& call, const RaggedOperandInfo& operand) {
  return call.contraction ? operand.contraction : operand.rows;
}
inline int64_t elements_of(const RaggedCall& call, const RaggedOperandInfo& operand) {
  const OperandShape& shape = shape_of(call, operand);
  int64_t elements = 1;
  for (int i = 0; i < shape.rank; ++i) elements *= call.size(shape.sizes[i]);
  return elements;
}

// Whether a kernel supports a call's operands, types, form, gates and halves.
inline bool has_all(RaggedKernel kernel, const RaggedCall& call) {
  for (int i = 0; i < kRaggedOperands; ++i) {
    if (call.*kRaggedMembers[i] && !(kRaggedOperandTable[i].kernels & kernel)) return false;
  }
  const bool along_k = call.contraction && call.transpose_rhs;
  return (!call.gated && !along_k && call.halves == RaggedHalves::none && bytes_of(call.rhs_dtype) > 1) || kernel == kRaggedPipelined;
}

inline int64_t results_of(const RaggedCall& call) { return elements_of(call, kRaggedOperandTable[kRaggedOperands]); }

// A scale's block: K elements, and columns of rhs.
inline constexpr int kScaledDepth = 128, kScaledColumns = 128;
// Whether rhs has a scale for each column of its matrices.
inline bool has_column_scales(const RaggedCall& call) {
  return call.rhs_scale && !call.contraction && call.rhs_column_blocks == call.columns();
}

// Whether rhs may have a narrower type than its arithmetic. Such weights are K-major, and their scales, if any, are per block as above or
// per column.
inline bool may_be_mixed(Kind kind, DType rhs) {
  return (kind == Kind::bf16 || kind == Kind::f16) && (rhs == DType::s8 || rhs == DType::s4 || rhs == DType::e4m3);
}

// Whether a call's arithmetic, type of rhs, layout, gathering and shape have a pipelined kernel, on devices that have pipelined kernels.
// Only ragged rows of 16-bit types run in clusters, and clusters never gather. Mixed products have one shape. int8 only has ragged rows.
inline bool has_ragged_pipeline(Kind kind, DType rhs, bool contraction, bool transpose_rhs, bool gathers, RaggedShape shape) {
  if (rhs != arithmetic_of(kind).rhs) {
    return may_be_mixed(kind, rhs) && !contraction && transpose_rhs && !gathers && shape == RaggedShape::wide;
  }
  if (shape == RaggedShape::none || (info_of(shape).cluster > 1 && (contraction || gathers || (kind != Kind::bf16 && kind != Kind::f16))))
    return false;
  if (kind == Kind::bf16 || kind == Kind::f16) return !(contraction && (gathers || transpose_rhs));
  const bool along_k = transpose_rhs && !gathers;  // wgmma reads these alone
  return along_k && (contraction ? has_scales(kind) && kind != Kind::s8 : has_scales(kind) || kind == Kind::tf32);
}
// The length of a half must be a multiple of this, so that no TMA box (128 bytes by 64 lines) lies in both halves. The halves of a gated
// product are exempt.
inline int ragged_half_elements(Kind kind) {
  const int line = 128 / bytes_of(arithmetic_of(kind).lhs);
  return line < 64 ? 64 : line;
}
// Lines of a pipelined kernel's operands and results must be multiples of this many elements (16 bytes).
inline int pipelined_line_elements(Kind kind) { return 16 / bytes_of(arithmetic_of(kind).lhs); }

// The header of the tile list: the epilogue of tiles whose group has a matrix, and the epilogue of zero tiles.
struct TileEpilogues {
  Problem problem[2];
  Epilogue epilogue[2];
};

constexpr int64_t tiles_over(int64_t size, int each) { return (size + each - 1) / each; }

// The maximum number of tiles of `rows` x `cols`, whatever the group sizes are.
inline int64_t max_tiles(const RaggedCall& call, int rows, int cols) {
  const int64_t across = tiles_over(call.columns(), cols), nonempty = call.m < call.total_groups ? call.m : call.total_groups;
  return call.contraction ? call.groups * tiles_over(call.k, rows) * across : (call.m / rows + nonempty + 1) * across;
}

// The size in bytes of the tile counter, and of the tile list for a GPU that computes the call by a tile of the catalogue (with its
// header).
inline constexpr int64_t kRaggedCounterBytes = 4;
// Limits that keep 32-bit arithmetic from overflowing: size + tile size, and tiles x 16-row units.
inline constexpr int64_t kRaggedMostSize = INT32_MAX - 4096, kRaggedMostTiles = int64_t{1} << 26;
inline int64_t ragged_list_bytes(const RaggedCall& call, const TileShape& tile) {
  return static_cast<int64_t>(sizeof(TileEpilogues)) + max_tiles(call, tile.m, tile.n) * static_cast<int64_t>(sizeof(ReadyTile));
}
inline int64_t ragged_workspace_bytes(const RaggedCall& call) {
  const int64_t counter = call.plan.counted ? kRaggedCounterBytes : 0;
  const int64_t list = call.plan.tile >= 0 ? ragged_list_bytes(call, kTiles[call.plan.tile]) : 0;
  return counter < list ? list : counter;
}

}  // namespace vbgemm
