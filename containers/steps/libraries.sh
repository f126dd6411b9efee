#!/bin/bash
# libraries.sh TOOLS FOLDER PYTHON LOCK: a virtual environment of PYTHON in FOLDER with what LOCK has, each file by its
# hash, wheels only. The pip is that of the interpreter TOOLS.
set -euo pipefail
tools=$1 folder=$2 python=$3 lock=$4
"$python" -m venv --without-pip "$folder"
"$tools" -m pip --disable-pip-version-check --python "$folder/bin/python" install --quiet --no-cache-dir --no-deps \
    --require-hashes --only-binary=:all: --requirement "$lock"
