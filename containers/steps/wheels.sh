#!/bin/bash
# wheels.sh PYTHON SOURCE OUT: a wheel of each distribution of this project. PYTHON has the build tools. With
# SOURCE_DATE_EPOCH set, equal sources give equal bytes.
set -euo pipefail
python=$1 source=$2 out=$3
projects=("$source/core")
for file in "$source"/plugins/*/pyproject.toml; do
    projects+=("$(dirname "$file")")
done
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --no-index \
    --wheel-dir "$out" "${projects[@]}"
