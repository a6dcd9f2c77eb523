#!/bin/sh
# All of the papers' experiments that need the GPU, in under three minutes on an H100:
#   benchmarks/experiments.sh CASES DRIVER OUTPUT
# CASES: what `experiments.py cases` wrote, or that compressed by xz (331 MB become 11); DRIVER: the built gpu_driver;
# OUTPUT: a folder. Writes there
#   h100_experiments.csv   every plan of CASES, timed and checked by the driver
# and where JAX has the GPU
#   h100_conv.csv          GoogLeNet's branches beside XLA's convolutions (cuDNN), float32 and bfloat16
#   profile.txt            the latencies, t1 and tcf of tall_skinny's model
set -eu
cases=$1 driver=$2 output=$3
here=$(dirname "$0")
python=${PYTHON:-python}
mkdir -p "$output"
case $cases in
*.xz)
  "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$cases" "$output.case"
  cases=$output.case
  ;;
esac
rm -f "$output/h100_experiments.csv" "$output/h100_conv.csv"
"$driver" --cases "$cases" --csv "$output/h100_experiments.csv" > "$output/driver.txt" 2>&1 || { tail -5 "$output/driver.txt"; exit 1; }
tail -1 "$output/driver.txt"
if "$python" -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")' 2> /dev/null; then
  for precision in fp32 bf16; do
    "$python" "$here/flax_layers.py" googlenet_b1 googlenet_b32 --csv "$output/h100_conv.csv" --precision $precision
  done
  "$python" -m jax_vbgemm profile > "$output/profile.txt" && tail -1 "$output/profile.txt"
fi
ls -l "$output"
