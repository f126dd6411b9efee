"""Settings of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from grpo_bench.contract import Settings
from pydantic import Field, model_validator

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class OpenHandsConfig(Settings):
    """Settings of the OpenHands agent."""

    max_turns: Annotated[int, Field(ge=1, le=1000, strict=True)] = 30
    """Replies of the policy in one rollout, and steps of OpenHands: of several calls in one reply each is a step."""
    agent_timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 1800.0
    """Seconds one rollout of the agent may take; then its whole tree is killed and the rollout is no sample."""
    command_timeout_s: Annotated[int, Field(ge=1, le=86_400, strict=True)] = 60
    """Seconds that one command of the policy may take, whatever it asks for; the policy is told in the description of
    the tool, so that another value is another tool."""
    system_template: Path | None = None
    """File with the system prompt as a Jinja template; None: the one OpenHands has for long tasks."""
    system_template_sha256: Digest | None = None
    """What that file must be, by its hash; None: whatever it is."""
    user_template: Path | None = None
    """File with the first message as a Jinja template over ``instance``, ``workspace_path`` and ``workspace_dir_name``;
    None: the one of this plugin."""
    user_template_sha256: Digest | None = None
    """What that file must be, by its hash; None: whatever it is."""
    tools: Literal["benchmark-exact", "any"] = "any"
    """``benchmark-exact``: tools and system prompt that differ from the benchmark's are an error; ``any``: a remark."""
    fork: Literal["auto", "never"] = "auto"
    """``auto``: import OpenHands once per worker and fork it into each sandbox, where that can be done; ``never``: each
    rollout imports it for itself."""

    @model_validator(mode="after")
    def _digests_have_files(self) -> Self:
        for name in ("system_template", "user_template"):
            if getattr(self, f"{name}_sha256") is not None and getattr(self, name) is None:
                raise ValueError(f"{name}_sha256 says what {name} must be, but there is no {name}")
        return self
