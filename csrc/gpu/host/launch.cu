// The launches of a call: picks its kernels, fills in their parameters and enqueues them.
#include <algorithm>
#include <string_view>

#include "gpu/host/dynamic_shared.h"
#include "gpu/host/early_start.h"
#include "gpu/host/launch.h"
#include "gpu/host/sm90_launch.h"
#include "gpu/tile/add_partial_sums.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_traits.h"

namespace vbgemm {
inline constexpr int kChunkThreads = 256;
}

// Writes one section of a buffer table that is too long for the launch parameters.
extern "C" __global__ void vbgemm_write_buffers(VBGEMM_PARAMETERS(vbgemm::BufferChunk, chunk)) {
  VBGEMM_READ_PARAMETERS(vbgemm::BufferChunk, chunk);
  vbgemm::let_next_kernel_start();  // which is another kernel of the call
  vbgemm::await_previous_kernel();
  const int i = vbgemm::block_index() * vbgemm::kChunkThreads + vbgemm::thread_index();
  if (i < chunk.count) chunk.to[i] = chunk.table[i];
}

namespace vbgemm {
namespace {

void copy_buffers(const GpuCall& call, int first, int count, Buffer* to) {
  for (int i = 0; i < count; ++i) to[i] = {call.buffers[first + i], call.elements[first + i]};
}

Error write_table(const GpuCall& call, Buffer* table, Stream stream) {
  BufferChunk chunk;
  for (int first = 0; first < call.num_buffers; first += chunk.count) {
    chunk.to = table + first;
    chunk.count = std::min(call.num_buffers - first, kMaxParameterBuffers);
    copy_buffers(call, first, chunk.count, chunk.table);
    const uint32_t blocks = (chunk.count + kChunkThreads - 1) / kChunkThreads;
    const Error error = launch_kernel(reinterpret_cast<const void*>(vbgemm_write_buffers), blocks, kChunkThreads, 0, &chunk, stream);
    if (error != kSuccess) return error;
  }
  return kSuccess;
}

}  // namespace

size_t workspace_bytes(Kind kind, int num_buffers, int64_t num_sums, bool pipelined) {
  static_assert(sizeof(Buffer) == kBufferBytes);
  return gpu_workspace_bytes(kCdna, num_buffers, num_sums * accumulator_bytes(kind), pipelined);
}

static const void* find_add_partial_sums(DType dtype) {
#define VBGEMM_ADDRESS(kind) reinterpret_cast<const void*>(vbgemm_add_partial_sums_##kind)
  static const void* const kernels[kDTypes] = {
#define DTYPE(id, name, ...) VBGEMM_ADDRESS(name),
#define OTHER_DTYPE(...) nullptr,
#define ARITHMETIC(...)
#include "dtypes.def"
  };
#undef VBGEMM_ADDRESS
  return kernels[static_cast<int>(dtype)];
}

namespace {

// Whether no launch after the i-th has thread blocks.
bool is_last(const GpuCall& call, int i) {
  while (++i < call.num_launches) {
    if (call.launches[i].num_blocks > 0) return false;
  }
  return true;
}

struct CompiledKernel {
  std::string_view kind;
  Kernel kernel;
};
constexpr CompiledKernel kCompiled[] = {
#define VBGEMM_COMPILED(kernel, kind) {#kind, Kernel::kernel},
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, set, name, lhs, rhs, ordinary, tensor) \
  VBGEMM_ORDINARY_##ordinary(VBGEMM_COMPILED, name) VBGEMM_TENSOR_##tensor(VBGEMM_COMPILED, name)
#include "dtypes.def"
#undef VBGEMM_COMPILED
};
constexpr int kNumCompiled = sizeof(kCompiled) / sizeof(kCompiled[0]);

constexpr int find_compiled(std::string_view kind, Kernel kernel) {
  int i = 0;
  while (i < kNumCompiled && !(kCompiled[i].kernel == kernel && kCompiled[i].kind == kind)) ++i;
  return i;
}

constexpr bool every_tile_has_a_kernel() {
  for (const TileShape& tile : kTiles) {
    for (int i = 0; i < kKinds; ++i) {
      const auto kind = static_cast<Kind>(i);
      if (has_code(tile, kind, kCdna) && find_compiled(name_of(kind), kernel_of(tile)) == kNumCompiled) return false;
    }
  }
  return true;
}
static_assert(every_tile_has_a_kernel(), "gpu/tile/kernels.h does not list a kernel that tiles.def has a tile for");

// Whether a call is one that aligned kernels (gpu/tensor/aligned_tile.h) compute; what its tiles are, the plan has seen.
bool suits_aligned_kernels(const GpuCall& call) {
  const auto is_aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorLoadBytes == 0; };
  return call.plan.tiles && !call.plan.block_first && !call.plan.epilogues && call.out_dtype == arithmetic_of(call.kind).lhs &&
         call.num_buffers <= kMaxParameterBuffers && std::all_of(call.buffers, call.buffers + call.num_buffers, is_aligned);
}

}  // namespace

const void* find_kernel(Kind kind, Kernel kernel) {
#define VBGEMM_ADDRESS(kernel, kind) reinterpret_cast<const void*>(vbgemm_##kernel##_##kind),
  static const void* const addresses[] = {
#define DTYPE(...)
#define OTHER_DTYPE DTYPE
#define ARITHMETIC(id, set, name, lhs, rhs, ordinary, tensor) \
  VBGEMM_ORDINARY_##ordinary(VBGEMM_ADDRESS, name) VBGEMM_TENSOR_##tensor(VBGEMM_ADDRESS, name)
#include "dtypes.def"
  };
#undef VBGEMM_ADDRESS
  if (static_cast<int>(kind) < 0 || static_cast<int>(kind) >= kKinds) return nullptr;
  if (shape_of(kernel).gpus == Gpus::hopper && !runs_pipeline()) return nullptr;
  // The arithmetic's own kernel, or otherwise the kernel of its element type: if TF32 has no kernel, float32 is at least as accurate.
  for (const char* name : {name_of(kind), name_of(plain_kind_of(kind))}) {
    const int i = find_compiled(name, kernel);
    if (i < kNumCompiled) return addresses[i];
  }
  return nullptr;
}

Error load_kernels(Kind kind) {
  Error error = load_kernel(reinterpret_cast<const void*>(vbgemm_write_buffers));
  if (error == kSuccess) error = load_kernel(find_add_partial_sums(arithmetic_of(kind).lhs));
  bool launched = false;
  for (int kernel = 0; kernel < kKernels && error == kSuccess; ++kernel) {
    const void* address = find_kernel(kind, static_cast<Kernel>(kernel));
    if (!address) continue;
    launched = true;
    error = load_kernel(address);
  }
  return error == kSuccess && !launched ? kInvalidValue : error;
}

Error launch(const GpuCall& call, Stream stream) {
  if (!arithmetic_of(call.kind).gives(call.out_dtype) || call.num_buffers < 0 || call.num_sums < 0) return kInvalidValue;
  const bool pipelined = has_pipelined_tiles(call.launches, call.num_launches);
  if (!call.workspace && workspace_bytes(call.kind, call.num_buffers, call.num_sums, pipelined) > 0) return kInvalidValue;

  KernelParameters parameters;
  parameters.plan = call.plan;
  parameters.num_buffers = call.num_buffers;
  parameters.result = call.out_dtype;
  parameters.num_operands = call.num_operands;
  parameters.overflow = nullptr;
  parameters.maps = nullptr;
  char* workspace = static_cast<char*>(call.workspace);
  if (pipelined) {
    parameters.maps = workspace;
    workspace += kPipelinedMapBytes;
  }
  if (call.num_buffers > kMaxParameterBuffers) {
    auto* const table = reinterpret_cast<Buffer*>(workspace);
    const Error error = write_table(call, table, stream);
    if (error != kSuccess) return error;
    parameters.overflow = table;
    workspace += call.num_buffers * sizeof(Buffer);
  } else {
    copy_buffers(call, 0, call.num_buffers, parameters.table);
  }
  parameters.sums = {call.num_sums > 0 ? workspace : nullptr, call.num_sums};

  for (int i = 0; i < call.num_launches; ++i) {
    const Launch& launch = call.launches[i];
    if (launch.num_blocks <= 0) continue;
    auto which = static_cast<Kernel>(launch.kernel);
    const int row = aligned_row(which);
    if (row >= 0 && (!suits_aligned_kernels(call) || !find_kernel(call.kind, which))) which = kernel_of(kTiles[row]);
    const void* kernel = find_kernel(call.kind, which);
    if (!kernel) return kInvalidValue;
    const int threads = threads_of(which), shared_bytes = dynamic_shared_bytes(call.kind, which);
    const int64_t most = max_blocks(threads);
    for (int64_t begin = 0; begin < launch.num_blocks; begin += most) {
      const auto blocks = static_cast<uint32_t>(std::min(launch.num_blocks - begin, most));
      parameters.first_block = static_cast<int32_t>(launch.first_block + begin);
      parameters.launch_blocks = static_cast<int32_t>(blocks);
      const bool last = call.plan.num_splits <= 0 && begin + most >= launch.num_blocks && is_last(call, i);
      parameters.next_may_start = !last || next_call_may_start(blocks);
      const Error error = shape_of(which).gpus == Gpus::hopper
                              ? launch_pipelined(call.kind, kernel, parameters, stream)
                              : launch_kernel(kernel, blocks, threads, shared_bytes, &parameters, stream, 1, !call.plan_is_computed);
      if (error != kSuccess) return error;
    }
  }
  if (call.plan.num_splits <= 0) return kSuccess;
  parameters.split_blocks = add_blocks(call.plan.num_splits, call.num_sums);
  const auto blocks = static_cast<uint32_t>(call.plan.num_splits) * parameters.split_blocks;
  return launch_kernel(find_add_partial_sums(arithmetic_of(call.kind).lhs), blocks, kAddThreads, 0, &parameters, stream);
}

}  // namespace vbgemm
