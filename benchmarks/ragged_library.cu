// Ragged products as a C library, for ragged_library.py:
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -Icsrc -o build/libragged.so
//     benchmarks/ragged_library.cu BUILD/csrc/gpu/libvbgemm_cuda.a
//
// Several builds that are loaded into one process need -Xcompiler -fno-gnu-unique: they would share their inline tables otherwise.
#include "gpu/host/ragged_launch.h"

// plan: the words of a RaggedPlan. blocks: the numbers of blocks of scales, of lhs along K and of rhs along K and columns.
extern "C" int ragged_trial(int kind, int wide_results, int contraction, int transpose_rhs, int gated, int wide_sizes, int activation,
                            const int* plan, const int* blocks, int64_t m, int64_t k, int64_t n, int64_t g, int64_t num_sizes,
                            int64_t lhs_rows, const void* lhs, const void* rhs, const void* group_sizes, const void* group_offset,
                            const void* bias, const void* row_scale, const void* gather, const void* lhs_scale, const void* rhs_scale,
                            const void* accumulator, void* out, void* workspace, void* stream) {
  vbgemm::RaggedCall call{};
  call.kind = static_cast<vbgemm::Kind>(kind);
  call.dtype = vbgemm::arithmetic_of(call.kind).lhs, call.rhs_dtype = vbgemm::arithmetic_of(call.kind).rhs;
  call.out_dtype = wide_results ? vbgemm::DType::f32 : vbgemm::has_scales(call.kind) ? vbgemm::DType::bf16 : call.dtype;
  call.contraction = contraction, call.transpose_rhs = transpose_rhs, call.gated = gated, call.wide_sizes = wide_sizes;
  call.activation = static_cast<vbgemm::Activation>(activation);
  call.m = m, call.k = k, call.n = n, call.groups = g, call.total_groups = num_sizes, call.lhs_rows = lhs_rows;
  call.rhs_groups = g, call.entries = 1;
  call.lhs = lhs, call.rhs = rhs, call.group_sizes = group_sizes, call.group_offset = group_offset;
  call.bias = bias, call.row_scale = row_scale, call.gather = gather;
  call.lhs_scale = lhs_scale, call.rhs_scale = rhs_scale;
  call.lhs_blocks = blocks[0], call.rhs_k_blocks = blocks[1], call.rhs_column_blocks = blocks[2];
  call.accumulator = accumulator, call.out = out;
  call.workspace = workspace;
  call.plan = {static_cast<vbgemm::RaggedShape>(plan[0]), plan[1] != 0, plan[2]};
  return static_cast<int>(vbgemm::launch_ragged(call, static_cast<vbgemm::Stream>(stream)));
}
