"""What can be set: in which division a run competes, and who submits it, which its events cannot know."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo_bench.contract import Settings

Text = Annotated[str, Field(min_length=1)]


class RulesetConfig(Settings):
    division: Literal["closed", "open"] = "closed"
    """closed: as the reference, in everything that decides what is learned; open: its own way to the same target."""


class MllogConfig(Settings):
    org: Text = "none"
    """Who submits the run; none: nobody does."""
    platform: Text | None = None
    """The system it ran on, as it is to be called; None: by the profile's name."""
    status: Literal["onprem", "cloud", "preview", "research"] | None = None
    """Availability of the system; None: not said."""
    poc_name: Text | None = None
    """Point of contact; None: not said."""
    poc_email: Text | None = None
    """Its address; None: not said."""
    caches_cleared: bool = False
    """Whether whoever launched the run had cleared the machines' caches before."""
