"""Where workers sit: what each group needs, and what the hardware makes of it.

A plugin says itself what its workers need; the hardware knows the machine and nothing of plugins. Where this host is
none of the machine's hosts, facts and placements are those of the machine all the same, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..contract import LaunchForm, Need, Placement, PlanError, PluginError, PolicyFacts, Role, load_object
from ..contract.hosts import Layout
from .missing import Shortage
from .parts import attributed, called, made, plain
from .plan import Part
from .resolved import Resolved

PLACED = (Role.TRAINER, Role.GENERATOR)
ROLLOUT = "rollout"


@dataclass(frozen=True)
class Placed:
    """``machine`` is what the hardware says of itself, ``form`` what a scheduler has to give for it; all of it is empty
    where it does not know."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Need] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    form: LaunchForm = field(default_factory=LaunchForm)


def place(resolved: Resolved, parts: Mapping[Role, Part], checkpoint: PolicyFacts, seed: int, lacks: Shortage,
          idle: Collection[Role] = ()) -> Placed:
    """Ask the hardware, and see whether the fabric reaches where it places. Parts that are ``idle`` need no place."""
    part, fabric = parts[Role.HARDWARE], parts[Role.FABRIC]
    needs = {role.value: _need(parts[role]) for role in PLACED if role not in idle}
    needs[ROLLOUT] = Need(resolved.profile.rollout.workers)
    machine = lacks.ask(lambda: made(part, checkpoint, resolved, seed), called(part))
    if machine is None:
        return Placed(needs=needs)
    facts = lacks.ask(lambda: _facts(part, machine), called(part), instead=lambda error: plain(error.facts)) or {}
    placements = lacks.ask(lambda: _placements(part, machine, needs), called(part)) or {}
    hosts = Layout(placements).hosts
    if len(hosts) > 1 and not fabric.descriptor.capabilities.hosts:
        raise PlanError(f"{called(fabric)} starts workers on one host only, and they are placed on {len(hosts)}",
                        hint="choose a fabric that reaches other hosts: see fabric.use")
    for role in PLACED:
        spread = set(placements[role.value].nodes) if role.value in placements else set()
        if len(spread) > 1 and parts[role].descriptor.capabilities.one_host:
            raise PlanError(f"{called(parts[role])} needs all its workers on one host, and they are placed on "
                            f"{len(spread)}", hint=f"ask for fewer: see {role.value}.workers")
    return Placed(facts, needs, placements, _form(part, machine))


def _form(part: Part, machine: Any) -> LaunchForm:
    with attributed(part.role, part.descriptor):
        return machine.form()


def _facts(part: Part, machine: Any) -> dict[str, Any]:
    with attributed(part.role, part.descriptor):
        return plain(machine.describe())


def _placements(part: Part, machine: Any, needs: Mapping[str, Need]) -> dict[str, Placement]:
    with attributed(part.role, part.descriptor):
        placements = dict(machine.place(needs))
        if left_out := sorted(needs.keys() - placements.keys()):
            raise PluginError(f"place() left out {', '.join(left_out)}")
    if not needs[ROLLOUT].workers:
        beside = placements[Role.GENERATOR.value]
        placements[ROLLOUT] = replace(placements[ROLLOUT], workers=beside.workers, spares=beside.spares,
                                      nodes=tuple(first for first, *_ in beside.hosts))
    return placements


def _need(part: Part) -> Need:
    """What a part's workers need; 0 of them where its settings leave the number to the hardware."""
    if part.descriptor.needs is not None:
        with attributed(part.role, part.descriptor):
            return load_object(part.descriptor.needs)(part.config)
    wanted = getattr(part.config, "workers", 0)
    return Need(wanted if isinstance(wanted, int) else 0)
