// The kernels that sum squares and the kernels that add up their partial sums, one of each for every element type, and their host side.
#include "gpu/elementwise/square_sums.h"
#include "gpu/host/launch.h"

#define VBGEMM_DEFINE_KERNEL(name, Kernel)                                        \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kArrayThreads, 4)       \
      vbgemm_##name(VBGEMM_PARAMETERS(vbgemm::SquareSumParameters, parameters)) { \
    VBGEMM_READ_PARAMETERS(vbgemm::SquareSumParameters, parameters);              \
    VBGEMM_SHARED(vbgemm::Kernel::Shared, shared);                                \
    vbgemm::Kernel::run(parameters, shared);                                      \
  }

VBGEMM_DEFINE_KERNEL(square_sums_float32, SquareSums<float>)
VBGEMM_DEFINE_KERNEL(square_sums_float64, SquareSums<double>)
VBGEMM_DEFINE_KERNEL(square_sums_bfloat16, SquareSums<vbgemm::BFloat16>)
VBGEMM_DEFINE_KERNEL(square_sums_float16, SquareSums<vbgemm::Float16>)
VBGEMM_DEFINE_KERNEL(add_square_sums_float32, AddSquareSums<float>)
VBGEMM_DEFINE_KERNEL(add_square_sums_float64, AddSquareSums<double>)

namespace vbgemm {
namespace {

const void* find_square_sums(DType dtype) {
  switch (dtype) {
    case DType::f32: return reinterpret_cast<const void*>(vbgemm_square_sums_float32);
    case DType::f64: return reinterpret_cast<const void*>(vbgemm_square_sums_float64);
    case DType::bf16: return reinterpret_cast<const void*>(vbgemm_square_sums_bfloat16);
    case DType::f16: return reinterpret_cast<const void*>(vbgemm_square_sums_float16);
    default: return nullptr;
  }
}

}  // namespace

int64_t num_partials(const SquareSumsCall& call) {
  int64_t chunks = 0;
  for (int i = 0; i < call.num_arrays; ++i) chunks += chunks_of(call.arrays[i].elements, chunk_of(bytes_of(call.dtype)));
  return chunks;
}

Error square_sums(const SquareSumsCall& call, Stream stream) {
  const void* const square = find_square_sums(call.dtype);
  if (!square) return kInvalidValue;
  const void* const add = call.dtype == DType::f64 ? reinterpret_cast<const void*>(vbgemm_add_square_sums_float64)
                                                   : reinterpret_cast<const void*>(vbgemm_add_square_sums_float32);
  const size_t bytes = bytes_of(call.dtype), sum_bytes = bytes_of(accumulator_of(call.dtype));

  SquareSumParameters parameters;
  parameters.partials = call.partials;
  Members<Buffer>& arrays = parameters.arrays;
  for (int first = 0; first < call.num_arrays; first += arrays.count) {
    if (!take_members(call.arrays + first, call.num_arrays - first, chunk_of(bytes), arrays)) return kInvalidValue;
    const int32_t blocks = arrays.first_block[arrays.count];
    parameters.sums = static_cast<char*>(call.sums) + first * sum_bytes;
    Error error = blocks > 0 ? launch_kernel(square, static_cast<uint32_t>(blocks), kArrayThreads, 0, &parameters, stream) : kSuccess;
    if (error == kSuccess) error = launch_kernel(add, static_cast<uint32_t>(arrays.count), kArrayThreads, 0, &parameters, stream);
    if (error != kSuccess) return error;
    parameters.partials = static_cast<char*>(parameters.partials) + blocks * sum_bytes;
  }
  return kSuccess;
}

}  // namespace vbgemm
