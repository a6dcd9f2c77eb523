// Picks the kernel of a ragged product, describes its operands to the copy engine and starts it.
#include "ragged_launch.h"

#include <algorithm>

#include "ragged_kernels.h"

namespace vbgemm {
namespace {

struct Pipelined {
  Kind kind;
  bool across_a, across_b;
  int cols, cluster;
  const void* address;
  int shared_bytes;
};

#define VBGEMM_COMPILED(name, kind, across_a, across_b, cols, cluster)                                                  \
  {Kind::kind, across_a, across_b, cols, cluster, reinterpret_cast<const void*>(name),                                  \
   ragged_shared_bytes<RaggedCut<Kind::kind, across_a, across_b, cols, cluster>>()},
const Pipelined kPipelined[] = {VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_COMPILED, bf16) VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_COMPILED, f16)};
#undef VBGEMM_COMPILED

constexpr int kTileRows = 128;

// What is fastest, measured on an H100 (docs/design/ragged.md). Pairs pay where most groups fill more than one row of tiles, or where a
// contraction is deep; narrow tiles where groups are smaller than a tile, so that time goes into reading matrices: there are more of them
// to share out.
RaggedShape shape_of(const RaggedEntry& entry) {
  if (entry.shape != RaggedShape::automatic) return entry.shape;
  const int64_t rows = entry.m / entry.num_sizes;  // of a group, on average
  if (entry.n <= 128 || (!entry.contraction && rows < kTileRows)) return RaggedShape::narrow;
  const bool pairs = entry.contraction ? entry.k > kTileRows && rows >= 384 : entry.n > 256;
  return pairs ? RaggedShape::wide_pair : RaggedShape::wide;
}

// Whether blocks take tiles as they come. That costs a launch that clears a counter, about 2 us; in turn, the last blocks of an H100 end 3 to
// 8% later where groups are skewed and there is work for 100 us or more.
bool takes_tiles(const RaggedEntry& entry) { return entry.workspace && 2.0 * entry.m * entry.k * entry.n > 5e10; }

const Pipelined* find_pipelined(const RaggedEntry& entry) {
  const RaggedShape shape = shape_of(entry);
  const int cols = shape == RaggedShape::narrow ? 128 : 256, cluster = shape == RaggedShape::wide_pair ? 2 : 1;
  for (const Pipelined& one : kPipelined) {
    if (one.kind == entry.kind && one.across_a == entry.contraction && one.across_b == !entry.transpose_rhs && one.cols == cols &&
        one.cluster == cluster) {
      return &one;
    }
  }
  return nullptr;
}

// The copy engine wants lines that begin at multiples of 16 bytes. A build or a device without its instructions has no such kernel.
bool is_pipelined(const RaggedEntry& entry) {
  if (entry.kind != Kind::bf16 && entry.kind != Kind::f16) return false;
  const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (entry.k % 8 || entry.n % 8 || !aligned(entry.lhs) || !aligned(entry.rhs) || !aligned(entry.out)) return false;
  int device = 0, major = 0;
  cudaFuncAttributes compiled{};
  return cudaGetDevice(&device) == kSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == kSuccess &&
         major == 9 && cudaFuncGetAttributes(&compiled, kPipelined[0].address) == kSuccess && compiled.ptxVersion >= 90;
}

using EncodeMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                               const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                               CUtensorMapFloatOOBfill);

// The driver's function, through the runtime: libcuda is not linked against.
EncodeMap find_encode_map() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const Error error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
  const Error error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  return error == kSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeMap>(function) : nullptr;
}

// `matrices` matrices of `lines` lines, each of `items` elements, one behind the other; boxes of 128 bytes of `box_lines` lines.
Error describe(CUtensorMap& map, DType dtype, const void* data, int64_t items, int64_t lines, int64_t matrices, uint32_t box_lines) {
  static const EncodeMap encode = find_encode_map();
  if (!encode) return cudaErrorSymbolNotFound;
  const auto type = dtype == DType::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const int bytes = kDTypeBytes[static_cast<int>(dtype)];
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(items), static_cast<cuuint64_t>(lines), static_cast<cuuint64_t>(matrices)};
  const cuuint64_t strides[2] = {sizes[0] * bytes, sizes[0] * sizes[1] * bytes};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(128 / bytes), box_lines, 1}, steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, type, 3, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? kSuccess : kInvalidValue;
}

// How many units of work there are at most, whatever the sizes (RaggedUnits): of tiles of so many rows and columns.
int64_t most_units(const RaggedEntry& entry, int rows, int cols) {
  const auto tiles = [](int64_t size, int each) { return (size + each - 1) / each; };
  const int64_t across = tiles(entry.n, cols);
  return entry.contraction ? entry.g * tiles(entry.k, rows) * across : (entry.m / rows + entry.num_sizes + 1) * across;
}

RaggedSizes sizes_of(const RaggedEntry& entry) {
  return {entry.group_sizes,
          entry.group_offset,
          static_cast<int32_t>(entry.m),
          static_cast<int32_t>(entry.k),
          static_cast<int32_t>(entry.n),
          static_cast<int32_t>(entry.g),
          static_cast<int32_t>(entry.num_sizes),
          entry.wide_sizes,
          entry.contraction};
}

Error launch_pipelined(const RaggedEntry& entry, Stream stream) {
  const Pipelined* kernel = find_pipelined(entry);
  if (!kernel) return kInvalidValue;
  RaggedParameters parameters{};
  parameters.sizes = sizes_of(entry);
  parameters.results = entry.out;
  parameters.bias = entry.bias;
  parameters.row_scale = entry.row_scale;
  parameters.activation = entry.activation;
  parameters.wide_results = entry.out_dtype != element_of(entry.kind);
  parameters.finishes = entry.bias || entry.row_scale || entry.activation != Activation::none;
  parameters.next_unit = takes_tiles(entry) ? static_cast<unsigned*>(entry.workspace) : nullptr;
  const DType dtype = element_of(entry.kind);
  constexpr int kBoxLines = 64, kStoreLines = 16;
  const bool contraction = entry.contraction, transposed = entry.transpose_rhs;
  Error error = describe(parameters.a, dtype, entry.lhs, entry.k, entry.m, 1, kBoxLines);
  if (error == kSuccess) {
    error = describe(parameters.b, dtype, entry.rhs, transposed ? entry.k : entry.n, contraction ? entry.m : transposed ? entry.n : entry.k,
                     contraction ? 1 : entry.g, kBoxLines);
  }
  if (error == kSuccess) {
    error = describe(parameters.out, entry.out_dtype, entry.out, entry.n, contraction ? entry.k : entry.m, contraction ? entry.g : 1, kStoreLines);
  }
  if (error == kSuccess && parameters.next_unit) error = cudaMemsetAsync(parameters.next_unit, 0, sizeof(unsigned), stream);
  int device = 0, units = 0;
  if (error == kSuccess) error = cudaGetDevice(&device);
  if (error == kSuccess) error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  if (error == kSuccess) error = cudaFuncSetAttribute(kernel->address, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel->shared_bytes);
  if (error != kSuccess) return error;

  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(kernel->cluster), 1, 1};
  cudaLaunchConfig_t config{};
  const int64_t clusters = std::min<int64_t>(std::max(units / kernel->cluster, 1), most_units(entry, kTileRows, kernel->cols));
  config.gridDim = dim3(static_cast<unsigned>(clusters * kernel->cluster));
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = kernel->shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  void* arguments[] = {&parameters};
  return cudaLaunchKernelExC(&config, kernel->address, arguments);
}

struct Plain {
  const void* address;
  int tile;
};

Plain find_plain(DType dtype) {
#define VBGEMM_COMPILED(name, T, each) {reinterpret_cast<const void*>(name), RaggedPlainCut<T, each>::kTile},
  static const Plain compiled[kDTypes] = {VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(VBGEMM_COMPILED)};  // in DType's order
#undef VBGEMM_COMPILED
  return compiled[static_cast<int>(dtype)];
}

Error launch_plain(const RaggedEntry& entry, Stream stream) {
  const DType dtype = element_of(entry.kind);
  const Plain kernel = find_plain(dtype);
  RaggedPlainParameters parameters{};
  parameters.sizes = sizes_of(entry);
  parameters.lhs = entry.lhs;
  parameters.rhs = entry.rhs;
  parameters.bias = entry.bias;
  parameters.row_scale = entry.row_scale;
  parameters.out = entry.out;
  parameters.activation = entry.activation;
  parameters.transpose_rhs = entry.transpose_rhs;
  parameters.wide_results = entry.out_dtype != dtype;
  int device = 0, units = 0;
  Error error = cudaGetDevice(&device);
  if (error == kSuccess) error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  if (error != kSuccess) return error;
  const int64_t blocks = std::min<int64_t>(2 * units, most_units(entry, kernel.tile, kernel.tile));
  return launch_kernel(kernel.address, static_cast<uint32_t>(blocks), 256, 0, &parameters, stream);
}

}  // namespace

Error launch_ragged(const RaggedEntry& entry, Stream stream) {
  const int64_t results = entry.contraction ? entry.g * entry.k * entry.n : entry.m * entry.n;
  if (results == 0) return kSuccess;
  return is_pipelined(entry) ? launch_pipelined(entry, stream) : launch_plain(entry, stream);
}

Error load_ragged(const RaggedEntry& entry) {
  const Pipelined* kernel = is_pipelined(entry) ? find_pipelined(entry) : nullptr;
  return load_kernel(kernel ? kernel->address : find_plain(element_of(entry.kind)).address);
}

}  // namespace vbgemm
