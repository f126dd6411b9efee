"""What is looked at before a run: the files of tasks, the image of every task, and a sandbox for real.

Rows are read and parsed one and all; the hash of a file tells its order as well. Of a SIF image the header, the table
and the head of its filesystem are read, by many threads, since hundreds lie on a file system far away.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from grpo_bench.contract import Finding, GrpoBenchError, Missing, PreflightContext
from grpo_bench_sandbox import Backend, SandboxError, SandboxSpec, backend
from grpo_bench_sandbox.sif import SifError, check_squashfs, squashfs_of, this_machine

from . import files
from .config import R2EGymConfig
from .images import TaskImage
from .images_survey import Survey, named, survey
from .rows import Place, RowError, scan

_THREADS = 32
_FUSE = "/dev/fuse"
_EVERY = 50
"""Rows or images between two words of progress."""
_DATA = "the tasks and their order are part of what is measured"
_IMAGES = "a rollout without its task's image is no sample"


def preflight(config: R2EGymConfig, context: PreflightContext) -> Iterator[Finding]:
    """The descriptor's ``preflight``."""
    places: dict[str, list[Place]] = {}
    for split in files.SPLITS:
        yield from _file(config, context, split)
        if getattr(config, split).is_file():
            places[split] = []
            yield _rows(config, context, split, places[split])
    if len(places) == len(files.SPLITS):
        yield _disjoint(places["train"], places["validation"])
    tasks = {place.instance_id: place for split in places.values() for place in split}
    found = survey(config.images, tasks.values())
    yield from _images(found, len(tasks), context.say)
    yield from _fuse(config, found)
    yield _sandbox(config, context, next(iter(found.found.values()), None))


def _file(config: R2EGymConfig, context: PreflightContext, split: str) -> Iterator[Finding]:
    """The file's size and hash."""
    path, key = getattr(config, split), f"environment.{split}"
    rule, fix = f"{split} tasks", "grpo-bench artifacts fetch, or set the path to the right file"
    if not path.is_file():
        line = next(line for line in files.absent(config) if line.startswith(rule))
        yield Finding(rule, False, line.removeprefix(f"{rule}: "), key=key, why=_DATA, fix=fix)
        return
    size = path.stat().st_size
    wrong, said = files.fault(config, split, size), ""
    if not wrong:
        said = context.digests([path])[path]
        wrong = files.fault(config, split, size, said)
    yield Finding(rule, not wrong, wrong or f"{path}, {size:,} bytes, SHA-256 {said}", key=key, why=_DATA, fix=fix)


def _rows(config: R2EGymConfig, context: PreflightContext, split: str, places: list[Place]) -> Finding:
    """Every row parses. Adds to ``places``."""
    wrong: list[str] = []
    for number, row in enumerate(scan(getattr(config, split)), 1):
        if isinstance(row, RowError):
            wrong.append(row.message)
        else:
            places.append(row)
        if number % _EVERY == 0:
            context.say(f"reading {split} tasks: {number} rows")
    rule, key = f"{split} rows", f"environment.{split}"
    if wrong:
        return Finding(rule, False, f"{len(wrong)} of {len(wrong) + len(places)} are wrong: {named(wrong)}", key=key,
                       why="a row that cannot be read is no task", fix="fetch the file again")
    return Finding(rule, True, f"{len(places)} in an order of hash {order_of(places)[:12]}", key=key)


def order_of(places: Iterable[Place]) -> str:
    """SHA-256 over the instance ids, one a line, in order."""
    return hashlib.sha256("".join(f"{place.instance_id}\n" for place in places).encode()).hexdigest()


def _disjoint(train: list[Place], validation: list[Place]) -> Finding:
    both = sorted({place.instance_id for place in train} & {place.instance_id for place in validation})
    return Finding("disjoint", not both, f"{named(both)} are in both files" if both else "no task is in both files",
                   key="environment.validation", why="a policy that trained on a task says nothing by solving it",
                   fix="name two files that have no task in common")


def _images(found: Survey, tasks: int, say: Callable[[str], None]) -> Iterator[Finding]:
    for line in found.lines():
        rule, _, message = line.partition(": ")
        yield Finding(rule, False, message, key="environment.images", why=_IMAGES,
                      fix="grpo-bench artifacts fetch, or grpo-bench tasks images build")
    sifs = [image.image.path for image in found.found.values() if image.image.root == "sif" and image.image.path]

    def fault(number: int) -> str:
        try:
            check_squashfs(sifs[number], squashfs_of(sifs[number]))
        except SifError as error:
            return error.message
        finally:
            if number % _EVERY == 0:
                say(f"reading images: {number} of {len(sifs)}")
        return ""

    with ThreadPoolExecutor(_THREADS) as pool:
        wrong = list(filter(None, pool.map(fault, range(len(sifs)))))
    if wrong:
        yield Finding("SIF images", False, f"{len(wrong)} of {len(sifs)} cannot be used: {named(wrong)}",
                      key="environment.images", why=_IMAGES, fix=f"fetch them again, those for {this_machine()}")
    elif found.found and len(found.found) == tasks:
        kinds = ", ".join(f"{count} of root {kind!r}" for kind, count in found.kinds.items())
        yield Finding("images", True, f"all {tasks} tasks have one that this machine ({this_machine()}) can use: "
                                      f"{kinds}", key="environment.images")


def _fuse(config: R2EGymConfig, found: Survey) -> Iterator[Finding]:
    """Opened as whoever mounts a SIF image does."""
    if config.backend != "apptainer" and "sif" not in found.kinds:
        return
    try:
        os.close(os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        yield Finding(_FUSE, False, f"cannot be opened: {error.strerror}", why="SIF images are mounted through it",
                      fix="start the container with --device /dev/fuse, or as a user that may open it")
    else:
        yield Finding(_FUSE, True, "can be opened")


def _sandbox(config: R2EGymConfig, context: PreflightContext, image: TaskImage | None) -> Finding:
    """One is opened on a task's image, looked into, and closed."""
    rule, key, why = "sandbox", "environment.backend", "every rollout takes place in one"
    limit_s, fix = context.site.limits.sandbox_start_s, "grpo-bench sandbox check shows what this machine can give"
    try:
        chosen = backend(config.backend)
    except Missing as error:
        return Finding(rule, False, error.message, key=key, why=why, fix=fix)
    try:
        if image is None:
            return Finding(rule, False, f"{chosen.name} could be used; without an image it cannot be tried", key=key,
                           why=why, unknown=True, fix="see images")
        wrong = asyncio.run(_tried(chosen, config, image, limit_s))
    except TimeoutError:
        return Finding(rule, False, f"none was open within {limit_s:g} s", key=key, why=why, fix=fix)
    except (GrpoBenchError, SandboxError, OSError) as error:
        return Finding(rule, False, f"cannot be opened: {error}", key=key, why=why, fix=fix)
    return Finding(rule, not wrong, wrong or f"{chosen.name} opens one on a task's image", key=key, why=why, fix=fix)


async def _tried(chosen: Backend, config: R2EGymConfig, image: TaskImage, limit_s: float) -> str:
    """What is wrong with a sandbox of the image; empty: nothing."""
    spec = SandboxSpec(image=image.image, workdir=image.workdir, source=image.source)
    async with asyncio.timeout(limit_s):
        sandbox = await chosen.open(spec, config.limits)
    try:
        done = await sandbox.exec(["test", "-d", ".git"], timeout_s=config.command_timeout_s)
    finally:
        await sandbox.close()
    return "" if done.exit_code == 0 else f"one opened without the task's repository: {done.stderr[-200:]}"
