#!/bin/bash
# system.sh: what the image needs of the distribution, as root on Ubuntu 24.04: a Python to begin with, what sandboxes
# and agents run (bubblewrap, Apptainer's mounts, tmux, git), what CUDA kernels are built with where they are used
# first, and what NCCL reaches InfiniBand and RoCE with.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q install -y --no-install-recommends \
    build-essential ca-certificates python3 python3-dev python3-venv \
    bubblewrap fuse-overlayfs fuse3 squashfs-tools squashfuse git tmux \
    libnuma1 ibverbs-providers libibverbs1 librdmacm1
rm -rf /var/lib/apt/lists/*
