#!/bin/bash
# check.sh REVISION BASE...: whether an image may be built of these: a full commit hash, and base images by their
# digest. Exit code 2 where not, with the reason.
set -euo pipefail

refuse() {
    echo "$*" >&2
    exit 2
}

[[ $# -ge 1 ]] || refuse "usage: check.sh REVISION BASE..."
revision=$1
shift
[[ -n $revision ]] \
    || refuse "revision: which commit is the image made of? Give its full hash, as git rev-parse HEAD says it"
[[ $revision =~ ^[0-9a-f]{40}$ ]] \
    || refuse "revision: should be a full commit hash, 40 hex digits, as git rev-parse HEAD says; got '$revision'"
for base in "$@"; do
    [[ $base == *@* ]] || refuse "base: '$base' names no digest; should be NAME:TAG@sha256:DIGEST"
    [[ $base =~ ^[^@[:space:]]+@sha256:[0-9a-f]{64}$ ]] \
        || refuse "base: should be NAME:TAG@sha256: and 64 hexadecimal digits; got '$base'"
done
