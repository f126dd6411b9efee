#!/bin/bash
# environments.sh NAME...: build these environments of workers from their locks, into $GRPO_BENCH_ENVS, for every user
# to read. No name, nothing to do.
set -euo pipefail
: "${GRPO_BENCH_ENVS:?names the folder that environments are built in}"
mkdir -p "$GRPO_BENCH_ENVS"
export PIP_NO_CACHE_DIR=1
if [[ $# -gt 0 ]]; then
    grpo-bench env build "$@"
    rm -f "$GRPO_BENCH_ENVS"/*.held
fi
chmod -R a+rX "$GRPO_BENCH_ENVS"
