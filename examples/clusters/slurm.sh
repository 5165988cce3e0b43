#!/bin/bash
# Slurm: two nodes run the job; slurm_workers.sh adds devices of other nodes that sample for it.
#
#   (umask 077; openssl rand -hex 32 >~/.tandem_secret)     # once, where all nodes see your home
#   sbatch slurm.sh
#
#SBATCH --job-name=tandem
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
export TANDEM_SECRET_FILE=$HOME/.tandem_secret

# A task is a process of tandem, and learns from Slurm who it is. One that fails ends the others. SIGTERM goes to the
# tasks, which save and end.
bash keep_going.sh /shared/runs/x srun --kill-on-bad-exit=1 tandem train --config job.toml
code=$?
# 75: stopped, because the time is up or the job is preempted. 2: a mistake in the flags or the data, which no further
# start mends. A node that Slurm finds dead puts the job back into the queue without our help.
[ $code -eq 0 ] || [ $code -eq 2 ] || [ "${SLURM_RESTART_COUNT:-0}" -ge 20 ] || scontrol requeue "$SLURM_JOB_ID"
exit $code
