"""The batch script of a job: what Slurm is asked for, what was decided, and then the same lines for every job.

Those lines are ``job.sh`` beside this module. A script needs nothing of this package when it runs, and says all of what
it does to whoever reads it in the job's folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

from .form import Job

if TYPE_CHECKING:
    from grpo_bench.registry.site_tables import Launch

GIB = 2**30
HEADING = """# {name}: written by grpo-bench launch.
# shellcheck disable=SC2329  # some functions are called by traps, others on other hosts
set -euo pipefail
"""


def render(job: Job, launch: Launch, *, segments: bool) -> str:
    """The script. ``segments``: whether Slurm is new enough to know them."""
    asked = "\n".join(f"#SBATCH {line}" for line in directives(job, launch, segments=segments))
    decided = "\n".join(_decided(job, launch))
    body = (files("grpo_bench_launch_slurm") / "job.sh").read_text("utf-8")
    return f"#!/bin/bash\n{asked}\n\n{HEADING.format(name=job.name)}\n{decided}\n{body}"


def directives(job: Job, launch: Launch, *, segments: bool) -> Iterator[str]:
    """The options of the submission."""
    yield _option("job-name", job.name)
    yield _option("nodes", job.nodes)
    yield _option("ntasks-per-node", 1)
    yield "--exclusive"
    yield _option("mem", 0)
    if job.gpus and launch.gres:
        yield _option("gres", f"{launch.gres}:{job.gpus}")
    if job.segment and segments:
        yield _option("segment", job.segment)
    if job.minutes is not None:
        yield _option("time", job.minutes)
    yield _option("signal", f"B:USR1@{job.stop_s}")
    yield "--requeue" if job.requeue else "--no-requeue"
    if job.spares:
        yield "--no-kill"
    for name in ("partition", "account", "qos", "comment"):
        if (value := getattr(launch, name)) is not None:
            yield _option(name, value)
    yield from map(_quoted, launch.arguments)
    yield _option("chdir", job.folder)
    yield _option("output", job.folder / "slurm-%j.out")
    yield _option("open-mode", "append")


def _option(name: str, value: object) -> str:
    return f"--{name}={shlex.quote(str(value))}"


def _quoted(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else name


def _decided(job: Job, launch: Launch) -> Iterator[str]:
    values = {
        "purpose": job.purpose, "folder": job.folder, "script": job.script.name, "ray": _flag(job.ray),
        "gpus": job.gpus, "object_store": int(launch.object_store_gib * GIB), "start_s": job.start_s,
        "stop_signal": job.stop_signal, "requeues": _flag(job.requeue),
    }
    yield from (f"{name}={shlex.quote(str(value))}" for name, value in values.items())
    environment = [f"{name}={value}" for name, value in job.environment.items()]
    yield from _array("environment", environment)
    yield from _array("container", job.container)
    yield from _array("within", job.within)
    yield from _array("first_command", job.first_command)
    yield from _array("resume_options", job.resume_options)
    yield "setup() {"
    if job.path:
        yield f"    export PATH={shlex.quote(job.path)}:$PATH"
    yield from (f"    {line}" for line in launch.setup)
    yield "    :\n}" if not (job.path or launch.setup) else "}"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _array(name: str, words: Iterable[str]) -> Iterator[str]:
    """A bash array, one word a line where there are several. Commas are quoted: they separate nothing in bash."""
    quoted = [f"'{word}'" if "," in word and shlex.quote(word) == word else shlex.quote(word) for word in words]
    if len(quoted) < 2:
        yield f"{name}=({' '.join(quoted)})"
        return
    yield f"{name}=("
    yield from (f"    {word}" for word in quoted)
    yield ")"
