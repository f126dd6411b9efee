"""What is looked at before a run: the two templates, the tools and the prompt that OpenHands sends, and which OpenHands
it is. Its version is told and not judged: what counts is what reaches the policy, and that has digests."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_bench.contract import Finding, PreflightContext

from . import prompts
from .benchmark import REVISION, TOOLS
from .config import OpenHandsConfig
from .plan import differences_of

_WHY = "what the policy is told is part of what is measured"


def preflight(config: OpenHandsConfig, context: PreflightContext) -> Iterator[Finding]:
    """The descriptor's ``preflight``."""
    for name in prompts.TEMPLATES:
        path, wrong = getattr(config, name), prompts.fault(config, name)
        known = "of the SHA-256 it should be" if getattr(config, f"{name}_sha256") else "whatever it is"
        yield Finding(name, not wrong, wrong or (f"{path}, {known}" if path else "built in"), key=f"agent.{name}",
                      why=_WHY, fix=f"set {name} to the benchmark's file" if wrong else "")
    inventory = context.site.inventory
    if not inventory:
        yield Finding("OpenHands", False, "the agent's environment is not here", unknown=True, key="agent.env",
                      why="it is what runs in every sandbox", fix="grpo-bench env build openhands, or name a python in "
                                                                  "agent.env")
        return
    versions = inventory["versions"]
    yield Finding("OpenHands", True, f"openhands-ai {versions['openhands-ai']}; the benchmark pins revision "
                                     f"{REVISION[:12]} of its fork")
    differing = differences_of(config, inventory)
    exact = config.tools == "benchmark-exact"
    yield Finding("tools", not (differing and exact), "; ".join(differing) or f"the {len(TOOLS)} of the benchmark and "
                  "its system prompt, by digest", key="agent.tools", why=_WHY, fix="use the versions of the lock")
