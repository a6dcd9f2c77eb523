// What a vendor's build has of the catalogue: which tiles and arithmetics have code, and the K steps of their kernels. The file needs no
// vendor's headers, so that the CPU module can tell Python. `cdna`: of the build for AMD's CDNA GPUs, otherwise of the one for NVIDIA's.
#pragma once
#include "catalogue.h"

namespace vbgemm {

// The arithmetics that a vendor's tensor kernels form. CDNA's matrix cores multiply float32 without rounding it, which serves tf32x3 too.
// On CDNA, types of a byte have no kernels on matrix cores.
constexpr uint32_t tensor_kinds(bool cdna) { return cdna ? ALL_TENSOR & ~TF32X3 : (ALL_TENSOR & ~F32) | ALL_BYTES; }

// Whether a tile has code of its own for an arithmetic.
constexpr bool has_code(const TileShape& tile, Kind kind, bool cdna) {
  if (!tile.is_gpu() || !tile.built_for(kind) || (cdna && tile.gpus != Gpus::all)) return false;
  return !tile.tensor || (arithmetic_of(kind).has_tensor_kernels && (tensor_kinds(cdna) >> static_cast<int>(kind) & 1));
}

// The K step of a GPU tile's kernel (of a deep tile's whole thread block), in elements of `bytes` bytes. The catalogue's step counts 4-byte
// elements; other types take the same number of bytes in a step (but at least 8 elements), so that the pipeline is as deep for them. On
// CDNA ordinary tiles take half of that, the largest a quarter (gpu/arch/machine.h), and matrix cores four 16-byte vectors of each row. Row
// tiles hold as many steps of B in shared memory, whatever the catalogue says.
constexpr int k_step(const TileShape& tile, int bytes, bool cdna) {
  if (tile.partition == ThreadPartition::rows) return cdna ? 32 : bytes == 2 || (tile.tensor && bytes == 4) ? 64 : 48;
  if (cdna && tile.tensor) return 64 / bytes;
  const bool large = tile.m * tile.n >= 64 * tile.threads;
  const int step = tile.k * 4 / bytes / (cdna && tile.partition == ThreadPartition::tile ? (large ? 4 : 2) : 1);
  return step > 8 ? step : 8;
}

}  // namespace vbgemm
