# The CUDA backend: a second extension module, so that the CPU backend imports wherever it is absent.
if(VBGEMM_CUDA STREQUAL "OFF")
  message(STATUS "CUDA backend: off (VBGEMM_CUDA=OFF)")
  return()
endif()

# The kernels need compute capability 8.0 (tensor cores, asynchronous copies).
if(DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(named ${CMAKE_CUDA_ARCHITECTURES})
else()
  set(named $ENV{CUDAARCHS})
endif()
foreach(architecture ${named})
  if(architecture MATCHES "^[1-7][0-9]($|[^0-9])")
    message(FATAL_ERROR
      "CUDA architecture ${architecture} is too old: the kernels need compute capability 8.0. Name none below 80 in CUDAARCHS or "
      "CMAKE_CUDA_ARCHITECTURES, or set VBGEMM_CUDA=OFF to build without the CUDA backend.")
  endif()
endforeach()

include(CheckLanguage)
# The architectures have to be known before the language is enabled; check_language enables it in a scratch project.
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(VBGEMM_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "VBGEMM_CUDA=ON, but no CUDA compiler was found. Install the CUDA toolkit (nvcc 12.4 or newer) and put nvcc on PATH, set CUDACXX to it, "
      "or take it from PyPI: pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl (BUILD.md, section CUDA). "
      "Or set VBGEMM_CUDA=AUTO to build without the CUDA backend.")
  endif()
  message(STATUS "CUDA backend: left out (no CUDA compiler found; VBGEMM_CUDA=ON makes this an error)")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  # The GPUs of this machine that are new enough, else one ampere and one hopper build; newer GPUs take the PTX of 80, as that of 90a runs
  # on compute capability 9.0 alone.
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE compute_caps RESULT_VARIABLE no_gpu ERROR_QUIET)
  if(no_gpu OR NOT compute_caps)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a)
  else()
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" compute_caps "${compute_caps}")
    set(found ${compute_caps})
    list(FILTER compute_caps EXCLUDE REGEX "^[1-7]\\.")
    if(NOT compute_caps)
      if(VBGEMM_CUDA STREQUAL "ON")
        message(FATAL_ERROR
          "VBGEMM_CUDA=ON, but the kernels need compute capability 8.0 and this machine's GPUs have ${found}. Set CUDAARCHS to build for those "
          "of another machine, or VBGEMM_CUDA=AUTO to build without the CUDA backend.")
      endif()
      message(STATUS
        "CUDA backend: left out (it needs compute capability 8.0, this machine's GPUs have ${found}; VBGEMM_CUDA=ON makes this an error)")
      return()
    endif()
    string(REPLACE "." "" compute_caps "${compute_caps}")
    string(REPLACE "90" "90a" compute_caps "${compute_caps}")
    list(REMOVE_DUPLICATES compute_caps)
    set(CMAKE_CUDA_ARCHITECTURES ${compute_caps})
  endif()
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
enable_language(CUDA)
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

set(VBGEMM_DTYPES f32 f64 c64 c128 bf16 f16)  # a file each, so that ninja compiles them side by side
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # no libcudart to find at import
set(VBGEMM_TENSOR_KINDS f64 bf16 f16 tf32 tf32x3)
list(TRANSFORM VBGEMM_DTYPES REPLACE "(.+)" "csrc/gpu/simt_\\1.cu" OUTPUT_VARIABLE kernels)
list(TRANSFORM VBGEMM_TENSOR_KINDS REPLACE "(.+)" "csrc/gpu/tensor_\\1.cu" OUTPUT_VARIABLE tensor_kernels)
nanobind_add_module(_cuda NB_STATIC csrc/gpu/host/module.cc csrc/gpu/host/launch.cu csrc/gpu/instances/add_shares.cu csrc/gpu/instances/add_scaled.cu csrc/gpu/instances/square_sums.cu
  csrc/gpu/ragged_handler.cc csrc/gpu/host/ragged_launch.cu csrc/gpu/instances/ragged_plain.cu csrc/gpu/instances/ragged_bf16.cu csrc/gpu/instances/ragged_f16.cu ${kernels} ${tensor_kernels})
target_link_libraries(_cuda PRIVATE vbgemm_options)
target_include_directories(_cuda PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
install(TARGETS _cuda LIBRARY DESTINATION jax_vbgemm)
