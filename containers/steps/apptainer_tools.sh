#!/bin/bash
# apptainer_tools.sh: what get_apptainer.sh needs, as root on Debian.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q install -y --no-install-recommends ca-certificates patchelf
rm -rf /var/lib/apt/lists/*
