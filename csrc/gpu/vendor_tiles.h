// The part of the catalogue that a vendor's build supports: which tiles and arithmetics have code, and the K steps of their kernels. The
// file needs no vendor headers, so that the CPU module can export it to Python. `cdna`: for AMD's CDNA GPUs, otherwise for NVIDIA GPUs.
#pragma once
#include "catalogue.h"

namespace vbgemm {

// The arithmetics that a vendor's tensor kernels support. CDNA's matrix cores multiply float32 without rounding it, which serves tf32x3
// too. On CDNA, 1-byte types have no kernels on matrix cores.
constexpr uint32_t tensor_kinds(bool cdna) { return cdna ? ALL_TENSOR & ~TF32X3 : (ALL_TENSOR & ~F32) | ALL_BYTES; }

// Whether a tile has code of its own for an arithmetic.
constexpr bool has_code(const TileShape& tile, Kind kind, bool cdna) {
  if (!tile.is_gpu() || !tile.built_for(kind) || (cdna && tile.gpus != Gpus::all)) return false;
  return !tile.tensor || (arithmetic_of(kind).has_tensor_kernels && (tensor_kinds(cdna) >> static_cast<int>(kind) & 1));
}

// The K step of a GPU tile's kernel (of a deep tile's whole thread block), in elements of `bytes` bytes. The catalogue's step counts 4-byte
// elements; other types take the same number of bytes in a step (but at least 8 elements), so that the pipeline is as deep for them. On
// CDNA ordinary tiles take half of that, the largest a quarter (gpu/arch/machine.h), and matrix cores four 16-byte vectors of each row. Row
// tiles hold this many K elements of B in shared memory, regardless of the catalogue.
constexpr int k_step(const TileShape& tile, int bytes, bool cdna) {
  if (tile.partition == ThreadPartition::rows) return cdna ? 32 : bytes == 2 || (tile.tensor && bytes == 4) ? 64 : 48;
  if (cdna && tile.tensor) return 64 / bytes;
  const bool large = tile.m * tile.n >= 64 * tile.threads;
  const int step = tile.k * 4 / bytes / (cdna && tile.partition == ThreadPartition::tile ? (large ? 4 : 2) : 1);
  return step > 8 ? step : 8;
}

}  // namespace vbgemm
