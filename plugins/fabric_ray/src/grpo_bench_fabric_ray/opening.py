"""Whether a cluster has what is placed on it: waited for, with word of how far it is, then looked at host by host.

Hosts that join late are waited for; one that was there and died is not: a spare takes its place at once where the
placements have one. What is missing in the end is one PlanError. Then every host is asked, by a task of its own,
whether it sees the run's folder and has this software.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_bench.contract import Placement, PlanError

from .aside import aside
from .cluster import Cluster
from .hosts import Host, absent, counts, lives, some, successor, unfit, wanted

LOOK_S = 1.0
SAY_S = 10.0
PROBE_S = 60.0
"""Time that a host that is there has for its answer, or what is left of the waiting time where that is more."""
_PARTS = ("grpo-bench", "grpo-bench-fabric-ray")


class Opening:
    """``logs`` is in the run's folder, which all hosts have to see."""

    def __init__(self, cluster: Cluster, placements: Mapping[str, Placement], logs: Path,
                 note: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._placements = placements
        self._logs = logs
        self._note = note

    async def done(self, wait_s: float) -> tuple[Mapping[str, Host], dict[str, str]]:
        """The hosts, and for those that are gone the one that stands in."""
        until = asyncio.get_running_loop().time() + (wait_s if self._cluster.own is None else 0.0)
        while True:
            hosts, moved = await self._waited_for(until)
            asked = [hosts[name] for name in self._named(moved) if lives(name, hosts)]
            left_s = max(PROBE_S, until - asyncio.get_running_loop().time())
            wrong = await self._looked_at(asked, left_s)
            if not wrong:
                break
            now = await self._hosts()
            if all(lives(host.name, now) for host in asked):
                raise PlanError(f"the Ray cluster at {self._cluster.address} cannot run this: {'; '.join(wrong)}")
        for lost, instead in moved.items():
            self._note("host_replaced", f"host {lost} is gone; {instead}, which was kept free, takes its place")
        return hosts, moved

    async def _waited_for(self, until: float) -> tuple[Mapping[str, Host], dict[str, str]]:
        here, loop = self._cluster.here, asyncio.get_running_loop()
        said, said_at = "", loop.time()
        while True:
            hosts = await self._hosts()
            over = loop.time() >= until
            moved = stand_ins(self._placements, hosts, here, late=over)
            placements = {role: _moved(placement, moved) for role, placement in self._placements.items()}
            wrong, away = unfit(placements, hosts, here), absent(placements, hosts, here)
            if not wrong and not away:
                break
            if wrong or over:
                if away:
                    wrong.insert(0, f"{len(away)} of {len(wanted(placements.values(), here))} hosts are not there: "
                                    f"{some(away)}")
                raise PlanError(f"the Ray cluster at {self._cluster.address} cannot hold this run: {'; '.join(wrong)}",
                                hint=self._hint() if away else "")
            now = counts(placements, hosts, here)
            if now != said or loop.time() - said_at >= SAY_S:
                self._note("cluster_wait", f"waiting for the Ray cluster: {now}")
                said, said_at = now, loop.time()
            await asyncio.sleep(LOOK_S)
        return hosts, moved

    def _hint(self) -> str:
        if self._cluster.own is not None:
            return "the run started a cluster of this machine alone; name another with fabric.address or RAY_ADDRESS"
        return "fabric.wait_s says how long hosts are waited for; a host is named by its label grpo-bench-node"

    async def _hosts(self) -> Mapping[str, Host]:
        try:
            return await self._cluster.hosts()
        except TimeoutError:
            raise PlanError(f"the Ray cluster at {self._cluster.address} does not answer any more") from None

    def _named(self, moved: Mapping[str, str]) -> list[str]:
        """Hosts that are used, and those that may be."""
        used = {moved.get(name, name) for name in wanted(self._placements.values(), self._cluster.here)}
        spares = [spare for placement in self._placements.values() for spare in placement.spares.values()]
        return sorted(used.union(*spares))

    async def _looked_at(self, hosts: list[Host], deadline_s: float) -> list[str]:
        """What is wrong on them, one line each."""
        self._logs.mkdir(parents=True, exist_ok=True)
        token = self._logs / f".seen-{secrets.token_hex(8)}"
        token.write_text(token.name)
        try:
            found = await asyncio.gather(*(self._looked_at_one(host, token, deadline_s) for host in hosts))
        finally:
            token.unlink()
        silent = [host.name for host, lines in zip(hosts, found) if lines is None]
        known = [f"{len(silent)} hosts do not answer: {some(silent)}"] if silent else []
        return [*known, *(line for lines in found for line in lines or ())]

    async def _looked_at_one(self, host: Host, token: Path, deadline_s: float) -> list[str] | None:
        """What is wrong there; None where it does not answer."""
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        def asking() -> Any:
            return ray.remote(look).options(
                num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(host.node, soft=False),
            ).remote(str(token), _PARTS)

        try:
            async with asyncio.timeout(deadline_s):
                seen = await (await aside(deadline_s, asking))
        except TimeoutError:
            return None
        except RayError as error:
            return [f"host {host.name} cannot run this software: {str(error).strip().splitlines()[-1]}"]
        return differences(host.name, token, seen, look(str(token), _PARTS))


def look(token: str, parts: tuple[str, ...]) -> dict[str, Any]:
    """What a host sees: the text of a file, its Python, and the versions of these distributions."""
    text = ""
    with suppress(OSError):
        text = Path(token).read_text()
    return {"text": text, "python": ".".join(map(str, sys.version_info[:2])),
            "versions": {name: version(name) for name in parts}}


def differences(name: str, token: Path, seen: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """What keeps a host that saw ``seen`` from working for an engine that saw ``mine``."""
    lines = []
    if seen["text"] != mine["text"]:
        lines.append(f"host {name} does not see the run's folder {token.parent.parent}: it has to be on a file system "
                     "that all hosts share")
    if seen["python"] != mine["python"]:
        lines.append(f"host {name} has Python {seen['python']}, the engine {mine['python']}")
    lines += [f"host {name} has {part} {seen['versions'][part]}, the engine {own}"
              for part, own in mine["versions"].items() if seen["versions"][part] != own]
    return lines


def stand_ins(placements: Mapping[str, Placement], hosts: Mapping[str, Host], here: str, *,
              late: bool) -> dict[str, str]:
    """Spares for hosts that died, and where it is ``late`` for those that never came, by the host they stand in for."""
    moved: dict[str, str] = {}
    for name in wanted(placements.values(), here):
        if lives(name, hosts) or not (late or name in hosts):
            continue
        for placement in placements.values():
            found = successor(name, replace(placement, nodes=()), hosts, moved.values(), {})
            if found is not None:
                moved[name] = found
                break
    return moved


def _moved(placement: Placement, moved: Mapping[str, str]) -> Placement:
    return replace(placement, nodes=tuple(moved.get(name, name) for name in placement.nodes))
