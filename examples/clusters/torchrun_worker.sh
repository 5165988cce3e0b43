#!/bin/bash
# One device of any host that samples for the run of torchrun.sh, until the run or this process ends (Ctrl-C, SIGTERM).
#
#   CUDA_VISIBLE_DEVICES=3 ./torchrun_worker.sh 10.0.0.1
first_host=$1
export TANDEM_SECRET_FILE=${TANDEM_SECRET_FILE:-$HOME/.tandem_secret}

exec tandem train --config job.toml --rollout-join-address "$first_host:29600"
