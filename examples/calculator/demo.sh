#!/usr/bin/env bash
# GRPO on the CPU over two turns, from a model that asks a calculator for one problem in five.
#   demo.sh [RUN_DIRECTORY] [further flags of tandem train]
# A further flag beats the one that stands below. The data and the model that the run begins with stay in
# RUN_DIRECTORY-data.
set -euo pipefail
cd "$(dirname "$0")/../.."
tandem=${TANDEM:-build/release/src/cli/tandem}
python=${PYTHON:-.venv/bin/python}
warm_up_steps=${WARM_UP_STEPS:-600}
here=examples/calculator
run=${1:-runs/calculator}
run=${run%/}
shift || true
data=$run-data
"$python" $here/make_data.py "$data"

tools=(--custom-generate-function-path $here/calculator.py:generate --custom-rm-path $here/calculator.py:reward)

evaluate() {
  "$tandem" eval --hf-checkpoint "$1" --eval-prompt-data held_out "$data/held_out.jsonl" --label-key label \
    "${tools[@]}" --eval-max-response-len 24 --rollout-temperature 1 --sample-output "$2" --quiet
}

rm -rf "$data/warm_up"
echo "== warm-up: $warm_up_steps steps of imitating exercises in which the calculator is asked now and then"
"$tandem" sft --hf-checkpoint examples/arithmetic/checkpoint --prompt-data "$data/exercises.jsonl" --rollout-shuffle \
  --global-batch-size 128 --num-rollout "$warm_up_steps" --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine \
  --no-use-tensorboard --save "$data/warm_up" --quiet
echo "== before: 500 problems that no training sees"
evaluate "$data/warm_up/hf/latest" "$data/before.jsonl"
echo "== training: 60 rollouts of 16 problems x 8 samples"
"$tandem" train --colocate --hf-checkpoint "$data/warm_up/hf/latest" --prompt-data "$data/train.jsonl" "${tools[@]}" \
  --rollout-shuffle --rollout-batch-size 16 --n-samples-per-prompt 8 --global-batch-size 128 --num-rollout 60 \
  --rollout-max-response-len 24 --advantage-estimator grpo --lr 2e-4 --weight-decay 0 --sample-dump-interval 20 \
  --save "$run" --overwrite "$@"
echo "== after"
evaluate "$run/hf/latest" "$data/after.jsonl"
echo "the run: $run (metrics.jsonl, samples/, hf/latest); its data: $data"
