// What the pipelined kernel of large products knows of a problem beside its descriptors: the TMA descriptors (tensor maps) of its
// matrices. They hold addresses, so that each call makes them anew, on the device: for many problems the driver's function on the host
// would take longer than the products.
#pragma once
#include <cstdint>

#include "gpu/arch/gpu_bulk_copy.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

struct alignas(128) ProblemMaps {
  CUtensorMap a, b, c;
  // Of A: where it begins in its buffer and its strides, from which a tile's first step of K follows.
  int64_t offset_a, row_stride_a, col_stride_a;
  int32_t depth;               // K
  uint8_t across_a, across_b;  // whether A and B are contiguous across K
  uint8_t has_factors, has_c;  // whether the maps of A and B exist, and that of C
};
static_assert(sizeof(ProblemMaps) == kProblemMapBytes);

// The parameters of the kernel that makes the maps. `factor` and `result` are maps of the right types and boxes; address, size and stride
// of a matrix replace theirs.
struct MapParameters {
  KernelParameters call;
  CUtensorMap factor, result;
};

#ifdef VBGEMM_DEVICE_CODE

struct alignas(16) Vector16 {
  uint32_t word[4];
};

// A matrix as TMA copies it: lines of adjacent elements. `data` is null where TMA cannot copy it.
struct LinesOfMatrix {
  char* data;
  int32_t items, lines;
  int64_t line_bytes;  // distance between lines
};

__device__ inline LinesOfMatrix lines_of(const KernelParameters& parameters, const Operand& x, const Problem& problem, int rows, int cols,
                                         bool is_result, int element_bytes) {
  constexpr int kAlignment = 16;
  LinesOfMatrix found{};
  const Part part = part_of(x, problem, 0, 0, 0);
  const bool there = part.buffer >= (is_result ? parameters.num_operands : 0) && part.buffer < parameters.num_buffers;
  if (!there || problem.batch != 1 || rows < 1 || cols < 1) return found;
  const Buffer buffer = buffer_of(parameters, part.buffer);
  if (!lies_inside(part, rows, cols, buffer.elements)) return found;
  const bool along_rows = part.col_stride == 1;
  if (!along_rows && (part.row_stride != 1 || is_result)) return found;
  found.items = along_rows ? cols : rows;
  found.lines = along_rows ? rows : cols;
  const int64_t stride = along_rows ? part.row_stride : part.col_stride, line = int64_t{found.items} * element_bytes;
  // A single line may have any stride.
  found.line_bytes = found.lines > 1 ? stride * element_bytes : (line + kAlignment - 1) / kAlignment * kAlignment;
  char* const data = static_cast<char*>(const_cast<void*>(buffer.data)) + part.offset * element_bytes;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % kAlignment == 0 && found.line_bytes % kAlignment == 0;
  if (aligned && found.line_bytes >= line) found.data = data;
  return found;
}

// Makes the maps of one problem. One warp runs it; `maps` is in shared memory.
__device__ inline void make_maps(const MapParameters& parameters, int index, ProblemMaps& maps, ProblemMaps* to) {
  constexpr int kWords = sizeof(CUtensorMap) / sizeof(Vector16), kAll = sizeof(ProblemMaps) / sizeof(Vector16);
  static_assert(kAll == 32);
  const int lane = thread_index();
  const KernelParameters& call = parameters.call;
  if (lane < 3 * kWords) {
    const CUtensorMap& from = lane < 2 * kWords ? parameters.factor : parameters.result;
    reinterpret_cast<Vector16*>(&maps)[lane] = reinterpret_cast<const Vector16*>(&from)[lane % kWords];
  }
  wave_barrier();
  const Problem* const address = call.plan.problems + index;
  const Problem problem = load_record(address);
  const Operand x = load_record(lane == kA ? &address->a : lane == kB ? &address->b : &address->c);
  const int rows = lane == kB ? problem.k : problem.m, cols = lane == kA ? problem.k : problem.n;
  LinesOfMatrix matrix{};
  if (lane <= kC) {
    const bool wide = call.result == DType::f32;
    matrix = lines_of(call, x, problem, rows, cols, lane == kC, lane == kC && wide ? 4 : 2);
    if (matrix.data) {
      replace_tensor(lane == kA ? maps.a : lane == kB ? maps.b : maps.c, matrix.data, matrix.items, matrix.lines, matrix.line_bytes);
    }
  }
  const bool a = value_of_lane(matrix.data != nullptr, kA), b = value_of_lane(matrix.data != nullptr, kB);
  const bool c = value_of_lane(matrix.data != nullptr, kC);
  if (lane == 0) {
    maps.offset_a = x.offset;
    maps.row_stride_a = x.row_stride;
    maps.col_stride_a = x.col_stride;
    maps.depth = problem.k;
    maps.across_a = x.col_stride != 1;
    maps.across_b = problem.b.col_stride == 1;
    maps.has_factors = a && b;
    maps.has_c = c;
  }
  wave_barrier();
  reinterpret_cast<Vector16*>(to)[lane] = reinterpret_cast<const Vector16*>(&maps)[lane];
}

#endif

}  // namespace vbgemm
