#!/usr/bin/env bash
# Trains one step with an installed Tandem, on the model and the problems of examples/arithmetic, and asks what a first
# look would: a reward is paid, the weights have changed, and engine and trainer agree in every bit.
#
#   packaging/first_step.sh ENVIRONMENT RUN_DIRECTORY [further flags of tandem train]
#
# ENVIRONMENT is a folder that packaging/install.sh made. Exit code 1 if the step is not what it should be.
set -euo pipefail
arithmetic=$(cd "$(dirname "$0")/../examples/arithmetic" && pwd)
environment=$1
run=$2
shift 2
"$environment/bin/python" "$arithmetic/make_problems.py" "$run-data" >&2
"$environment/bin/tandem" train --colocate --hf-checkpoint "$arithmetic/checkpoint" --prompt-data "$run-data/train.jsonl" \
  --rm-type math --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 --num-rollout 1 \
  --rollout-max-response-len 8 --advantage-estimator grpo --lr 4e-4 --save "$run" "$@" >&2
"$environment/bin/python" - "$run/metrics.jsonl" <<'CHECK'
import json, sys
metrics = {}
for line in open(sys.argv[1]):
    metrics |= json.loads(line)
reward, difference, norm = (metrics[name] for name in (
    "rollout/raw_reward", "train/train_rollout_logprob_abs_diff", "train/grad_norm"))
print(f"first step: reward {reward:.3f}, gradient {norm:.3f}, trainer and engine differ by {difference}")
sys.exit(not (reward > 0 and norm > 0 and difference == 0))
CHECK
