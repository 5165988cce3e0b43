#!/usr/bin/env bash
# Makes a checkpoint anew: a tokenizer, a random model (make_model.py lists them) and a supervised warm-up on a careless pupil's exercise
# book, after which it is right on about a third of held-out problems. Without arguments it makes examples/arithmetic/checkpoint, which is
# in the repository.
#   build.sh [dense | wide | sparse] [CHECKPOINT]
set -euo pipefail
cd "$(dirname "$0")/../.."
tandem=${TANDEM:-build/release/src/cli/tandem}
here=examples/arithmetic
model=${1:-dense}
checkpoint=${2:-$here/checkpoint}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

.venv/bin/python $here/make_problems.py "$work/data"
.venv/bin/python $here/make_model.py "$work/random" "$model"
"$tandem" sft --hf-checkpoint "$work/random" --random-init --dtype bfloat16 \
  --prompt-data "$work/data/sft.jsonl" --label-key label --rollout-shuffle --global-batch-size 256 --num-rollout 1000 \
  --lr 2e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 20 --weight-decay 0.01 \
  --save "$work/sft" --no-use-tensorboard
rm -rf "$checkpoint"
"$tandem" export --run "$work/sft" --output "$checkpoint"
