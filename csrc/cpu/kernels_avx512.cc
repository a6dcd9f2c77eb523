// The kernels for AVX-512: multiply_sum.h compiled with the flags of that instruction set (CMakeLists.txt).
#define VBGEMM_ISA avx512
#include "cpu/add_partial_sums.h"
#include "cpu/multiply_sum.h"

namespace vbgemm {
const Kernels kAvx512Kernels = {"avx512", &VBGEMM_ISA::multiply, &VBGEMM_ISA::multiply_sum, &VBGEMM_ISA::add_partial_sums};
}
