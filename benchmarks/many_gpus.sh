#!/bin/sh
# What is divided among the GPUs of one host, on 1, 2, 4 ... of them:
#   benchmarks/many_gpus.sh OUTPUT [MINUTES]
# OUTPUT: a folder. MINUTES: 10 by default; 3 are enough for two GPUs. What takes longer is cut off, and rows are written as they are measured:
#   expert_parallel.csv   layers with divided experts: OLMoE with 16,384 tokens first, then the other models
#   collectives.csv       each collective alone; prints the lines of the device's device.toml
#   decomposed.csv        the ragged exchange, where XLA makes an all-to-all of it
#   muon_MODEL_N.csv      a step of Muon on 1 and N GPUs, which hold all parameters
# MODELS, TOKENS and MUON replace the models, the tokens of a device, and the models of Muon (none if empty). A step that fails does not
# stop the others.
set -u
output=$1 total=$((60 * ${2:-10}))
here=$(dirname "$0")
python=${PYTHON:-python}
models=${MODELS:-olmoe qwen3_30b gpt_oss deepseek_v3} tokens=${TOKENS:-16384 4096} muon=${MUON-gpt2_small resnet50}
first=${models%% *} others=${models#${models%% *}} many=${tokens%% *}
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" # NVLink multicast
mkdir -p "$output"
begin=$(date +%s)

# step PERCENT COMMAND...: until so much of the time is over, counted from the start
step() {
  left=$((total * $1 / 100 - $(date +%s) + begin))
  shift
  echo "== $*"
  if [ $left -lt 5 ]; then echo "many_gpus: left out, as the time is over: $*"; return 0; fi
  timeout -k 5 $left "$python" "$@" || echo "many_gpus: exit status $? of: $*"
}

# minutes PERCENT: the time that is left until then, less what a last case may take
minutes() {
  left=$((total * $1 / 100 - $(date +%s) + begin - total / 20))
  if [ $left -lt 0 ]; then left=0; fi
  echo "$((left / 60)).$((left % 60 * 10 / 60))"
}

each() { # OPTION VALUES...: the option before each value
  option=$1
  shift
  for value in "$@"; do printf '%s %s ' "$option" "$value"; done
}

# Unquoted lists of words below are meant to be split.
# shellcheck disable=SC2046,SC2086
{
  step 50 "$here/expert_parallel.py" "$first" --tokens "$many" --tokens-a-device "$many" --minutes "$(minutes 50)" --csv "$output/expert_parallel.csv"
  step 62 "$here/collectives.py" --csv "$output/collectives.csv"
  XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_unsupported_enable_ragged_all_to_all_decomposer=true" step 70 "$here/expert_parallel.py" "$first" \
    --tokens "$many" --devices 1 --devices 2 --exchange ragged_all_to_all --chunks 1 --minutes "$(minutes 70)" --csv "$output/decomposed.csv"
  step 85 "$here/expert_parallel.py" $others "$first" $(each --tokens-a-device $tokens) --skew uniform --skew skewed --chunks 1 --chunks 2 \
    --minutes "$(minutes 85)" --csv "$output/expert_parallel.csv"
  devices=$("$python" -c 'import jax; print(jax.device_count())')
  for model in $muon; do
    step 100 "$here/muon.py" $model $(each --devices $([ "$devices" -gt 1 ] && echo 1) $devices) --no-calls --rounds 3 --budget 0.2 \
      --csv "$output/muon_${model}_$devices.csv"
  done
}
