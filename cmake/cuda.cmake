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
  if(architecture MATCHES "^90($|-)")
    message(FATAL_ERROR
      "CUDA architecture ${architecture} lacks the instructions of Hopper's kernels. Name 90a in CUDAARCHS or CMAKE_CUDA_ARCHITECTURES.")
  endif()
endforeach()

# What GPUs are here, as nvidia-smi tells.
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE found ERROR_QUIET)
string(REGEX MATCHALL "[0-9]+\\.[0-9]+" found "${found}")
if(VBGEMM_CUDA STREQUAL "AUTO" AND NOT found)
  message(STATUS
    "CUDA backend: left out (nvidia-smi finds no GPU here; VBGEMM_CUDA=ON builds it all the same, for compute capability 8.0 and 9.0 or "
    "what CUDAARCHS names)")
  return()
endif()

include(CheckLanguage)
# The architectures have to be known before the language is enabled; check_language enables it in a scratch project.
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(VBGEMM_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "VBGEMM_CUDA=ON, but no CUDA compiler was found. Install the CUDA toolkit (nvcc 12.4 or newer) and put nvcc on PATH, set CUDACXX to it, "
      "or take it from PyPI: pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl (docs/internals/building.md, CUDA). "
      "Or set VBGEMM_CUDA=AUTO to build without the CUDA backend.")
  endif()
  message(STATUS "CUDA backend: left out (no CUDA compiler found; VBGEMM_CUDA=ON makes this an error)")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  # The GPUs of this machine that are new enough, else one ampere and one hopper build; newer GPUs take the PTX of 80, as that of 90a runs
  # on compute capability 9.0 alone.
  set(usable ${found})
  list(FILTER usable EXCLUDE REGEX "^[1-7]\\.")
  if(usable)
    string(REPLACE "." "" usable "${usable}")
    string(REPLACE "90" "90a" usable "${usable}")
    list(REMOVE_DUPLICATES usable)
    set(CMAKE_CUDA_ARCHITECTURES ${usable})
  elseif(NOT found)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a)
  elseif(VBGEMM_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "VBGEMM_CUDA=ON, but the kernels need compute capability 8.0 and this machine's GPUs have ${found}. Set CUDAARCHS to build for those "
      "of another machine, or VBGEMM_CUDA=AUTO to build without the CUDA backend.")
  else()
    message(STATUS
      "CUDA backend: left out (it needs compute capability 8.0, this machine's GPUs have ${found}; VBGEMM_CUDA=ON makes this an error)")
    return()
  endif()
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
enable_language(CUDA)
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # no libcudart to find at import

add_subdirectory(csrc/gpu)
vbgemm_add_module(_cuda csrc/gpu/host/module.cc csrc/handlers/matmul.cc csrc/handlers/ragged.cc csrc/handlers/addition.cc csrc/handlers/square_sums.cc csrc/handlers/quantize.cc csrc/handlers/rows_by_index.cc)
target_link_libraries(_cuda PRIVATE vbgemm_cuda)
target_include_directories(_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
