// The kernels that sum squares, of arrays that they read or of averages that they compute, and the kernels that add up the partial sums,
// one of each for every element type; and their host side.
#include "gpu/elementwise/averages.h"
#include "gpu/elementwise/square_sums.h"
#include "gpu/host/launch.h"

#define VBGEMM_DEFINE_KERNEL(name, Parameters, Kernel)                                               \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kArrayThreads, vbgemm::Kernel::kMinBlocks) \
      vbgemm_##name(VBGEMM_PARAMETERS(vbgemm::Parameters, parameters)) {                             \
    VBGEMM_READ_PARAMETERS(vbgemm::Parameters, parameters);                                          \
    VBGEMM_SHARED(vbgemm::Kernel::Shared, shared);                                                   \
    vbgemm::Kernel::run(parameters, shared);                                                         \
  }

VBGEMM_DEFINE_KERNEL(square_sums_float32, SquareSumParameters, SquareSums<float>)
VBGEMM_DEFINE_KERNEL(square_sums_float64, SquareSumParameters, SquareSums<double>)
VBGEMM_DEFINE_KERNEL(square_sums_bfloat16, SquareSumParameters, SquareSums<vbgemm::BFloat16>)
VBGEMM_DEFINE_KERNEL(square_sums_float16, SquareSumParameters, SquareSums<vbgemm::Float16>)
VBGEMM_DEFINE_KERNEL(add_square_sums_float32, SquareSumParameters, AddSquareSums<float>)
VBGEMM_DEFINE_KERNEL(add_square_sums_float64, SquareSumParameters, AddSquareSums<double>)
VBGEMM_DEFINE_KERNEL(averages_float32, AverageParameters, Averages<float>)
VBGEMM_DEFINE_KERNEL(averages_float64, AverageParameters, Averages<double>)
VBGEMM_DEFINE_KERNEL(averages_bfloat16, AverageParameters, Averages<vbgemm::BFloat16>)
VBGEMM_DEFINE_KERNEL(averages_float16, AverageParameters, Averages<vbgemm::Float16>)

namespace vbgemm {
namespace {

// The kernels of one element type that write a partial sum for each chunk.
struct Kernels {
  const void *square_sums, *averages;
};
#define VBGEMM_KERNELS(name) \
  {reinterpret_cast<const void*>(vbgemm_square_sums_##name), reinterpret_cast<const void*>(vbgemm_averages_##name)}

Kernels kernels_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return VBGEMM_KERNELS(float32);
    case DType::f64: return VBGEMM_KERNELS(float64);
    case DType::bf16: return VBGEMM_KERNELS(bfloat16);
    case DType::f16: return VBGEMM_KERNELS(float16);
    default: return {};
  }
}

template <class Member>
int64_t count_chunks(const Member* members, int count, DType dtype) {
  int64_t chunks = 0;
  for (int i = 0; i < count; ++i) chunks += chunks_of(members[i].elements, chunk_of(bytes_of(dtype)));
  return chunks;
}

// Launches the kernel that writes a partial sum for each chunk, and the kernel that adds these up, for as many members at a time as fit the
// launch parameters.
template <class Member, class Parameters>
Error sum_squares(const void* kernel, DType dtype, const Member* all, int count, Parameters& parameters, Members<Member>& members,
                  void* sums, void* partials, Stream stream) {
  if (!kernel) return kInvalidValue;
  const void* const add = dtype == DType::f64 ? reinterpret_cast<const void*>(vbgemm_add_square_sums_float64)
                                              : reinterpret_cast<const void*>(vbgemm_add_square_sums_float32);
  const size_t bytes = bytes_of(dtype), sum_bytes = bytes_of(accumulator_of(dtype));
  SquareSumParameters addition;
  parameters.partials = addition.partials = partials;
  for (int first = 0; first < count; first += members.count) {
    if (!take_members(all + first, count - first, chunk_of(bytes), members)) return kInvalidValue;
    const int32_t blocks = members.first_block[members.count];
    Error error = blocks > 0 ? launch_kernel(kernel, static_cast<uint32_t>(blocks), kArrayThreads, 0, &parameters, stream) : kSuccess;
    addition.sums = static_cast<char*>(sums) + first * sum_bytes;
    addition.arrays.count = members.count;
    std::copy_n(members.first_block, members.count + 1, addition.arrays.first_block);
    if (error == kSuccess) error = launch_kernel(add, static_cast<uint32_t>(members.count), kArrayThreads, 0, &addition, stream);
    if (error != kSuccess) return error;
    parameters.partials = addition.partials = static_cast<char*>(addition.partials) + blocks * sum_bytes;
  }
  return kSuccess;
}

}  // namespace

int64_t num_partials(const SquareSumsCall& call) { return count_chunks(call.arrays, call.num_arrays, call.dtype); }
int64_t num_partials(const AveragesCall& call) { return count_chunks(call.members, call.num_members, call.dtype); }

Error square_sums(const SquareSumsCall& call, Stream stream) {
  SquareSumParameters parameters;
  return sum_squares(kernels_of(call.dtype).square_sums, call.dtype, call.arrays, call.num_arrays, parameters, parameters.arrays, call.sums,
                     call.partials, stream);
}

Error averages(const AveragesCall& call, Stream stream) {
  AverageParameters parameters;
  parameters.scales = call.scales;
  return sum_squares(kernels_of(call.dtype).averages, call.dtype, call.members, call.num_members, parameters, parameters.averages,
                     call.sums, call.partials, stream);
}

}  // namespace vbgemm
