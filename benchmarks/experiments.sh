#!/bin/sh
# All of the papers' experiments that need the GPU, in about three minutes on an H100 or H200:
#   benchmarks/experiments.sh CASES PROGRAMS OUTPUT
# CASES: what `experiments.py cases` wrote, or that compressed by xz (331 MB become 11); its sizes (.sizes) lie beside it.
# PROGRAMS: a folder with gpu_driver (tools/gpu_driver.sh), tsm2_ablation and cublas_batches (their commands are at the
# top of benchmarks/*.cu); of the two others, those that are not there are left out. CUBLAS: libcublas.so.13, where the
# loader does not find it. OUTPUT: a folder. Writes there
#   papers.csv         every plan of CASES, timed and checked by the driver
#   papers_tsm2.csv    the kernels of Rivera et al., version by version
#   papers_cublas.csv  cuBLAS on the batches of CASES, one product after another and on eight streams
# and where JAX has the GPU
#   conv.csv           GoogLeNet's branches beside XLA's convolutions (cuDNN), float32 and bfloat16
#   profile.txt        the latencies, t1 and tcf of tall_skinny's model
# benchmarks/results has them as <device>_<name>, where experiments.py and sources.csv look for them.
set -eu
cases=$1 programs=$2 output=$3
here=$(dirname "$0")
python=${PYTHON:-python}
sizes=${cases%.xz}
sizes=${sizes%.case}.sizes
cublas=${CUBLAS:+--cublas $CUBLAS}
mkdir -p "$output"
case $cases in
*.xz)
  "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$cases" "$output.case"
  cases=$output.case
  ;;
esac
rm -f "$output/papers.csv" "$output/conv.csv"
"$programs/gpu_driver" --cases "$cases" --csv "$output/papers.csv" > "$output/driver.txt" 2>&1 || { tail -5 "$output/driver.txt"; exit 1; }
tail -1 "$output/driver.txt"
if [ -x "$programs/tsm2_ablation" ]; then "$programs/tsm2_ablation" "$output/papers_tsm2.csv" $cublas; fi
if [ -x "$programs/cublas_batches" ]; then "$programs/cublas_batches" "$sizes" "$output/papers_cublas.csv" $cublas; fi
if "$python" -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")' 2> /dev/null; then
  for precision in fp32 bf16; do
    "$python" "$here/flax_layers.py" googlenet_b1 googlenet_b32 --csv "$output/conv.csv" --precision $precision
  done
  "$python" -m jax_vbgemm profile > "$output/profile.txt" && tail -1 "$output/profile.txt"
fi
ls -l "$output"
