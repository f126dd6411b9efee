"""What the environment of the agent has: called under its interpreter, returns JSON data, starts no agent."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from importlib import metadata
from typing import Any

_PACKAGES = ("openhands-ai", "openhands-aci", "litellm", "openai", "libtmux")
_COMMAND_TIMEOUT_S = 60
"""Of the benchmark, whose tools these are compared with."""


def inventory() -> dict[str, Any]:
    """Versions, the prefixes to mount, and the digests of what the agent sends: tools by name, system prompt."""
    from .inside import codeact

    tools, prompt = codeact.offered(_COMMAND_TIMEOUT_S)
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _PACKAGES}},
        "prefix": sys.prefix, "base_prefix": sys.base_prefix,
        "tools": {tool["function"]["name"]: digest(tool) for tool in tools},
        "system_prompt": {"sha256": hashlib.sha256(prompt.encode()).hexdigest(), "characters": len(prompt)},
    }


def digest(tool: Any) -> str:
    """SHA-256 of a tool's schema, written as JSON in the order in which it is sent."""
    return hashlib.sha256(json.dumps(tool, ensure_ascii=False).encode()).hexdigest()
