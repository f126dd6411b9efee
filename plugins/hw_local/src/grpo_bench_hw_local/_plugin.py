"""The descriptor and the settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grpo_bench.contract import Capabilities, Plugin, Role, Settings

Workers = Annotated[int, Field(ge=0, le=256, strict=True)]


class LocalConfig(Settings):
    """How this machine's cores are shared out. A plugin that asks for a number of workers itself gets that number."""

    trainer: Workers = 0
    """Trainer ranks; 0: one per available core, ``threads`` considered, at most 4."""
    generator: Workers = 0
    """Generator engines; 0: as for the trainer."""
    threads: Annotated[int, Field(ge=1, le=256, strict=True)] = 1
    """Threads of each worker's numeric libraries. Small policies run fastest with one."""


plugin = Plugin(
    name="local",
    role=Role.HARDWARE,
    summary="this machine as one node",
    config=LocalConfig,
    factory="grpo_bench_hw_local.local:create",
    capabilities=Capabilities(deterministic=True),
)
