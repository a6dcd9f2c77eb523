// The plain kernels of ragged products, one for each element type, and their host side.
#include <algorithm>

#include "gpu/host/ragged_launch.h"
#include "gpu/ragged/ragged_entry.h"
#include "gpu/ragged/ragged_plain.h"

// The arguments of `define`: name, element type, sums of a thread in each direction. They are in the order of DType; 8-bit types have no
// such kernel.
#define VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(define)                                                                                          \
  define(vbgemm_ragged_plain_float32, float, 8) define(vbgemm_ragged_plain_float64, double, 4)                                            \
      define(vbgemm_ragged_plain_complex64, vbgemm::Complex<float>, 4) define(vbgemm_ragged_plain_complex128, vbgemm::Complex<double>, 2) \
          define(vbgemm_ragged_plain_bfloat16, vbgemm::BFloat16, 8) define(vbgemm_ragged_plain_float16, vbgemm::Float16, 8)

VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(VBGEMM_DEFINE_RAGGED_PLAIN_KERNEL)

namespace vbgemm {
namespace {

// Two waves of thread blocks, of which a multiprocessor holds two at a time (ragged_plain.h). Each takes tiles in turn.
int64_t max_blocks_of_grid() { return 4 * std::max<int64_t>(multiprocessors(), 1); }

struct Plain {
  const void* address;
  int tile;
};

Plain find(DType dtype) {
#define VBGEMM_COMPILED(name, T, each) {reinterpret_cast<const void*>(name), RaggedPlainCut<T, each>::kTile},
  static const Plain compiled[kDTypes] = {VBGEMM_EVERY_RAGGED_PLAIN_KERNEL(VBGEMM_COMPILED)};
#undef VBGEMM_COMPILED
  return compiled[static_cast<int>(dtype)];
}

}  // namespace

const void* find_ragged_plain(DType dtype) { return find(dtype).address; }

Error launch_ragged_plain(const RaggedCall& entry, Stream stream) {
  const Plain kernel = find(entry.dtype);
  RaggedPlainParameters parameters{};
  parameters.sizes = sizes_of(entry);
  parameters.lhs = entry.lhs.data;
  parameters.rhs = entry.rhs.data;
  parameters.bias = entry.bias.data;
  parameters.row_scale = entry.row_scale.data;
  parameters.out = entry.out;
  parameters.activation = entry.activation;
  parameters.transpose_rhs = entry.transpose_rhs;
  parameters.wide_results = entry.out_dtype != entry.dtype;
  parameters.num_blocks = static_cast<int32_t>(std::min(max_blocks_of_grid(), max_units(entry, kernel.tile, kernel.tile)));
  return launch_kernel(kernel.address, static_cast<uint32_t>(parameters.num_blocks), kRaggedPlainThreads, 0, &parameters, stream);
}

}  // namespace vbgemm
