"""The descriptors of the two built-in fabrics, their settings, and how they are made."""

from __future__ import annotations

from pydantic import Field

from grpo_bench.contract import Plugin, PluginContext, Role
from grpo_bench.contract.settings import Settings

from ._inline import InlineFabric
from ._local import LocalFabric


class InlineConfig(Settings):
    serialise: bool = False
    """Pass every value through the codec, to catch what could not cross a process boundary."""


class LocalConfig(Settings):
    grace_s: float = Field(default=5.0, gt=0, le=3600, allow_inf_nan=False)
    """Seconds a worker gets for its ``close``, and its process again between SIGTERM and SIGKILL."""


def make_inline(context: PluginContext) -> InlineFabric:
    return InlineFabric(context.clock, context.logger, serialise=context.config.serialise)


def make_local(context: PluginContext) -> LocalFabric:
    return LocalFabric(context.run_folder, context.clock, context.logger, grace_s=context.config.grace_s)


inline = Plugin(name="inline", role=Role.FABRIC, summary="workers are objects of the engine's own process",
                config=InlineConfig, factory="grpo_bench.fabric:make_inline")
local = Plugin(name="local", role=Role.FABRIC, summary="workers are processes of this machine",
               config=LocalConfig, factory="grpo_bench.fabric:make_local")
