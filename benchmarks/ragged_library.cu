// Ragged products as a C library, for ragged_trial.py:
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -Icsrc -o build/libragged.so
//     benchmarks/ragged_library.cu csrc/gpu/ragged_*.cu
#include "../csrc/gpu/ragged_launch.h"

extern "C" int ragged_trial(int kind, int wide_results, int contraction, int transpose_rhs, int wide_sizes, int activation, int shape,
                            int64_t m, int64_t k, int64_t n, int64_t g, int64_t num_sizes, const void* lhs, const void* rhs,
                            const void* group_sizes, const void* group_offset, const void* bias, const void* row_scale, void* out,
                            void* stream) {
  vbgemm::RaggedEntry entry{};
  entry.kind = static_cast<vbgemm::Kind>(kind);
  entry.out_dtype = wide_results ? vbgemm::DType::f32 : vbgemm::element_of(entry.kind);
  entry.contraction = contraction, entry.transpose_rhs = transpose_rhs, entry.wide_sizes = wide_sizes;
  entry.activation = static_cast<vbgemm::Activation>(activation);
  entry.m = m, entry.k = k, entry.n = n, entry.g = g, entry.num_sizes = num_sizes;
  entry.lhs = lhs, entry.rhs = rhs, entry.group_sizes = group_sizes, entry.bias = bias, entry.row_scale = row_scale, entry.out = out;
  entry.group_offset = static_cast<const int32_t*>(group_offset);
  static void* const workspace = [] {
    void* memory = nullptr;
    return cudaMalloc(&memory, 256) == cudaSuccess ? memory : nullptr;
  }();
  entry.workspace = shape >= 4 ? workspace : nullptr;
  entry.shape = static_cast<vbgemm::RaggedShape>(shape % 4);
  return static_cast<int>(vbgemm::launch_ragged(entry, static_cast<vbgemm::Stream>(stream)));
}
