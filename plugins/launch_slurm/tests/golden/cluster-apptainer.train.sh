#!/bin/bash
#SBATCH --job-name=mock.0
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=30
#SBATCH --signal=B:USR1@100
#SBATCH --requeue
#SBATCH --chdir=/cluster/runs/launch/replica-0
#SBATCH --output=/cluster/runs/launch/replica-0/slurm-%j.out
#SBATCH --open-mode=append

# mock.0: written by grpo-bench launch.
# shellcheck disable=SC2329  # some functions are called by traps, others on other hosts
set -euo pipefail

purpose=train
folder=/cluster/runs/launch/replica-0
script=train.sh
ray=true
gpus=0
object_store=8589934592
start_s=1800
stop_signal=USR1
requeues=true
environment=(
    'MKL_CBWR=AUTO,STRICT'
    PYTHONNOUSERSITE=1
)
container=()
within=(
    apptainer
    exec
    --no-home
    --bind
    /cluster:/cluster
    --bind
    /tmp:/tmp
    --pwd
    /cluster/runs/launch/replica-0
    /images/grpo-bench.sif
)
first_command=(
    grpo-bench
    run
    --profile
    mock
    --site
    /cluster/site.toml
    --set
    grpo.max_steps=5
    --seed
    4294967295
    --runs
    /cluster/runs/launch/replica-0
)
resume_options=()
setup() {
    module load apptainer
}

