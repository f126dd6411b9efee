#!/bin/bash
#SBATCH --job-name=gb300-256.0.eval
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gres=gpu:gb300:4
#SBATCH --segment=8
#SBATCH --time=240
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --partition=batch
#SBATCH --account=mlperf
#SBATCH --qos=long
#SBATCH --comment='{"OccupiedIdleGPUsJobReaper": {"exemptIdleTimeMins": "240"}}'
#SBATCH --reservation='grpo bench'
#SBATCH --chdir=/cluster/runs/launch/replica-0
#SBATCH --output=/cluster/runs/launch/replica-0/slurm-%j.out
#SBATCH --open-mode=append

# gb300-256.0.eval: written by grpo-bench launch.
# shellcheck disable=SC2329  # some functions are called by traps, others on other hosts
set -euo pipefail

purpose=evaluate
folder=/cluster/runs/launch/replica-0
script=evaluate.sh
ray=true
gpus=4
object_store=8589934592
start_s=3600
stop_signal=TERM
requeues=true
environment=(
    CUDA_DEVICE_MAX_CONNECTIONS=1
    NCCL_LAUNCH_ORDER_IMPLICIT=1
    NCCL_CUMEM_ENABLE=1
    NCCL_MNNVL_ENABLE=1
    NCCL_DEBUG=WARN
    PYTHONNOUSERSITE=1
    GRPO_BENCH_CONTAINER_DIGEST=sha256:0000000000000000000000000000000000000000000000000000000000000000
)
container=(
    '--container-image=registry.example#grpo-bench:1'
    '--container-mounts=/models:/models,/data:/data:ro,/tmp:/tmp,/cluster/runs/launch:/cluster/runs/launch,/cluster/site.toml:/cluster/site.toml:ro'
    --no-container-mount-home
    --container-workdir=/cluster/runs/launch/replica-0
)
within=()
first_command=(
    grpo-bench
    run
    --profile
    gb300-256
    --site
    /cluster/site.toml
    --set
    grpo.max_steps=5
    --seed
    4294967295
    --runs
    /cluster/runs/launch/replica-0
    --no-eval
)
resume_options=(--no-eval)
setup() {
    :
}

