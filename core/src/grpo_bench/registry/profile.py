"""What a profile is once its layers are merged.

The core knows the sections that belong to every run and the roles that plugins fill. A role's section is open: ``use``
names the plugin, the other keys are that plugin's, and its own model checks them when the plan is made.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ..contract import (
    CheckpointSettings, GrpoSettings, LimitSettings, PolicySettings, RefitSettings, Role, RolloutSettings,
    SamplingSettings, ScheduleSettings, Settings, ValidationSettings,
)

MAX_SEED = 2**32 - 1
RANDOM = "random"
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, strict=True)]


class Section(Settings):
    """A role's part of a profile: the plugin chosen and the keys meant for it."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    use: Annotated[str, Field(min_length=1)]
    """Name of the plugin that takes the role."""
    env: Annotated[str, Field(min_length=1)] | None = None
    """Environment of its workers, by name or as the path of a python; None: the plugin's own, or the engine's."""

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys, as merged from the registry."""
        return dict(self.model_extra or {})


class Profile(Settings):
    """One way to run: settings of the core, and one plugin for each role."""

    description: str = ""
    """One line for ``profiles list``."""
    seed: Seed | Literal["random"] = 0
    """Root of all random streams, unless the command line gives another; random: drawn by the operating system when the
    plan is made, and recorded."""
    deterministic: bool | Literal["auto"] = False
    """Equal seeds give equal events and weights, bit for bit: true is refused where a part cannot promise that, auto is
    true where all can."""
    policy: PolicySettings
    grpo: GrpoSettings
    schedule: ScheduleSettings = ScheduleSettings()
    sampling: SamplingSettings = SamplingSettings()
    validation: ValidationSettings = ValidationSettings()
    limits: LimitSettings = LimitSettings()
    refit: RefitSettings = RefitSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    rollout: RolloutSettings = RolloutSettings()
    trainer: Section
    generator: Section
    environment: Section
    agent: Section
    hardware: Section
    fabric: Section
    ruleset: Section | None = None
    observers: tuple[Section, ...] = ()
    """Plugins that watch the run, besides the core's own."""

    @property
    def sections(self) -> dict[Role, Section]:
        """The section of each role that this profile fills, observers left out."""
        found = {role: getattr(self, role.value) for role in Role if role is not Role.OBSERVER}
        return {role: section for role, section in found.items() if section is not None}
