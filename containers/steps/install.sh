#!/bin/bash
# install.sh TOOLS FOLDER WHEELS: install these wheels into the environment in FOLDER, each from its file, so that pip
# records its hash. Whatever they need has to be there already. The pip is that of the interpreter TOOLS.
set -euo pipefail
tools=$1 folder=$2 wheels=$3
pip=("$tools" -m pip --disable-pip-version-check --python "$folder/bin/python")
"${pip[@]}" install --quiet --no-deps --no-index "$wheels"/*.whl
"${pip[@]}" check
