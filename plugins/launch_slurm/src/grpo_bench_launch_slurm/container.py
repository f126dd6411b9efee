"""The container of a job, as the site has it: its image, what is mounted into it, and how a process gets there.

An image brings all software of a run. A result that is to count (the closed division) is of that software and of
nothing laid over it, so what would come before it is refused here, before a job waits for its turn.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from grpo_bench.contract import InputError

if TYPE_CHECKING:
    from grpo_bench.registry import Plan
    from grpo_bench.registry.site_tables import Launch

CODE = (PurePosixPath("/opt/grpo-bench"), PurePosixPath("/etc/grpo-bench-provenance.json"))
"""Where an image has all code of a run, and what it says about itself."""
OVERLAYS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "LD_PRELOAD", "PATH", "GRPO_BENCH_ENVS")
"""Variables that put other code before what is installed."""
SCRATCH = Path("/tmp")
"""What processes of one host share, also where each is in a container of its own."""


def check(plan: Plan, launch: Launch) -> None:
    """InputError where container and runtime do not fit together, or something lies over the image of a run that is to
    count."""
    if launch.container is None and launch.runtime != "none":
        raise InputError(f"launch.runtime: {launch.runtime} starts containers, and launch.container names none",
                         hint='name the image, or set runtime = "none"')
    if launch.container is not None and launch.runtime == "none":
        raise InputError("launch.container: nothing is said to start it",
                         hint='set runtime = "pyxis" or "apptainer" in the site file')
    ruleset = plan.resolved.get("ruleset") or {}
    stand_ins = any(part.descriptor.stand_in for part in plan.parts.values())
    if launch.container is None or ruleset.get("division") != "closed" or stand_ins:
        return
    if over := list(overlays(plan.provenance, launch)):
        listed = "".join(f"\n    {line}" for line in over)
        raise InputError("a run of the closed division uses the software of its image and nothing laid over it:"
                         f"{listed}", hint="remove it, or choose --division open")


def overlays(provenance: Mapping[str, object], launch: Launch) -> Iterator[str]:
    """What would come before the software of the image, a line each."""
    for mount in launch.mounts:
        target = PurePosixPath("/", posixpath.normpath(mount.split(":")[1]).lstrip("/"))
        if hidden := [str(place) for place in CODE if target == place or target in place.parents
                      or place in target.parents]:
            yield f"launch.mounts: {mount} covers {' and '.join(hidden)}"
    for name in OVERLAYS:
        if name in launch.environment:
            yield f"launch.environment: {name} = {launch.environment[name]}"
    sources = provenance.get("sources")
    for folder, state in (sources.items() if isinstance(sources, Mapping) else ()):
        if state["dirty"] is not False:
            yield f"{folder}, which this launcher runs from, is in no state that a commit holds"


def mounts(launch: Launch, folder: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """The site's, and what else a job needs at its own place: its folder, ``files`` that its command names, scratch."""
    if launch.container is None:
        return ()
    found = list(launch.mounts)
    for path, flag in {SCRATCH: "", folder: "", **dict.fromkeys(files, ":ro")}.items():
        if not inside(path, found):
            found.append(f"{path}:{path}{flag}")
    return tuple(found)


def inside(path: Path, among: Sequence[str]) -> bool:
    """Whether the container has ``path`` at its own place by one of these mounts."""
    for mount in among:
        host, target = mount.split(":")[:2]
        if host == target and path.is_relative_to(host):
            return True
    return False


def environment(launch: Launch) -> dict[str, str]:
    """What processes in the container are told about it."""
    if launch.container is None:
        return {}
    digest = {"GRPO_BENCH_CONTAINER_DIGEST": launch.container_digest} if launch.container_digest else {}
    return {"PYTHONNOUSERSITE": "1", **digest}


def srun_options(launch: Launch, bound: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Options of each srun where that starts containers itself."""
    if launch.container is None or launch.runtime != "pyxis":
        return ()
    return (f"--container-image={launch.container}", f"--container-mounts={','.join(bound)}",
            "--no-container-mount-home", f"--container-workdir={folder}")


def prefix(launch: Launch, bound: Sequence[str], folder: Path, gpus: int) -> tuple[str, ...]:
    """What stands before a command where srun does not."""
    if launch.container is None or launch.runtime != "apptainer":
        return ()
    binds = [word for mount in bound for word in ("--bind", mount)]
    return ("apptainer", "exec", *(["--nv"] if gpus else []), "--no-home", *binds, "--pwd", str(folder),
            launch.container)
