#!/usr/bin/env bash
# The check to run on one NVIDIA GPU after every change of kernels, launches or lowering, from what was built elsewhere or here:
#
#   tools/gpu_check.sh FOLDER [SECONDS]     FOLDER: the wheels of tools/wheels.py (core and cuda13) and gpu_driver; SECONDS: of random calls
#
# It runs, side by side, the test suite with the installed wheels; the driver's check, with seeds drawn from the time; random calls of every
# public product through JAX against float64; memcheck of every family of kernels, and racecheck of all but the warp-specialised ones. Then
# it prints a table of what ran, with which seed, and what failed, and exits with 1 if anything did. VBGEMM_SEED repeats a run's seeds, OUT
# is where logs go.
#
# tools/gpu_driver.sh builds gpu_driver. Packages that the wheels need (JAX with its CUDA plugin, and those of the extra `test`) must be there.
set -uo pipefail
folder=$(realpath "${1:?the folder with wheels and gpu_driver}") seconds=${2:-240}
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${OUT:-$root/build/gpu_check}") seed=${VBGEMM_SEED:-$(($(date +%s) % 1000000))}
python=${PYTHON:-python3}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The wheels in a folder of their own. The tests run in another folder than the source tree's, whose package has no compiled module.
"$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$work/site" "$folder"/jax_vbgemm*.whl || exit 1
export PYTHONPATH=$work/site XLA_PYTHON_CLIENT_PREALLOCATE=false
cp "$folder/gpu_driver" "$work/gpu_driver" && chmod +x "$work/gpu_driver" || exit 1
cd "$work" || exit 1
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
"$python" -c "import jax, jax_vbgemm as vb; print('jax', jax.__version__, vb.available_backends()); assert 'cuda' in vb.available_backends()" || exit 1

rows=() pids=()
start() {  # name, seed, command...
  local name=$1 its_seed=$2 log
  log=$out/${name// /_}.log
  rm -f "$log.status"
  ( begin=$SECONDS; "${@:3}" >"$log" 2>&1; echo "$? $((SECONDS - begin))" >"$log.status" ) &
  pids+=($!) rows+=("$name|$its_seed|$log")
}
sanitized() {  # tool, command...: its own allocator, as memcheck does not see overruns inside of a pool
  XLA_PYTHON_CLIENT_ALLOCATOR=platform compute-sanitizer --tool "$1" --kernel-name kns=vbgemm "${@:2}"
}
# The tool, or the process under it at its end, dies of a segmentation fault now and then, the sooner the more calls it makes: a process for
# every three, and such a death without a report counts as a process that checked nothing. One that found nothing in as many processes as died has not run.
is_death() {  # status, log
  ! grep -qaE 'SUMMARY: [1-9]|Race reported|Invalid|^FAIL|displayed \([1-9]' "$2" &&
    { [ "$1" = 139 ] || grep -qa "process didn't terminate successfully" "$2"; }
}
sanitized_calls() {  # tool, the first seed, options of random_calls.py...
  local at=$2 end=$((SECONDS + seconds)) checked=0 died=0 status said=$work/said.$BASHPID
  while [ $((checked + died)) = 0 ] || [ $SECONDS -lt $end ]; do
    status=0
    "$1" "$python" "$root/tests/random_calls.py" --seed "$at" --count 3 --seconds 1000000 "${@:3}" >"$said" 2>&1 || status=$?
    cat "$said"
    if is_death "$status" "$said"; then
      died=$((died + 1))
    elif [ $status = 0 ]; then
      checked=$((checked + 1))
    else
      return $status
    fi
    at=$((at + 3))
  done
  echo "$((3 * checked)) calls from seed $2 checked; the tool died in $died of $((checked + died)) processes"
  [ $checked -gt $died ]
}
memcheck() { sanitized memcheck --error-exitcode 1 "$@"; }
# racecheck does not know that a warp's arrival at an mbarrier, which one lane makes after the warp has met, releases what all its lanes have
# written. Therefore it reports each hand-over of the warp-specialised kernels, which does not count here; the emulation looks for their
# races (tests/emulation).
racecheck() {
  local found=$work/race.$BASHPID status=0
  sanitized racecheck "$@" >"$found" 2>&1 || status=$?
  cat "$found"
  [ $status = 0 ] || return $status
  awk '/Race reported between/ && !/vbgemm_m384_pipelined|vbgemm_ragged_/ {bad = 1} END {exit bad}' "$found"
}

start "suite" - "$python" -m pytest -q -o cache_dir="$work/cache" -n "${JOBS:-8}" -c "$root/pyproject.toml" --rootdir "$root" "$root/tests" \
  --ignore "$root/tests/emulation" --durations=5
start "driver" "$seed" ./gpu_driver --check --seed "$seed"
start "driver, small" "$((seed + 1))" ./gpu_driver --check --small --seed $((seed + 1))
start "random calls" "$((seed * 1000))" "$python" "$root/tests/random_calls.py" --seed $((seed * 1000)) --seconds "$seconds"
start "random ragged calls" "$((seed * 2000))" "$python" "$root/tests/random_calls.py" --seed $((seed * 2000)) --seconds "$seconds" \
  --families ragged ragged_scaled ragged_wgrad ragged_lists mixtures copies windows --dtypes bfloat16 float16 float32
start "memcheck of the driver" "$seed" memcheck ./gpu_driver --check --small --exact --no-replays --seed "$seed"
start "memcheck of calls" "$((seed * 3000))" sanitized_calls memcheck $((seed * 3000))
start "memcheck of ragged" "$((seed * 4000))" sanitized_calls memcheck $((seed * 4000)) --families ragged ragged_scaled ragged_wgrad ragged_lists mixtures copies --dtypes bfloat16 float16 float32
start "racecheck of the driver" "$seed" racecheck ./gpu_driver --check --small --races --no-replays --seed "$seed"
start "racecheck of calls" "$((seed * 5000))" sanitized_calls racecheck $((seed * 5000)) --dtypes bfloat16 float32
wait "${pids[@]}"

failed=0
printf '\n%-26s %-12s %-7s %8s  %s\n' check seed result seconds "last line"
for row in "${rows[@]}"; do
  IFS='|' read -r name its_seed log <<<"$row"
  status=lost took=-
  [ -f "$log.status" ] && read -r status took <"$log.status"
  [ "$status" = 0 ] && result=passed || { result=FAILED failed=1; }
  printf '%-26s %-12s %-7s %8s  %s\n' "$name" "$its_seed" "$result" "$took" "$(grep -v '^$' "$log" | tail -1 | cut -c1-110)"
done
for row in "${rows[@]}"; do
  IFS='|' read -r name _ log <<<"$row"
  status=lost
  [ -f "$log.status" ] && read -r status _ <"$log.status"
  [ "$status" = 0 ] || { echo "== $name"; grep -E '^(FAIL|FAILED|ERROR|E  )|=========.*(ERROR|Invalid|hazard|Error)' "$log" | head -12; }
done
exit $failed
