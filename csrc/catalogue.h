// The tile catalogue of tiles.def and the kernels of kernels.def as constexpr tables, for host and device code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dtypes.h"

namespace vbgemm {

constexpr uint32_t all_of_bytes(int bytes) {
  uint32_t all = 0;
  for (int kind = 0; kind < kKinds; ++kind) all |= uint32_t{bytes_of(kArithmetics[kind].lhs) == bytes} << kind;
  return all;
}
constexpr uint32_t all_dtypes() {
  uint32_t all = 0;
  for (int kind = 0; kind < kKinds; ++kind) all |= uint32_t{plain_kind_of(static_cast<Kind>(kind)) == static_cast<Kind>(kind)} << kind;
  return all;
}
inline constexpr uint32_t ALL_DTYPES = all_dtypes(), ALL_BYTES = all_of_bytes(1);  // ALL_BYTES: 8-bit floats and integers
inline constexpr uint32_t ALL_WIDER = ALL_DTYPES & ~ALL_BYTES, ALL_REAL = F32 | F64 | BF16 | F16;
inline constexpr uint32_t ALL_TENSOR = F32 | F64 | BF16 | F16 | TF32 | TF32X3;  // each vendor builds a subset: gpu/vendor_tiles.h

// How a tile is divided among its threads (on tensor cores: its warps). tile: each computes a rectangle of the tile, for all of K. rows:
// each computes whole rows (gpu/simt/row_tile.h). sliced_k: several threads compute the same elements, each for its own K elements
// (gpu/simt/deep_tile.h). warp_sliced_k: the lanes of a warp compute the same rows, each for its own K elements (gpu/simt/dot_tile.h,
// gpu/tensor/tensor_dot_tile.h). warpgroup_rows: a warpgroup computes 64 rows, and another one copies the operands (gpu/sm90/block.h).
enum class ThreadPartition : int32_t { tile, rows, sliced_k, warp_sliced_k, warpgroup_rows };
inline constexpr const char* kThreadPartitionNames[] = {"tile", "rows", "sliced_k", "warp_sliced_k", "warpgroup_rows"};

// The GPUs for which a tile's kernel is written. hopper: compute capability 9.0 alone.
enum class Gpus : int32_t { all, nvidia, hopper };
inline constexpr const char* kGpusNames[] = {"all", "nvidia", "hopper"};

struct TileShape {
  const char* name;
  int32_t m, n, k;
  int32_t threads;  // in a thread block; 1 for a CPU tile
  uint32_t kinds;   // bit set of the arithmetics that the tile is built for
  bool tensor;      // runs on tensor cores (on AMD, matrix cores)
  ThreadPartition partition;
  Gpus gpus;

  constexpr bool built_for(Kind kind) const { return kinds >> static_cast<int>(kind) & 1; }
  constexpr bool is_gpu() const { return threads > 1; }
};

inline constexpr TileShape kTiles[] = {
#define GPU_TILE(name, m, n, k, threads, dtypes) {name, m, n, k, threads, dtypes, false, ThreadPartition::tile, Gpus::all},
#define ROW_TILE(name, m, n, k, threads, dtypes) {name, m, n, k, threads, dtypes, false, ThreadPartition::rows, Gpus::all},
#define DEEP_TILE(name, m, n, k, threads, dtypes) {name, m, n, k, threads, dtypes, false, ThreadPartition::sliced_k, Gpus::all},
#define DOT_TILE(name, m, n, k, threads, dtypes) {name, m, n, k, threads, dtypes, false, ThreadPartition::warp_sliced_k, Gpus::nvidia},
#define TENSOR_TILE(name, m, n, k, threads, kinds, gpus) {name, m, n, k, threads, kinds, true, ThreadPartition::tile, Gpus::gpus},
#define TENSOR_ROW_TILE(name, m, n, k, threads, kinds) {name, m, n, k, threads, kinds, true, ThreadPartition::rows, Gpus::nvidia},
#define TENSOR_DOT_TILE(name, m, n, k, threads, kinds) {name, m, n, k, threads, kinds, true, ThreadPartition::warp_sliced_k, Gpus::nvidia},
#define PIPELINED_TILE(name, m, n, k, threads, kinds, gpus) \
  {name, m, n, k, threads, kinds, true, ThreadPartition::warpgroup_rows, Gpus::gpus},
#define CPU_TILE(name, m, n, k, dtypes) {name, m, n, k, 1, dtypes, false, ThreadPartition::tile, Gpus::all},
#include "tiles.def"
#undef GPU_TILE
#undef ROW_TILE
#undef DEEP_TILE
#undef DOT_TILE
#undef TENSOR_TILE
#undef TENSOR_ROW_TILE
#undef TENSOR_DOT_TILE
#undef PIPELINED_TILE
#undef CPU_TILE
};
inline constexpr int kNumTiles = sizeof(kTiles) / sizeof(kTiles[0]);

// How a tensor tile is divided into the rectangles of its warps. If there are more warps than rectangles, `split` warps share each
// rectangle and take different K slices of each step.
struct WaveGrid {
  int32_t rows, cols;           // of a rectangle
  int32_t down, across, split;  // rectangles along M and along N, and warps that share one
};
constexpr WaveGrid wave_grid(const TileShape& tile) {
  const int waves = tile.threads / 32, rows = tile.m < 32 ? 16 : 32;
  const int down = tile.m / rows;
  int cols = 32;
  while (down * (tile.n / cols) > waves) cols *= 2;
  const int across = tile.n / cols;
  return {rows, cols, down, across, waves / (down * across)};
}

// The launched kernel that holds a GPU tile. Tiles share a kernel if they have the same thread count and register class, so that a small
// tile does not inherit the registers, and therefore the occupancy, of a large one. Skinny tiles have few accumulators but are
// memory-bound, and their copies need the shared memory of a medium tile.
enum class Kernel : int32_t {
#define ORDINARY_KERNEL(name, ...) name,
#define TENSOR_KERNEL ORDINARY_KERNEL
#define PIPELINED_KERNEL ORDINARY_KERNEL
#define ALIGNED_KERNEL ORDINARY_KERNEL
#include "kernels.def"
};
inline constexpr const char* kKernelNames[] = {
#define ORDINARY_KERNEL(name, ...) #name,
#define TENSOR_KERNEL ORDINARY_KERNEL
#define PIPELINED_KERNEL ORDINARY_KERNEL
#define ALIGNED_KERNEL ORDINARY_KERNEL
#include "kernels.def"
};
struct KernelShape {
  int32_t threads;
  bool pipelined;
  Gpus gpus;
};
inline constexpr KernelShape kKernelShapes[] = {
#define ORDINARY_KERNEL(name, threads) {threads, false, Gpus::all},
#define TENSOR_KERNEL ORDINARY_KERNEL
#define PIPELINED_KERNEL(name, threads, gpus) {threads, true, Gpus::gpus},
#define ALIGNED_KERNEL(name, threads, tile) {threads, false, Gpus::nvidia},
#include "kernels.def"
};
inline constexpr int kKernels = sizeof(kKernelShapes) / sizeof(kKernelShapes[0]);

constexpr int find_row(std::string_view name, int threads) {
  int row = 0;
  while (kTiles[row].name != name || kTiles[row].threads != threads) ++row;  // does not compile if there is none
  return row;
}
// The row of the catalogue of each aligned kernel, and -1 for other kernels.
inline constexpr int kAlignedRows[] = {
#define ORDINARY_KERNEL(...) -1,
#define TENSOR_KERNEL ORDINARY_KERNEL
#define PIPELINED_KERNEL ORDINARY_KERNEL
#define ALIGNED_KERNEL(name, threads, tile) find_row(tile, threads),
#include "kernels.def"
};
constexpr int aligned_row(Kernel kernel) { return kAlignedRows[static_cast<int>(kernel)]; }
constexpr const KernelShape& shape_of(Kernel kernel) { return kKernelShapes[static_cast<int>(kernel)]; }
constexpr int threads_of(Kernel kernel) { return shape_of(kernel).threads; }

// The pipelined kernel of an architecture.
constexpr Kernel pipelined_kernel(Gpus gpus) {
  int kernel = 0;
  while (!kKernelShapes[kernel].pipelined || kKernelShapes[kernel].gpus != gpus) ++kernel;  // does not compile if there is none
  return static_cast<Kernel>(kernel);
}

// Whether one side of a tile is at least four times the other, as in skinny tiles and in row and column tiles.
constexpr bool is_far_longer(const TileShape& tile) { return tile.m >= 4 * tile.n || tile.n >= 4 * tile.m; }

constexpr int shorter_side(const TileShape& tile) { return tile.m < tile.n ? tile.m : tile.n; }

// Whether a tile can also store the transpose of what it computes, as its mirror image in a symmetric C.
constexpr bool stores_mirrored(const TileShape& tile) { return tile.tensor && tile.partition != ThreadPartition::rows; }

// Whether a row tile (column tile) has so few rows (columns) that each thread owns one.
constexpr bool is_short(const TileShape& tile) { return tile.m < 256 && tile.n < 256; }

constexpr Kernel kernel_of(const TileShape& tile) {
  const int accumulators = tile.m * tile.n / tile.threads;
  if (tile.partition == ThreadPartition::warpgroup_rows) return pipelined_kernel(tile.gpus);
  if (tile.partition == ThreadPartition::warp_sliced_k) return tile.tensor ? Kernel::m256_dots : Kernel::t256_dots;
  if (tile.partition == ThreadPartition::rows) {
    const bool wide = shorter_side(tile) > 16;
    return tile.tensor ? (wide ? Kernel::m128_wide_rows : Kernel::m128_rows) : wide ? Kernel::t128_wide_rows : Kernel::t128_rows;
  }
  if (tile.tensor && tile.threads == 256) return accumulators > 64 ? Kernel::m256_full : Kernel::m256_heavy;
  // Long tiles have a kernel of their own because compile time grows faster than the number of tiles in a kernel (docs/design/build.md,
  // U3).
  if (tile.tensor) return accumulators > 32 ? Kernel::m128_heavy : is_far_longer(tile) ? Kernel::m128_long : Kernel::m128_light;
  if (tile.partition == ThreadPartition::sliced_k) return Kernel::t128_deep;
  if (tile.threads == 128 && accumulators <= 32 && (is_far_longer(tile) || accumulators > 16)) return Kernel::t128_medium;
  if (tile.threads == 256) return accumulators > 16 ? Kernel::t256_heavy : Kernel::t256_light;
  return accumulators > 64 ? Kernel::t128_full : accumulators > 16 ? Kernel::t128_heavy : Kernel::t128_light;
}

constexpr bool tiles_have_their_kernels_threads() {
  for (const TileShape& tile : kTiles) {
    if (tile.is_gpu() && threads_of(kernel_of(tile)) != tile.threads) return false;
  }
  return true;
}
static_assert(tiles_have_their_kernels_threads(), "a tile's thread count is not that of the kernel that holds it (kernels.def)");

// FNV-1a hash of the whole table. A program that was planned with another catalogue would refer to other tiles, and is rejected.
constexpr int64_t catalogue_hash() {
  uint64_t hash = 0xcbf29ce484222325ull;
  auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };
  for (const TileShape& tile : kTiles) {
    for (char c : std::string_view(tile.name)) mix(static_cast<unsigned char>(c));
    for (int32_t value : {tile.m, tile.n, tile.k, tile.threads, static_cast<int32_t>(tile.kinds), static_cast<int32_t>(tile.tensor),
                          static_cast<int32_t>(tile.partition)})
      mix(static_cast<uint32_t>(value));
  }
  return static_cast<int64_t>(hash);
}

}  // namespace vbgemm
