#!/usr/bin/env bash
# GRPO on the CPU of an agent of openai-agents, from a model that calls a tool for one problem in four.
#   demo.sh [RUN_DIRECTORY] [further flags of tandem train]
# A further flag beats the one that stands below. The data and the model that the run begins with stay in
# RUN_DIRECTORY-data. tools/setup.sh agents installs the library.
set -euo pipefail
cd "$(dirname "$0")/../.."
tandem=${TANDEM:-build/release/src/cli/tandem}
python=${PYTHON:-.venv/bin/python}
agents=${AGENTS_PYTHON:-.venv-agents/bin/python}
warm_up_steps=${WARM_UP_STEPS:-1000}
here=examples/agent
run=${1:-runs/agent}
run=${run%/}
shift || true
data=$run-data
"$python" $here/make_data.py "$data"

echo "== warm-up: $warm_up_steps steps of imitating exercises in which the tool is called now and then"
"$tandem" sft --hf-checkpoint "$data/model" --prompt-data "$data/exercises.jsonl" --tool-key tools --rollout-shuffle \
  --global-batch-size 64 --num-rollout "$warm_up_steps" --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine \
  --no-use-tensorboard --save "$data/warm_up" --overwrite --quiet
echo "== training: 20 rollouts of 8 problems x 8 samples"
"$tandem" train --colocate --hf-checkpoint "$data/warm_up/hf/latest" --prompt-data "$data/train.jsonl" \
  --custom-generate-function-path $here/agent.py:generate --custom-generate-endpoint \
  --custom-rm-path $here/agent.py:reward --rm-python "$agents" --rollout-shuffle --rollout-batch-size 8 \
  --n-samples-per-prompt 8 --global-batch-size 64 --num-rollout 20 --rollout-max-response-len 220 \
  --advantage-estimator grpo --lr 2e-4 --weight-decay 0 --no-use-tensorboard --save "$run" --overwrite "$@"
echo "the run: $run (metrics.jsonl, samples/, hf/latest); its data: $data"
