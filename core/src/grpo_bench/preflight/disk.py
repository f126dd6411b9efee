"""Room for what a run writes. By far the most of it are checkpoints: a deferred evaluation wants the weights after each
step that is due, all of them kept until training is over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..contract import Finding, Role
from ..engine import due_steps
from ..registry import Plan

JOURNAL_BYTES = 2**30
"""Left for events, trajectories, traces and logs."""


def findings(plan: Plan, facts: Mapping[str, Any], runs: Path) -> Iterator[Finding]:
    folder = existing(runs)
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    count, each = checkpoints(plan), weights_bytes(plan, facts)
    why = "a checkpoint that cannot be written ends the run"
    if each is None:
        yield Finding("disk space", False, f"{size(free)} are free at {folder}; {count} checkpoints are kept, and how "
                                           "large one is cannot be told without the policy", why=why, unknown=True,
                      fix="see policy.checkpoint", key="policy.checkpoint")
        return
    need = count * each + JOURNAL_BYTES
    kept = f"{count} checkpoint{'s' * (count != 1)} of {size(each)}" if count else "no checkpoint"
    yield Finding("disk space", need <= free, f"{kept} and {size(JOURNAL_BYTES)} for the record are {size(need)}; "
                                              f"{size(free)} are free at {folder}", why=why,
                  fix=f"make room for {size(need)}, or name another folder with --runs", key="checkpoint")


def checkpoints(plan: Plan) -> int:
    """How many the run folder holds at most, at the same time."""
    kept = plan.profile.checkpoint
    due = due_steps(plan) if plan.profile.validation.deferred else []
    final = kept.final and plan.profile.grpo.max_steps not in due
    return len(due) + (kept.keep + 1 if kept.period else 0) + final


def weights_bytes(plan: Plan, facts: Mapping[str, Any]) -> int | None:
    """Bytes of one checkpoint of the weights: what the trainer says, else what the policy has now; None: not known.
    Those of training states are larger by what the optimizer keeps, which nobody says."""
    said = facts.get(Role.TRAINER.value, {}).get("weights_bytes")
    if isinstance(said, int):
        return said
    there = sum(file.stat().st_size for file in plan.checkpoint.checkpoint.glob("*.safetensors"))
    return there if there or plan.parts[Role.TRAINER].descriptor.stand_in else None


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there for this user."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if os.path.exists(place))


def size(count: float) -> str:
    """Bytes as text, in the units that disks are sold in."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1e6:.1f} MB"
