"""What is looked at before a run: the environment of the engines, as its inventory tells of it."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_bench.contract import Finding, PreflightContext

from .config import VllmGeneratorConfig
from .fits import size

_WHY = "every engine runs in it"


def preflight(config: VllmGeneratorConfig, context: PreflightContext) -> Iterator[Finding]:
    """The descriptor's ``preflight``."""
    inventory = context.site.inventory
    if not inventory:
        yield Finding("device", False, "the engines' environment is not here", unknown=True, key="generator.env",
                      why=_WHY, fix="grpo-bench env build vllm, or name a python in generator.env")
        return
    device, version = inventory["device"], inventory["versions"]["vllm"]
    if device["type"] == "none":
        yield Finding("device", False, f"vLLM {version} is built for devices that this machine does not show",
                      key="generator.env", why=_WHY,
                      fix="run where they are, or name an environment with a vLLM for CPUs")
        return
    transports = ", ".join(inventory["weight_transfer"]) or "none"
    yield Finding("device", True, f"vLLM {version} on {len(device['names'])} x {device['names'][0]} of "
                                  f"{size(min(device['memory']))}; transports of weights: {transports}")
