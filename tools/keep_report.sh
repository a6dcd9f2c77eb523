#!/usr/bin/env bash
# A compiler launcher (CMAKE_CUDA_COMPILER_LAUNCHER, CMAKE_HIP_COMPILER_LAUNCHER): a build that also keeps what the compiler says of
# each file's kernels, in $VBGEMM_REPORTS, for the two tools/kernel_resources*.py. So CI compiles each kernel once.
set -euo pipefail
source=
for argument; do case $argument in *.cu) source=$argument ;; esac; done
if [ -z "$source" ]; then exec "$@"; fi  # CMake's own tries, links

case $(basename "$1") in
  nvcc*) kind=cuda flags="-Xptxas -v" ;;
  *) kind=rocm flags="-Rpass-analysis=kernel-resource-usage" ;;
esac
mkdir -p "$VBGEMM_REPORTS/$kind"
report=$VBGEMM_REPORTS/$kind/$(basename "$source").txt
# shellcheck disable=SC2086 # the flags are words
"$@" $flags 2>"$report" || { status=$?; cat "$report" >&2; exit $status; }
