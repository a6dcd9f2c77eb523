// The kernels for AVX2: multiply_sum.h compiled with the flags of that instruction set (CMakeLists.txt).
#define VBGEMM_ISA avx2
#include "cpu/add_partial_sums.h"
#include "cpu/multiply_sum.h"

namespace vbgemm {
const Kernels kAvx2Kernels = {"avx2", &VBGEMM_ISA::multiply, &VBGEMM_ISA::multiply_sum, &VBGEMM_ISA::add_partial_sums};
}
