#!/bin/sh
# All of the papers' experiments that need the GPU, in about three minutes on an H100 or H200:
#   benchmarks/experiments.sh CASES PROGRAMS OUTPUT
# CASES: what `experiments.py cases` wrote, X.case; X.sizes lies beside it. PROGRAMS: a folder with gpu_driver
# (tools/gpu_driver.sh), tsm2_ablation, cublas_batches and gpu_driver_one (their commands are at the top of
# benchmarks/*.cu and one_kernel.py); what is not there but the first is left out. Cases and programs may be compressed by
# xz (331 MB of cases become 11). For gpu_driver_one, one_kernel.case has to lie beside CASES. CUBLAS: the path of
# libcublas.so.13, where the loader does not find it. OUTPUT: a folder. Writes there
#   papers.csv             every plan of CASES, timed and checked by the driver
#   papers_one_kernel.csv  plans in one launch
#   papers_tsm2.csv        the kernels of Rivera et al., version by version
#   papers_cublas.csv      cuBLAS on the batches of CASES, one product after another and on eight streams
# and where JAX has the GPU
#   conv.csv               GoogLeNet's branches beside XLA's convolutions (cuDNN), float32 and bfloat16
#   papers_modules.csv     the same for each module by itself, forward in float32
#   profile.txt            the latencies, t1 and tcf of tall_skinny's model
# benchmarks/results has them as <device>_<name>, with the lists of the plans: experiments.py and sources.csv look there.
set -eu
cases=$1 programs=$2 output=$3
here=$(dirname "$0")
python=${PYTHON:-python}
cublas=${CUBLAS:+--cublas $CUBLAS}
if [ -n "$cublas" ]; then export LD_LIBRARY_PATH="$(dirname "$CUBLAS"):${LD_LIBRARY_PATH:-}"; fi  # it needs libcublasLt
mkdir -p "$output"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT

# Prints the path of a file, which it unpacks if only the compressed one is there; nothing if neither is.
find_file() {
  if [ -e "$1" ]; then
    echo "$1"
  elif [ -e "$1.xz" ]; then
    "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$1.xz" "$unpacked/${1##*/}"
    chmod +x "$unpacked/${1##*/}"
    echo "$unpacked/${1##*/}"
  fi
}

# drive DRIVER CASES CSV
drive() {
  rm -f "$3"
  "$(realpath "$1")" --cases "$2" --csv "$3" > "$3.txt" 2>&1 || { failed=1 && tail -5 "$3.txt"; }
  tail -1 "$3.txt"
}

failed=0  # a wrong result is reported, and the other experiments run nevertheless

cases=${cases%.xz}
drive "$(find_file "$programs/gpu_driver")" "$(find_file "$cases")" "$output/papers.csv"
tsm2=$(find_file "$programs/tsm2_ablation") batches=$(find_file "$programs/cublas_batches")
if [ -n "$tsm2" ]; then "$(realpath "$tsm2")" "$output/papers_tsm2.csv" $cublas || failed=1; fi
if [ -n "$batches" ]; then
  "$(realpath "$batches")" "$(find_file "${cases%.case}.sizes")" "$output/papers_cublas.csv" $cublas || failed=1
fi
driver_one=$(find_file "$programs/gpu_driver_one") one=$(find_file "$(dirname "$cases")/one_kernel.case")
if [ -n "$driver_one" ] && [ -n "$one" ]; then drive "$driver_one" "$one" "$output/papers_one_kernel.csv"; fi
if "$python" -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")' 2> /dev/null; then
  rm -f "$output/conv.csv" "$output/papers_modules.csv"
  for precision in fp32 bf16; do
    "$python" "$here/flax_layers.py" googlenet_b1 googlenet_b32 --csv "$output/conv.csv" --precision $precision
  done
  modules=$(for block in 3a 3b 4a 4b 4c 4d 4e 5a 5b; do echo inception_${block}_b1; done)
  "$python" "$here/flax_layers.py" $modules --csv "$output/papers_modules.csv" --no-backward
  "$python" -m jax_vbgemm profile > "$output/profile.txt" && tail -1 "$output/profile.txt"
fi
ls -l "$output"
exit $failed
