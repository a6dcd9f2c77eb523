// The kernels for any processor: multiply_sum.h compiled without flags of an instruction set (CMakeLists.txt).
#define VBGEMM_ISA portable
#include "cpu/add_partial_sums.h"
#include "cpu/multiply_sum.h"

namespace vbgemm {
const Kernels kPortableKernels = {"portable", &VBGEMM_ISA::multiply, &VBGEMM_ISA::multiply_sum, &VBGEMM_ISA::add_partial_sums};
}
