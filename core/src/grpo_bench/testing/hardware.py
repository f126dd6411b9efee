"""What a hardware plugin owes: facts, and a place for everybody."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..contract import Hardware, Missing, Need, Placement, Role
from ..contract.codec import pack, unpack
from .suite import Rig, Suite, demand
from .world import World

OPEN: Mapping[str, Need] = {"trainer": Need(), "generator": Need(), "rollout": Need()}
"""Needs that leave every number to the hardware."""


@dataclass
class HardwareRig(Rig):
    """``hardware`` as a plan makes it: without fabric and clock."""

    hardware: Hardware


class HardwareSuite(Suite):
    """Demands on hardware plugins."""

    role = Role.HARDWARE

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[HardwareRig]:
        yield HardwareRig(**vars(rig), hardware=world.make_to_ask(rig.descriptor, rig.config))

    @demand
    async def test_facts_are_json(self, rig: HardwareRig) -> None:
        """Plan and provenance show and keep them, also where this host is none of the machine's."""
        try:
            facts = dict(rig.hardware.describe())
        except Missing as error:
            facts = dict(error.facts)
        assert facts and json.loads(json.dumps(facts)) == facts

    @demand
    async def test_everybody_gets_a_place(self, rig: HardwareRig) -> None:
        """Each role that is asked for is placed, with at least one worker and one thread each; 0 means that the
        hardware chooses."""
        for needs in (OPEN, {"trainer": Need()}, {"generator": Need(1), "rollout": Need()}):
            placed = rig.hardware.place(needs)
            assert needs.keys() <= placed.keys(), f"left out: {sorted(needs.keys() - placed.keys())}"
            for place in placed.values():
                assert isinstance(place, Placement)
                assert place.workers >= 1 and place.threads >= 1

    @demand
    async def test_wanted_numbers_are_kept(self, rig: HardwareRig) -> None:
        """A plugin that asks for a number of workers gets it, or an error; another number would change results."""
        for count in (1, 2, 3):
            try:
                placed = rig.hardware.place(dict.fromkeys(OPEN, Need(count)))
            except Exception:
                continue  # it says that there is no room
            assert {role: placed[role].workers for role in OPEN} == dict.fromkeys(OPEN, count)

    @demand
    async def test_places_cross_to_workers(self, rig: HardwareRig) -> None:
        """Placements travel with worker groups; environment variables are text."""
        for place in rig.hardware.place(OPEN).values():
            assert unpack(pack(place)) == place
            assert all(isinstance(text, str) for item in place.env.items() for text in item)

    @demand
    async def test_a_scheduler_can_be_asked_for_it(self, rig: HardwareRig) -> None:
        """Jobs are submitted for the machine that the plan shows."""
        form = rig.hardware.form()
        assert form.nodes >= 1 and form.gpus >= 0 and form.segment >= 0
        assert all(isinstance(text, str) for item in form.env.items() for text in item)

    @demand
    async def test_the_same_needs_get_the_same_places(self, rig: HardwareRig) -> None:
        """The plan that was looked at is the one that runs."""
        assert dict(rig.hardware.place(OPEN)) == dict(rig.hardware.place(OPEN))
