#!/bin/bash
# commit.sh RECIPE REVISION: whether the recipe in this context is of that commit. `git archive` writes the commit's
# hash into the file `revision`; a working tree has a placeholder there. Exit code 2 where it is not.
set -euo pipefail
recipe=$1 revision=$2
found=$(<"$recipe/revision")
if [[ $found == *Format* ]]; then
    echo "revision: this context is a working tree and no commit; build the image with containers/build" >&2
    exit 2
elif [[ $found != "$revision" ]]; then
    echo "revision: this context is of commit $found, and $revision was asked for" >&2
    exit 2
fi
