#!/bin/bash
#SBATCH --job-name=mock.0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=60
#SBATCH --signal=B:USR1@900
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
ray=false
gpus=0
object_store=536870912
start_s=1800
stop_signal=USR1
requeues=true
environment=()
container=()
within=()
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
    export PATH=/opt/grpo-bench/bin:$PATH
    module load grpo-bench
    export SITE_NAME="a b"
}

