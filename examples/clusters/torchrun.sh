#!/bin/bash
# torchrun: give this command on each of two hosts, with the address of the first one. torchrun_worker.sh adds a device
# of another host that samples for the run.
#
#   (umask 077; openssl rand -hex 32 >~/.tandem_secret)     # on the first host; copy it to the others
#   ./torchrun.sh 0 10.0.0.1                                # on the first host
#   ./torchrun.sh 1 10.0.0.1                                # on the second one
node=$1
first_host=$2
export TANDEM_SECRET_FILE=${TANDEM_SECRET_FILE:-$HOME/.tandem_secret}

# torchrun starts all processes of its host again when one has failed; the other host's follow.
exec bash keep_going.sh /shared/runs/x \
  torchrun --nnodes 2 --node-rank "$node" --nproc-per-node "${DEVICES:-8}" --max-restarts 20 \
  --master-addr "$first_host" --master-port 29500 --no-python tandem train --config job.toml
