#!/usr/bin/env bash
# The first thing to run on a machine with an AMD Instinct GPU and ROCm: no kernel of the ROCm backend has run on one yet.
#
#   tools/rocm/first_run.sh            (ROCM_PATH where ROCm isn't in /opt/rocm; a few minutes)
#
# Builds the stand-alone driver for this GPU and puts every kernel through the same random problems as on NVIDIA GPUs and in the emulation:
# all tiles, layouts, epilogues, NaN and Inf, descriptors that lie, graphs, repeated runs. It should end with
#
#   PASS: 0 faults in N groups        (some 530)
#
# Any other end is worth an issue, with the output: build/rocm_check.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
rocm=${ROCM_PATH:-/opt/rocm}
clang=${HIPCXX:-$("$rocm/bin/hipconfig" --hipclangpath)/clang++}
arch=${1:-$("$rocm/bin/rocm_agent_enumerator" | grep -m1 -E 'gfx90a|gfx942')} || { echo "no gfx90a or gfx942 GPU is seen here" >&2; exit 1; }

mkdir -p build/rocm_check
flags=(-x hip --rocm-path="$rocm" --offload-arch="$arch" -O3 -std=c++17 -Icsrc -Itests/native -D__HIP_PLATFORM_AMD__
  -Wno-pass-failed -Wno-unused-result -mllvm -amdgpu-early-inline-all=true -mllvm -amdgpu-function-calls=false)
echo "building for $arch"
printf '%s\n' benchmarks/gpu_driver.cu csrc/gpu/host/launch.cu csrc/gpu/instances/{add_partial_sums,add_scaled,square_sums,simt_*,mfma_*}.cu |
  xargs -P "${JOBS:-$(nproc)}" -I{} sh -c 'out=build/rocm_check/$(basename "$1" .cu).o; shift; "$@" -o "$out"' _ {} "$clang" "${flags[@]}" -c {}
"$clang" build/rocm_check/*.o -L"$rocm/lib" -Wl,-rpath,"$rocm/lib" -lamdhip64 -o build/rocm_check/gpu_driver
build/rocm_check/gpu_driver --check | tee build/rocm_check.txt
echo "next: VBGEMM_HIP=ON ./run test, in an environment with JAX's ROCm plugin"
