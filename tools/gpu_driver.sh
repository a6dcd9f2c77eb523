#!/usr/bin/env bash
# Builds the stand-alone driver of the CUDA kernels (benchmarks/gpu_driver.cu) from the kernels that a build of the CUDA module has compiled:
#
#   tools/gpu_driver.sh BUILD OUTPUT     BUILD: build/wheels/cuda13 of tools/wheels.py, or build/cp3* of ./run build
set -euo pipefail
build=$(realpath "$1") output=$(realpath -m "$2")
cd "$(dirname "$0")/.."
cache=$build/CMakeCache.txt
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:.*=//p' "$cache")
arch=$(sed -n 's/^CMAKE_CUDA_ARCHITECTURES:.*=//p' "$cache" | tr ';' '\n' | sed -E 's/-(real|virtual)$//' | tail -1)
"$nvcc" -std=c++17 -O2 -gencode "arch=compute_$arch,code=sm_$arch" -Icsrc -Itests/native -L"$(dirname "$nvcc")/../lib" -o "$output" \
  benchmarks/gpu_driver.cu "$build/csrc/gpu/libvbgemm_cuda.a"
