// The extension module of a GPU backend (_cuda or _rocm): its XLA FFI handlers.
#include <nanobind/nanobind.h>

#include "gpu/arch/gpu_vendor.h"
#include "handlers/handlers.h"

namespace nb = nanobind;

#ifdef __HIP_PLATFORM_AMD__
NB_MODULE(_rocm, m) {
  m.doc() = "The ROCm backend of jax_vbgemm.";
#else
NB_MODULE(_cuda, m) {
  m.doc() = "The CUDA backend of jax_vbgemm.";
  m.def(
      "cuda_versions",
      [] {
        int runtime = 0, driver = 0;
        cudaRuntimeGetVersion(&runtime);
        cudaDriverGetVersion(&driver);
        return nb::make_tuple(runtime, driver);
      },
      "The version of CUDA that the kernels were built with and the newest that the driver knows, as 1000 major + 10 minor; 0 without a "
      "driver.");
#endif
  m.def("handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_matmul)); }, "The XLA FFI handler of products.");
  m.def("add_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_add_scaled)); }, "The XLA FFI handler of sums.");
  m.def(
      "square_sums_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_square_sums)); },
      "The XLA FFI handler of sums of squares.");
  m.def(
      "averages_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_averages)); },
      "The XLA FFI handler of averages and the sums of their squares.");
  m.def("quantize_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_quantize)); }, "The XLA FFI handler that quantizes.");
  m.def(
      "rows_by_index_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_rows_by_index)); },
      "The XLA FFI handler that copies rows by index.");
  m.def(
      "ragged_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_ragged)); },
      "The XLA FFI handler of ragged products (rows in groups of runtime sizes).");
}
