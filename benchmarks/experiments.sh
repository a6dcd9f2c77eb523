#!/bin/sh
# The papers' experiments that need the GPU, all of them in a few minutes on an H100 or H200:
#   benchmarks/experiments.sh CASES PROGRAMS OUTPUT [SECTION...]
# CASES: what `experiments.py cases` wrote, X.case; X.sizes and X.plans.csv lie beside it. PROGRAMS: a folder with
# gpu_driver (tools/gpu_driver.sh), tsm2_ablation, thread_tiles, cublas_batches and gpu_driver_one (their commands are at
# the top of benchmarks/*.cu and one_kernel.py); a section whose program is not there is left out. Cases and programs may
# be compressed by xz (331 MB of cases become 11). CUBLAS: the path of libcublas.so.13, where the loader does not find it.
# OUTPUT: a folder. SECTION: what to run, by default all:
#   plans       papers.csv             every plan of CASES, timed and checked by the driver
#   one_kernel  papers_one_kernel.csv  plans in one launch; one_kernel.case has to lie beside CASES
#   tsm2        papers_tsm2.csv        the kernels of Rivera et al., version by version
#   threads     papers_threads.csv     kernels of 64 to 512 threads for nine tiles
#   cublas      papers_cublas.csv      cuBLAS on the batches of CASES, one product after another and on eight streams
#   occupancy   papers_occupancy.csv   the part "occupancy" of CASES and cuBLAS on it under Nsight Compute, where ncu is
# and where JAX has the GPU and Flax is installed
#   conv        conv.csv               GoogLeNet's branches beside XLA's convolutions (cuDNN), float32 and bfloat16
#   modules     papers_modules.csv     the same for each module by itself, forward in float32
#   profile     profile.txt            the latencies, t1 and tcf of tall_skinny's model
# benchmarks/results has them as <device>_<name>, with the lists of the plans: experiments.py and sources.csv look there.
set -eu
if [ $# -lt 3 ]; then sed -n 2,4p "$0" >&2 && exit 2; fi
cases=${1%.xz} programs=$2 output=$3
shift 3
known="plans one_kernel tsm2 threads cublas occupancy conv modules profile"
sections=${*:-$known}
for section in $sections; do
  case " $known " in *" $section "*) ;; *) echo "experiments.sh: no section $section; there are $known" >&2 && exit 2 ;; esac
done
here=$(dirname "$0")
python=${PYTHON:-python}
cublas=${CUBLAS:+--cublas $CUBLAS}
if [ -n "$cublas" ]; then export LD_LIBRARY_PATH="$(dirname "$CUBLAS"):${LD_LIBRARY_PATH:-}"; fi  # it needs libcublasLt
mkdir -p "$output"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT

wants() { case " $sections " in *" $1 "*) ;; *) return 1 ;; esac; }

# Prints the path of a file, which it unpacks if only the compressed one is there; nothing if neither is.
find_file() {
  if [ -e "$1" ]; then
    realpath "$1"
  elif [ -e "$1.xz" ]; then
    "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$1.xz" "$unpacked/${1##*/}"
    chmod +x "$unpacked/${1##*/}"
    echo "$unpacked/${1##*/}"
  fi
}

# needs SECTION PROGRAM [DATA]: whether the section is wanted and its files are there; then `program` and `data` are
# their paths.
needs() {
  wants "$1" || return 1
  for file in "$2" ${3:+"$3"}; do
    [ -e "$file" ] || [ -e "$file.xz" ] || { echo "$1: left out, as $file is not there" && return 1; }
  done
  program=$(find_file "$2") data=${3:+$(find_file "$3")}
}

# drive CSV: the driver `program` times the cases `data`.
drive() {
  rm -f "$1"
  "$program" --cases "$data" --csv "$1" > "$1.txt" 2>&1 || { failed=1 && tail -5 "$1.txt"; }
  tail -1 "$1.txt"
}

failed=0  # a wrong result is reported, and the other experiments run nevertheless

if needs plans "$programs/gpu_driver" "$cases"; then drive "$output/papers.csv"; fi
if needs one_kernel "$programs/gpu_driver_one" "$(dirname "$cases")/one_kernel.case"; then
  drive "$output/papers_one_kernel.csv"
fi
if needs tsm2 "$programs/tsm2_ablation"; then "$program" "$output/papers_tsm2.csv" $cublas || failed=1; fi
if needs threads "$programs/thread_tiles"; then "$program" "$output/papers_threads.csv" || failed=1; fi
if needs cublas "$programs/cublas_batches" "${cases%.case}.sizes"; then
  "$program" "$data" "$output/papers_cublas.csv" $cublas || failed=1
fi
if wants occupancy && ! command -v ncu > /dev/null; then
  echo "occupancy: left out, as there is no ncu"
elif needs occupancy "$programs/gpu_driver" "$cases"; then
  batches=$(find_file "$programs/cublas_batches") sizes=$(find_file "${cases%.case}.sizes") # beside which it looks for the plans
  [ -e "${sizes%.sizes}.plans.csv" ] || cp "${cases%.case}.plans.csv" "${sizes%.sizes}.plans.csv"
  "$python" "$here/profile_occupancy.py" "$data" "$output/papers_occupancy.csv" --lists "${sizes%.sizes}" \
    --driver "$program" ${batches:+--cublas-batches "$batches"} $cublas || failed=1
fi
if { wants conv || wants modules || wants profile; } &&
  "$python" -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")' 2> /dev/null; then
  if wants conv; then
    rm -f "$output/conv.csv"
    for precision in fp32 bf16; do
      "$python" "$here/flax_layers.py" googlenet_b1 googlenet_b32 --csv "$output/conv.csv" --precision $precision || failed=1
    done
  fi
  if wants modules; then
    rm -f "$output/papers_modules.csv"
    modules=$(for block in 3a 3b 4a 4b 4c 4d 4e 5a 5b; do echo inception_${block}_b1; done)
    "$python" "$here/flax_layers.py" $modules --csv "$output/papers_modules.csv" --no-backward || failed=1
  fi
  if wants profile; then "$python" -m jax_vbgemm profile > "$output/profile.txt" && tail -1 "$output/profile.txt"; fi
fi
ls -l "$output"
exit $failed
