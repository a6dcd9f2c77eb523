// The TMA descriptors (tensor maps) of a plan tile's matrices. A map holds an address, so it cannot be a constant of the program. The warp
// that finds a tile makes the tile's maps in the CTA's part of the workspace: encoding them on the host would take longer than the products
// of many small problems, and a separate kernel would delay the first tile of a call.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/tile/tile_place.h"

namespace vbgemm {

struct TileMaps {
  CUtensorMap a, b, c, source;  // `source` is set only where TMA copies it
};
static_assert(sizeof(TileMaps) == kTileMapBytes);

// The parameters of a kernel that computes a plan's tiles. `factor` and `result` are template maps with the right types and boxes; each
// tile sets its own address, size and stride.
struct PlanParameters {
  KernelParameters call;
  CUtensorMap factor, result;
};

// A matrix as TMA copies it: lines of adjacent elements. `data` is null if TMA cannot copy it.
struct LinesOfMatrix {
  const void* data;
  int32_t items, lines;
  int64_t line_bytes;  // distance between lines
  bool whole_vectors;  // whether each line is a multiple of the 16 bytes that TMA stores at a time
};

__device__ inline LinesOfMatrix tma_lines_of(const MatrixView& x, int rows, int cols, int element_bytes) {
  constexpr int kAlignment = 16;
  LinesOfMatrix found{};
  const bool along_rows = x.col_stride == 1;
  if (rows < 1 || cols < 1 || (!along_rows && x.row_stride != 1)) return found;
  found.items = along_rows ? cols : rows;
  found.lines = along_rows ? rows : cols;
  const int64_t stride = along_rows ? x.row_stride : x.col_stride, line = int64_t{found.items} * element_bytes;
  // A single line may have any stride.
  found.line_bytes = found.lines > 1 ? stride * element_bytes : (line + kAlignment - 1) / kAlignment * kAlignment;
  const bool aligned = reinterpret_cast<uintptr_t>(x.first) % kAlignment == 0 && found.line_bytes % kAlignment == 0;
  if (aligned && found.line_bytes >= line) found.data = x.first;
  found.whole_vectors = line % kAlignment == 0;
  return found;
}

}  // namespace vbgemm
