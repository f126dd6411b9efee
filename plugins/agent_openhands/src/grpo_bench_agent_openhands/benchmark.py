"""What the benchmark's agent sends, by digest: the tools and the system prompt of the OpenHands that it pins, taken
from a request of that revision of its fork, with commands of at most 60 seconds.

A tool's digest is that of :func:`grpo_bench_agent_openhands.inventory.digest`; the prompt's is over its text as
rendered.
"""

from __future__ import annotations

from collections.abc import Mapping

REVISION = "0d766ad06b2be64a42e6f0175b9ebcc4a06599d9"
TOOLS: Mapping[str, str] = {
    "execute_bash": "641b555d0056fc5b43e55c17ffa744887835d8ee55d3598e1850a55bc7595fe1",
    "think": "6366dd459e63d6fa486ded5dc13307f558ecb790a4e85692815810214be1d602",
    "finish": "3879fd696325f68981a5fb272fcda6524ffa3b03f77fa73ede74f9426c4824d3",
    "task_tracker": "a01d346553a280aea7f01900ddcca7d0be2919bbc399de5e3d8afa436c2ff4a1",
    "str_replace_editor": "dd56a537979e413afae5c05ca772be4a907e5729edb4fd2cc4d33cf2c0ce2f85",
}
SYSTEM_PROMPT = "65f4e0dd187bcb78d12a3a2537b7c59febc49aaf262a068abfc7b092d0ed6f17"
COMMAND_TIMEOUT_S = 60


def differences(tools: Mapping[str, str], system_prompt: str | None) -> list[str]:
    """In words, what of this is not the benchmark's; None for a prompt that is not known."""
    found = [f"tool {name} is missing" for name in TOOLS if name not in tools]
    found += [f"tool {name} is not one of the benchmark's" for name in tools if name not in TOOLS]
    found += [f"tool {name} has digest {digest[:12]}, the benchmark's {TOOLS[name][:12]}"
              for name, digest in tools.items() if TOOLS.get(name, digest) != digest]
    if list(tools) != list(TOOLS) and sorted(tools) == sorted(TOOLS):
        found.append(f"the tools come as {', '.join(tools)}, the benchmark's as {', '.join(TOOLS)}")
    if system_prompt not in (None, SYSTEM_PROMPT):
        found.append(f"the system prompt has digest {system_prompt[:12]}, the benchmark's {SYSTEM_PROMPT[:12]}")
    return found
