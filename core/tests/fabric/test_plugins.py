"""The fabrics as plugins: found by name, settings checked, handles made from a context."""

import asyncio
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

import grpo_bench.fabric
from grpo_bench.contract import Placement, PluginContext, PolicyFacts, Role, load_object
from grpo_bench.engine.clock import RealClock
from grpo_bench.fabric import kit


def test_the_public_names():
    assert grpo_bench.fabric.__all__ == [
        "InlineConfig", "InlineFabric", "LocalConfig", "LocalFabric", "inline", "local", "make_inline",
        "make_local", "task_stacks"]
    assert kit.__all__ == [
        "GroupSeat", "HostClock", "LOOPBACK", "Seat", "SeatedFabric", "SeatedGroup", "Station", "answer_to",
        "pack_request", "read_answer", "refusal", "variables", "within_start", "worker_name"]


@pytest.mark.parametrize(("name", "config"), [("inline", {"serialise": True}), ("local", {"grace_s": 1.0})])
def test_an_entry_point_leads_to_a_working_fabric(spec, tmp_path, name, config):
    (point,) = entry_points(group=Role.FABRIC.entry_point_group, name=name)
    plugin = point.load()
    assert (plugin.name, plugin.role, plugin.stand_in) == (name, Role.FABRIC, False)
    no_fabric: Any = None
    context = PluginContext(plugin.config(**config), no_fabric, Placement(), tmp_path,
                            PolicyFacts(Path("none"), 1, 1), 0, True, RealClock(), structlog.get_logger())

    async def main():
        fabric = load_object(plugin.factory)(context)
        group = await fabric.start_group(spec())
        assert await group.call(0, "add", 1, 2) == 3
        await fabric.close()
    asyncio.run(main())


@pytest.mark.parametrize(("name", "config"), [
    ("inline", {"serialize": True}), ("local", {"grace_s": 0}), ("local", {"grace_s": float("nan")})])
def test_bad_settings_are_refused(name, config):
    with pytest.raises(ValidationError):
        getattr(grpo_bench.fabric, name).config(**config)
