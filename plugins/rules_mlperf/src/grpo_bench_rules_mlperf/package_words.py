"""The texts of a submission: how its runs were made, for people and for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from .package import IMPLEMENTATION, Candidate, revisions
from .rules import Rules

_SHELL = "#!/bin/sh\n# {what}\nset -eu\n"


def implementation_readme(statement: Mapping[str, Any], missing: Sequence[str]) -> str:
    """``missing`` are distributions whose code is not in the folder."""
    rows = "".join(f"| {name} | {found['version']} | {found['sha256']} | {'no' if name in missing else 'yes'} |\n"
                   for name, found in statement["distributions"].items())
    commits = ", ".join(revisions(statement)) or "not recorded"
    gone = ("\nWhat is not here was not installed as it ran where this package was made. It is the code of that commit "
            "and hash.\n" if missing else "")
    return (f"# {IMPLEMENTATION}\n\nThe code that ran, a folder for each distribution. A hash covers names and bytes "
            f"of all its files.\n\nSource commit: {commits}\n\n| distribution | version | sha256 | here |\n"
            f"|---|---|---|---|\n{rows}{gone}")


def readme(runs: Sequence[Candidate], system_id: str, rules: Rules) -> str:
    first = runs[0]
    profile, statement = first.started["profile"], first.statement
    container = (statement.get("container") or {}).get("digest") or "none recorded"
    table = "".join(f"| result_{number}.txt | {run.run} | {run.started['seed']} |\n" for number, run in enumerate(runs))
    locks = "".join(f"- {role}: {lock['build'] or lock['interpreter']}, lock {lock['lock_sha256'] or 'none'}\n"
                    for role, lock in statement.get("locks", {}).items())
    return f"""# {rules.benchmark} on {system_id}

Made with grpo-bench, profile `{profile}`, ruleset `{rules.name}`.

| file | what it is |
|---|---|
| `setup.sh` | installs what ran, from a checkout at `$GRPO_BENCH_SOURCE`, and builds the environments of workers |
| `init_datasets.sh` | fetches policy, tasks and their images, as the site file `$GRPO_BENCH_SITE` says |
| `run_and_time.sh` | checks everything, then makes one run; `SEED` is drawn where it is not set, `REGISTRY` names a \
registry file with the profile where grpo-bench does not bring it |
| `profile.json` | every setting of the runs; the seed is each run's own |
| `provenance/` | what each run was made of |
| `{system_id}_{IMPLEMENTATION}.json` | this combination of system and implementation |

A log is what a run's journal says; no script changes it afterwards.

| log | run | seed |
|---|---|---|
{table}
Source commit: {', '.join(revisions(statement)) or 'not recorded'}

Container: {container}

Environments of workers:

{locks or '- none'}
"""


def setup(statement: Mapping[str, Any]) -> str:
    """Installs each distribution the way that it came to the run."""
    trees = {folder: state["commit"] for folder, state in statement["sources"].items() if state["commit"]}
    checks = "".join(f'[ "$(git -C "$GRPO_BENCH_SOURCE" rev-parse HEAD)" = {commit} ] || '
                     f"{{ echo 'check out {commit}' >&2; exit 1; }}\n" for commit in sorted(set(trees.values())))
    wanted = [_requirement(name, found["version"], statement.get("installs", {}).get(name, {}), trees)
              for name, found in statement["distributions"].items()]
    environments = sorted({lock["build"].rsplit("-", 2)[0] for lock in statement.get("locks", {}).values()
                           if lock["build"]})
    needed = ': "${GRPO_BENCH_SOURCE:?should name a checkout of grpo-bench}"\n' if trees else ""
    build = f'"$VENV/bin/grpo-bench" env build {" ".join(map(shlex.quote, environments))}\n' if environments else ""
    venv = 'VENV=${VENV:-.venv}\npython3 -m venv "$VENV"\n'
    install = f'"$VENV/bin/pip" install {" ".join(wanted)}\n'
    return _SHELL.format(what="Installs what ran.") + needed + checks + venv + install + build


def _requirement(name: str, version: str, origin: Mapping[str, Any], trees: Mapping[str, str]) -> str:
    if origin.get("kind") == "vcs":
        return shlex.quote(f"{name} @ git+{origin['url']}@{origin['commit']}")
    folder = PurePosixPath(unquote(urlsplit(origin.get("url", "")).path))
    for top in trees:
        if origin.get("kind") == "editable" and folder.is_relative_to(top):
            return f'"$GRPO_BENCH_SOURCE"/{shlex.quote(folder.relative_to(top).as_posix())}'
    return shlex.quote(f"{name}=={version}")


def init_datasets() -> str:
    return (_SHELL.format(what="Fetches policy, tasks and images, and verifies them.")
            + ': "${GRPO_BENCH_SITE:?should name a site file}"\n'
              '"${VENV:-.venv}/bin/grpo-bench" artifacts fetch --site "$GRPO_BENCH_SITE"\n')


def run_and_time(run: Candidate, division: str) -> str:
    profile = shlex.quote(run.started["profile"])
    options = (f'--profile {profile} ${{REGISTRY:+--registry "$REGISTRY"}} --site "$GRPO_BENCH_SITE" '
               f'--division {division}')
    return (_SHELL.format(what="One run, timed by its own log.")
            + ': "${GRPO_BENCH_SITE:?should name a site file}"\n'
              f'GRPO_BENCH="${{VENV:-.venv}}/bin/grpo-bench"\n"$GRPO_BENCH" preflight {options}\n'
              f'exec "$GRPO_BENCH" run {options} ${{SEED:+--seed "$SEED"}}\n')
