"""What is looked at before a run: the environment of the ranks, and the policy in Megatron's form where a run has left
it behind. Neither torch nor Megatron is imported; what they are is the inventory's to say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import Finding, PreflightContext

from .cache_note import STACK, fingerprint, folder_of, place_of, refused
from .config import MegatronTrainerConfig
from .memory import size

_KEY = "trainer.cache"
_WHY = "every rank starts from it; one that another stack wrote may be read as other weights"


def preflight(config: MegatronTrainerConfig, context: PreflightContext) -> Iterator[Finding]:
    """The descriptor's ``preflight``."""
    inventory = context.site.inventory
    yield _device(inventory)
    yield from _cache(config, context, inventory.get("versions", {}))


def _device(inventory: Mapping[str, Any]) -> Finding:
    if not inventory:
        return Finding("device", False, "the ranks' environment is not here", unknown=True, key="trainer.env",
                       why="it has the libraries that train", fix="grpo-bench env build megatron, or name a python in "
                                                                  "trainer.env")
    device = inventory["device"]
    features = [name for name, there in inventory["features"].items() if there]
    return Finding("device", True, f"{len(device['names'])} x {device['names'][0]} of {size(min(device['memory']))}; "
                                   f"{', '.join(features) or 'plain torch'}")


def _cache(config: MegatronTrainerConfig, context: PreflightContext, versions: Mapping[str, str]) -> Iterator[Finding]:
    home, policy = folder_of(config.cache), context.site.policy
    yield _writable(home)
    if not policy.vocab_size or not versions:
        lacks = "the policy's checkpoint" if not policy.vocab_size else "the ranks' environment"
        yield Finding("converted policy", False, f"not looked for in {home}, without {lacks}", unknown=True, key=_KEY,
                      why=_WHY, fix="see what is missing")
        return
    context.say("reading samples of the policy's files")
    mine = fingerprint(policy.checkpoint, config.precision, {name: versions.get(name, "?") for name in STACK})
    place = place_of(home, mine)
    if not place.is_dir():
        yield _room(home, context.facts.get("trainer", {}).get("weights_bytes"))
        return
    context.say(f"reading samples of {place}")
    wrong = refused(place, mine)
    yield Finding("converted policy", wrong is None, wrong.message if wrong else f"{place} is the policy's, by "
                  + ", ".join(f"{name} {versions.get(name)}" for name in STACK), key=_KEY, why=_WHY,
                  fix=wrong.hint if wrong else "")


def _writable(home: Path) -> Finding:
    """Whether files can be made in the cache folder, or the folder itself in the nearest above it that is there."""
    there = _existing(home)
    ok = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Finding("cache", ok, f"{home} can be written" if ok else f"{there} cannot be written by this user", key=_KEY,
                   why="a lock is held there while the policy is read or converted",
                   fix="name another folder in trainer.cache")


def _room(home: Path, need: int | None) -> Finding:
    """What making it takes; None: the trainer could not say how large it is."""
    found = os.statvfs(_existing(home))
    free = found.f_bavail * found.f_frsize
    said = f"none in {home}: the first run makes it while it starts"
    if need is None:
        return Finding("converted policy", False, f"{said}, and how large it is was not told", unknown=True, key=_KEY,
                       why=_WHY, fix="see what the trainer lacks")
    return Finding("converted policy", need <= free, f"{said}, of {size(need)}; {size(free)} are free", key=_KEY,
                   why=_WHY, fix="make room, or name another folder in trainer.cache")


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if os.path.exists(place))
