#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --chdir=/srv/lab/work/ada/train-001
#SBATCH --output=/srv/lab/work/ada/train-001/slurm-%j.out
#SBATCH --no-requeue
#SBATCH --gres=gpu:8
#SBATCH --open-mode=append
#SBATCH --time=2
#SBATCH --partition=scavenger
#SBATCH --comment="{\"team\": \"a b\"}"
#SBATCH --array=0-1

export PYTHONUNBUFFERED=1
export PYTHONPATH=/opt/packages:/opt/code

srun --kill-on-bad-exit=1 --label --nodes=3 --ntasks=6 --ntasks-per-node=2 \
  nice -n 10 /opt/python -m relight.lab.trainer --run=/srv/lab/work/ada/train-001 --engine=numpy --steps=500 --step-time=0.25 --checkpoint-every=20 --progress-file=/srv/lab/work/ada/train-001/progress.jsonl
