"""Settings of the generator."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grpo_bench.contract import Settings


class TorchGeneratorConfig(Settings):
    workers: Annotated[int, Field(ge=0, le=256, strict=True)] = 0
    """Engines, each a process with its own copy of the weights; 0: as many as suits the machine."""
    slots: Annotated[int, Field(ge=1, le=65_536, strict=True)] = 256
    """Sequences one engine keeps in its cache: those being sampled, and idle ones that a next turn may extend."""
    prompt_tokens: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 2048
    """New prompt tokens of one batch step at most; longer prompts are spread over steps."""
    gather_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0.2
    """Seconds an engine that runs nothing waits for the next of the rollouts that are busy in their sandboxes, so that
    they run together; 0: it takes each request at once."""
