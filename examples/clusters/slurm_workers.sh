#!/bin/bash
# Slurm: each element of the array is a device that samples for the run of slurm.sh, from when it starts. Submit as many
# as you like, cancel any of them at any time, let others preempt them.
#
#   sbatch --array=0-15 --dependency=after:4711 --export=ALL,RUN_JOB=4711 slurm_workers.sh   # 4711: slurm.sh's job
#
#SBATCH --job-name=tandem-workers
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@60
#SBATCH --requeue
export TANDEM_SECRET_FILE=$HOME/.tandem_secret

# The node of the run's batch script, where rank 0 is; "n/a" while the run waits to be started (again).
while first_host=$(squeue --noheader --jobs "$RUN_JOB" --format %B); [ "$first_host" = n/a ]; do sleep 10; done
[ -n "$first_host" ] || exit 0  # the run has ended
bash keep_going.sh /shared/runs/x \
  srun tandem train --config job.toml --rollout-join-address "$first_host:29600"
code=$?
[ $code -ne 75 ] || scontrol requeue "$SLURM_JOB_ID"
exit $code
