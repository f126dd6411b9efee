"""Whether the agent can work, and what it is: settings against what its environment holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import Missing, PlanError, Site

from . import prompts
from .benchmark import COMMAND_TIMEOUT_S, differences
from .config import OpenHandsConfig

_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")


def describe(config: OpenHandsConfig, site: Site) -> Mapping[str, Any]:
    """Facts for the plan; PlanError or Missing where the agent could not work so."""
    prompts.check(config)
    inventory = site.inventory
    if inventory["base_prefix"] in _SYSTEM_PREFIXES:
        raise PlanError(f"the agent's environment is built on the Python in {inventory['base_prefix']}, which cannot "
                        "be mounted over that of a sandbox", hint="build it with one that has a folder of its own, as "
                        "pyenv and uv install them: grpo-bench env build openhands --force --python PATH")
    differing = differences_of(config, inventory)
    if differing and config.tools == "benchmark-exact":
        kind = PlanError if config.command_timeout_s != COMMAND_TIMEOUT_S else Missing
        raise kind(f"the agent is not the benchmark's: {'; '.join(differing)}",
                   hint='use the versions of the lock, or set tools = "any"')
    return {
        "openhands": inventory["versions"]["openhands-ai"], "max_turns": config.max_turns,
        "agent_timeout_s": config.agent_timeout_s, "command_timeout_s": config.command_timeout_s,
        "system_template": _named(config, "system_template"), "user_template": _named(config, "user_template"),
        "templates_sha256": prompts.digests(config),
        "benchmark_agent": "the same tools and system prompt" if not differing else "; ".join(differing),
    }


def differences_of(config: OpenHandsConfig, inventory: Mapping[str, Any]) -> list[str]:
    """In words, what the agent will send that the benchmark's does not."""
    prompt = None if config.system_template else inventory["system_prompt"]["sha256"]
    found = differences(inventory["tools"], prompt)
    if config.command_timeout_s != COMMAND_TIMEOUT_S:
        found.append(f"tool execute_bash says {config.command_timeout_s} seconds (command_timeout_s), the benchmark's "
                     f"{COMMAND_TIMEOUT_S}")
    return found


def _named(config: OpenHandsConfig, name: str) -> str:
    path, digest = getattr(config, name), getattr(config, f"{name}_sha256")
    return f"{path}{f' ({digest[:12]})' if digest else ''}" if path else "built in"
