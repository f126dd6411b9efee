#!/bin/bash
# pythons.sh FOLDER LOCK [VERSION...]: FOLDER/tools, an environment with the tools of LOCK; the interpreters that locks
# of environments ask for, in FOLDER/python; and links to them, FOLDER/bin/pythonX.Y. uv verifies what it downloads by
# the hashes that its release holds.
set -euo pipefail
folder=$1 lock=$2
shift 2
versions=("$@")
[[ $# -gt 0 ]] || versions=(3.11.18 3.12.16)
python3 -m venv "$folder/tools"
"$folder/tools/bin/python" -m pip --disable-pip-version-check install --quiet --no-cache-dir --require-hashes \
    --only-binary=:all: --requirement "$lock"
mkdir -p "$folder/bin"
for version in "${versions[@]}"; do
    "$folder/tools/bin/uv" python install --install-dir "$folder/python" --no-bin "$version"
    minor=${version%.*}
    found=("$folder/python/cpython-$version-"*"/bin/python$minor")
    ln -sfn "${found[0]}" "$folder/bin/python$minor"
done
