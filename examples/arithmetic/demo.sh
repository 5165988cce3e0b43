#!/usr/bin/env bash
# GRPO on sums and differences below 100, on the CPU: from a model that is right on about a third of held-out problems to one that is right
# on more than nine in ten. Prints accuracy (sampled at temperature 1) and three completions before and after.
#   [MODEL=dense | wide | sparse] demo.sh [RUN_DIRECTORY] [further flags of tandem train]
# The dense model is in the repository. The other two (make_model.py says what they are) are made first, which takes some minutes.
# A further flag beats the one that stands below. The data stay in RUN_DIRECTORY-data, so that the run can be repeated,
# tandem train --config RUN_DIRECTORY/config.toml --save OTHER, and gone on with where it was stopped, ... --load RUN_DIRECTORY.
set -euo pipefail
cd "$(dirname "$0")/../.."
tandem=${TANDEM:-build/release/src/cli/tandem}
python=${PYTHON:-.venv/bin/python}
here=examples/arithmetic
run=${1:-runs/arithmetic}
run=${run%/}
shift || true
data=$run-data  # beside the run, which is emptied when the demo is run again
"$python" $here/make_problems.py "$data"

model=${MODEL:-dense}
checkpoint=$here/checkpoint
if [ "$model" != dense ]; then
  checkpoint=$data/$model
  [ -e "$checkpoint" ] || TANDEM=$tandem $here/build.sh "$model" "$checkpoint"
fi

evaluate() {  # checkpoint, where its completions go
  "$tandem" eval --hf-checkpoint "$1" --eval-prompt-data held_out "$data/held_out.jsonl" --rm-type exact \
    --eval-max-response-len 8 --rollout-temperature 1 --sample-output "$2" --quiet
}

echo "== before: 1,500 problems that no training sees"
evaluate "$checkpoint" "$data/before.jsonl"
echo "== training: 300 rollouts of 32 problems x 8 samples"
"$tandem" train --colocate --hf-checkpoint "$checkpoint" --prompt-data "$data/train.jsonl" --rm-type exact \
  --rollout-shuffle --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 --num-rollout 300 \
  --rollout-max-response-len 8 --advantage-estimator grpo --lr 4e-4 --min-lr 2e-5 --lr-decay-style linear \
  --weight-decay 0 --sample-dump-interval 50 --save "$run" --overwrite "$@"
echo "== after"
evaluate "$run/hf/latest" "$data/after.jsonl"
"$python" $here/show.py "$data/before.jsonl" "$data/after.jsonl"
echo "the run: $run (metrics.jsonl, samples/, tensorboard/, log.txt, hf/latest); its data: $data"
