// The launches of the pipelined kernels of sm_90a. For a plan's tiles it encodes tensor maps from which the kernel makes those of its
// tiles; for a ragged product it picks the compiled kernel and encodes the maps of its operands.
#include <algorithm>

#include "gpu/host/sm90_launch.h"
#include "gpu/host/tensor_maps.h"
#include "gpu/ragged/ragged_sizes.h"
#include "gpu/sm90/kernel_groups.h"
#include "gpu/sm90/source_plan.h"
#include "gpu/tile/kernels.h"

namespace vbgemm {
namespace {

struct Pipelined {
  Kind kind;
  DType rhs;
  bool contracts, mn_major_a, mn_major_b;
  int rows, cols, store_lines, cluster;
  bool gathers, promotes;
  const void* address;
  int shared_bytes;
};

template <class Traits>
constexpr Pipelined compiled(const void* address, DType rhs) {
  return {Traits::kKind,
          rhs,
          Traits::kContraction,
          Traits::kMnMajorA,
          Traits::kMnMajorB,
          Traits::kRows,
          Traits::kCols,
          Traits::kStoreLines,
          Traits::kCluster,
          Traits::kGathers,
          Traits::kPromotes,
          address,
          pipeline_shared_bytes<typename GroupSource<Traits>::Shared>()};
}

#define VBGEMM_COMPILED(name, kind, contracts, mn_major_a, mn_major_b, cols, cluster, gathers)                                      \
  compiled<GroupTraits<Kind::kind, contracts, mn_major_a, mn_major_b, cols, cluster, gathers>>(reinterpret_cast<const void*>(name), \
                                                                                               arithmetic_of(Kind::kind).rhs),
#define VBGEMM_COMPILED_UNPROMOTED(name, kind, cols) \
  compiled<UnpromotedTraits<Kind::kind, cols>>(reinterpret_cast<const void*>(name), arithmetic_of(Kind::kind).rhs),
#define VBGEMM_COMPILED_MIXED(name, kind, weights) \
  compiled<MixedTraits<Kind::kind, DType::weights>>(reinterpret_cast<const void*>(name), DType::weights),
const Pipelined kPipelined[] = {
    VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_COMPILED, bf16) VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_COMPILED, f16)
        VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_COMPILED, tf32) VBGEMM_EVERY_GATHERING_KERNEL(VBGEMM_COMPILED, bf16)
            VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_COMPILED, e4m3) VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_COMPILED, e5m2)
                VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_COMPILED, e4m3_e5m2) VBGEMM_EVERY_SCALED_KERNEL(VBGEMM_COMPILED, e5m2_e4m3)
                    VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_COMPILED, s8) VBGEMM_EVERY_GATHERING_KERNEL(VBGEMM_COMPILED, f16)
                        VBGEMM_EVERY_MIXED_KERNEL(VBGEMM_COMPILED_MIXED, bf16) VBGEMM_EVERY_MIXED_KERNEL(VBGEMM_COMPILED_MIXED, f16)
                            VBGEMM_EVERY_UNPROMOTED_KERNEL_OF_ALL(VBGEMM_COMPILED_UNPROMOTED)};
#undef VBGEMM_COMPILED_MIXED
#undef VBGEMM_COMPILED_UNPROMOTED
#undef VBGEMM_COMPILED

constexpr int kThreads = PipelineTraits<Kind::bf16, 256, 1>::kThreads;                             // threads of every pipelined kernel
constexpr uint32_t kBoxLines = 64, kStoreLines = PipelineTraits<Kind::bf16, 256, 1>::kStoreLines;  // of operand and result boxes

static_assert(pipeline_shared_bytes<PlanSource<Kind::bf16>::Shared>() <= kPipelineMaxShared);
static_assert(pipeline_shared_bytes<PlanSource<Kind::f16>::Shared>() <= kPipelineMaxShared);

// Launches as many clusters as `units` units of work keep busy, but no more than `max_ctas` CTAs.
Error launch_clusters(const void* kernel, int64_t units, int max_ctas, int cluster, int shared_bytes, void* parameters, Stream stream) {
  const auto clusters = static_cast<uint32_t>(std::min<int64_t>(units, std::max(max_ctas / cluster, 1)));
  return launch_kernel(kernel, clusters * cluster, kThreads, shared_bytes, parameters, stream, cluster);
}

// A template map at `data`; the device replaces its address, size and stride.
Error encode_any(CUtensorMap& map, DType dtype, const void* data, uint32_t box_lines) {
  constexpr int kBytes = 128, kLines = 64;
  return encode_map(map, {dtype, data, kBytes / bytes_of(dtype), kLines, 1, kBytes, kBytes * kLines}, box_lines);
}

// Whether the tensor cores accumulate all of K: there is one scale along K, and either int8 sums fit in int32 or the caller allows the
// tensor cores' short accumulators for 8-bit floats.
bool is_unpromoted(const RaggedCall& call) {
  constexpr int64_t kMaxInt8Depth = (1 << 17) - 1;
  static_assert(kMaxInt8Depth * INT8_MIN * INT8_MIN <= INT32_MAX);
  const bool has_one_scale = has_scales(call.kind) && !call.contraction && call.lhs_blocks <= 1 && call.rhs_k_blocks <= 1;
  return has_one_scale && (call.kind == Kind::s8 ? call.k <= kMaxInt8Depth : call.fast_accumulation);
}

const Pipelined* find_pipelined(const RaggedCall& call) {
  const RaggedShapeInfo& shape = info_of(call.plan.shape);
  const bool gathers = call.gather;
  for (const Pipelined& one : kPipelined) {
    const bool mn_major_a = call.contraction && !call.transpose_rhs;
    if (one.kind == call.kind && one.rhs == call.rhs_dtype && one.contracts == call.contraction && one.mn_major_a == mn_major_a &&
        one.mn_major_b == !call.transpose_rhs && one.cols == shape.columns && one.cluster == shape.cluster && one.gathers == gathers &&
        (!has_scales(call.kind) || one.promotes != is_unpromoted(call))) {
      return &one;
    }
  }
  return nullptr;
}

// Consecutive matrices, each with `lines` lines of `items` elements without gaps.
TensorOfLines matrices_of(DType dtype, const void* data, int64_t items, int64_t lines, int64_t matrices) {
  const int64_t line = items * bytes_of(dtype);
  return {dtype, data, items, lines, matrices, line, line * lines};
}

// The first or second half of the elements of each line, or of the lines of each matrix.
TensorOfLines half_of(TensorOfLines tensor, bool halves_lines, bool second) {
  int64_t& count = halves_lines ? tensor.lines : tensor.items;
  count /= 2;
  const int64_t stride = halves_lines ? tensor.line_stride : bytes_of(tensor.dtype);
  if (second) tensor.data = static_cast<const char*>(tensor.data) + count * stride;
  return tensor;
}

// Both maps of B, and where the second one begins. For 4-bit values the map counts bytes.
Error describe_rhs(const RaggedCall& call, GroupParameters& parameters) {
  const int bits = bits_of(call.rhs_dtype);
  const DType dtype = bits < 8 ? DType::s8 : call.rhs_dtype;
  const int64_t depth = (call.contraction ? call.m : call.rhs_k()) * std::min(bits, 8) / 8, columns = call.rhs_columns();
  TensorOfLines first = matrices_of(dtype, call.rhs, call.transpose_rhs ? depth : columns, call.transpose_rhs ? columns : depth,
                                    call.contraction ? 1 : call.rhs_groups);
  TensorOfLines second = first;
  parameters.split_col = parameters.split_depth = kNoSplit;
  switch (call.halves) {
    case RaggedHalves::columns:
    case RaggedHalves::k:
      second.data = call.second;
      (call.halves == RaggedHalves::k ? parameters.split_depth : parameters.split_col) =
          static_cast<int32_t>(call.halves == RaggedHalves::k ? call.rhs_k() : call.rhs_columns());
      break;
    case RaggedHalves::rhs_first:
    case RaggedHalves::rhs_second: first = second = half_of(first, false, call.halves == RaggedHalves::rhs_second); break;
    default:
      if (!call.gated) break;
      second = half_of(first, call.transpose_rhs, true), first = half_of(first, call.transpose_rhs, false);
      parameters.split_col = static_cast<int32_t>(call.n);
  }
  const Error error = encode_map(parameters.b[0], first, kBoxLines);
  return error == kSuccess ? encode_map(parameters.b[1], second, kBoxLines) : error;
}

}  // namespace

bool runs_pipeline() { return has_bulk_copies(reinterpret_cast<const void*>(vbgemm_m384_pipelined_bfloat16)); }

Error launch_pipelined(Kind kind, const void* kernel, const KernelParameters& call, Stream stream) {
  constexpr int kCluster = PlanTraits<Kind::bf16>::kCluster;
  PlanParameters parameters{call, {}, {}};
  Error error = encode_any(parameters.factor, arithmetic_of(kind).lhs, call.maps, kBoxLines);
  if (error == kSuccess) error = encode_any(parameters.result, call.result, call.maps, kStoreLines);
  if (error != kSuccess) return error;
  const int clusters = (call.launch_blocks + kCluster - 1) / kCluster, max_ctas = std::min(multiprocessors(), kMaxPipelinedBlocks);
  return launch_clusters(kernel, clusters, max_ctas, kCluster, kPipelineMaxShared, &parameters, stream);
}

// A build or a device without TMA and wgmma does not have the pipelined kernel.
bool runs_ragged_pipeline(const RaggedCall& call) {
  const Pipelined* kernel = find_pipelined(call);
  if (!kernel) return false;
  const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  const int line = pipelined_line_elements(call.kind);
  if (call.contraction && call.transpose_rhs && call.m % line) return false;
  if (call.k % line || call.n % line || !aligned(call.lhs) || !aligned(call.rhs) || !aligned(call.out)) return false;
  if (!aligned(call.second) || (call.is_mixed() && call.k * bits_of(call.rhs_dtype) % 128)) return false;
  if (!call.contraction && call.halves != RaggedHalves::none && !call.gated) {
    const int64_t half = call.halves == RaggedHalves::k ? call.rhs_k() : call.rhs_columns();
    if (half % ragged_half_elements(call.kind)) return false;
  }
  return has_bulk_copies(kernel->address);
}

Error launch_ragged_pipeline(const RaggedCall& call, Stream stream) {
  const Pipelined* kernel = find_pipelined(call);
  if (!kernel) return kInvalidValue;
  GroupParameters parameters{};
  parameters.sizes = sizes_of(call);
  parameters.results = call.out;
  parameters.bias = call.bias;
  parameters.row_scale = call.row_scale;
  parameters.lhs_scale = static_cast<const float*>(call.lhs_scale);
  parameters.rhs_scale = static_cast<const float*>(call.rhs_scale);
  parameters.lhs_blocks = static_cast<int32_t>(call.lhs_blocks);
  parameters.rhs_k_blocks = static_cast<int32_t>(call.rhs_k_blocks);
  parameters.rhs_column_blocks = static_cast<int32_t>(call.rhs_column_blocks);
  parameters.activation = call.activation;
  parameters.wide_results = bytes_of(call.out_dtype) == 4;
  parameters.finishes = call.bias || call.row_scale || call.activation != Activation::none || call.gated;
  parameters.accumulates = call.accumulator;
  parameters.next_unit = call.plan.counted ? static_cast<uint32_t*>(call.workspace) : nullptr;
  const DType dtype = arithmetic_of(call.kind).lhs;
  const bool contraction = call.contraction;
  parameters.lhs = call.lhs;
  parameters.gather = static_cast<const int32_t*>(call.gather);
  Error error = kSuccess;
  if (!call.gather) {
    const bool along_k = contraction && call.transpose_rhs;
    TensorOfLines lhs =
        matrices_of(dtype, call.lhs, along_k ? call.m : call.lhs_columns(), along_k ? call.lhs_columns() : call.lhs_rows, 1);
    if (call.lhs_columns() != call.k) lhs = half_of(lhs, false, call.halves == RaggedHalves::lhs_second);
    error = encode_map(parameters.a, lhs, std::min<uint32_t>(kBoxLines, kernel->rows));
    if (error == kSuccess && call.is_mixed()) error = encode_map(parameters.few_rows, lhs, kFewRows);
  }
  if (error == kSuccess) error = describe_rhs(call, parameters);
  if (error == kSuccess) {
    const int64_t rows = contraction ? call.k : call.m;
    error = encode_map(parameters.out, matrices_of(call.out_dtype, call.out, call.n, rows, contraction ? call.groups : 1),
                       static_cast<uint32_t>(kernel->store_lines));
  }
  if (error == kSuccess && parameters.next_unit) error = clear_memory(parameters.next_unit, sizeof(uint32_t), stream);
  if (error != kSuccess) return error;
  return launch_clusters(kernel->address, max_tiles(call, kernel->rows, kernel->cols), multiprocessors(), kernel->cluster,
                         kernel->shared_bytes, &parameters, stream);
}

}  // namespace vbgemm
