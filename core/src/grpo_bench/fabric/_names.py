"""What every fabric checks about a group before it starts one or looks one up."""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from grpo_bench.contract import DeadlineExceeded, GroupSpec, PlanError, WorkerGroup

from ._calls import within

T = TypeVar("T")


def check_new_group(spec: GroupSpec, groups: Mapping[str, WorkerGroup]) -> None:
    """PlanError unless a group of this spec can be started beside ``groups``."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", spec.name):
        raise PlanError(f"{spec.name!r} is no name for a worker group", hint="use letters, digits, '_', '-' and '.'")
    if spec.name in groups:
        raise PlanError(f"there is a worker group {spec.name!r} already")
    if ":" not in spec.target:
        raise PlanError(f"the target {spec.target!r} of group {spec.name} is not of the form module:function")
    if spec.placement.workers < 1:
        raise PlanError(f"group {spec.name} has {spec.placement.workers} workers; it needs at least one")
    if spec.colocate is not None and group_named(spec.colocate, groups).size < spec.placement.workers:
        raise PlanError(f"group {spec.name} has more workers than {spec.colocate}, whose processes it is to share")


def group_named(name: str, groups: Mapping[str, T]) -> T:
    """The group; PlanError names the choices and the nearest."""
    if name in groups:
        return groups[name]
    near = difflib.get_close_matches(name, groups, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"running: {', '.join(groups) or 'none'}"
    raise PlanError(f"there is no worker group {name!r}", hint=hint)


@asynccontextmanager
async def within_start(spec: GroupSpec) -> AsyncIterator[None]:
    """The group's start deadline."""
    try:
        async with within(spec.start_deadline_s, f"the start of worker group {spec.name}"):
            yield
    except DeadlineExceeded as error:
        error.hint = error.hint or "its start_deadline_s is the limit; what its processes wrote is in workers/"
        raise
