"""The test file of ``python -m grpo_bench.testing``: the suite that its request asks for."""

from __future__ import annotations

import json
import sys
from typing import Any

import grpo_bench.testing as kit

_request: dict[str, Any] = json.loads(sys.argv[1])
_suite = getattr(kit, kit.SUITES[_request["role"]])
TestPlugin = type("TestPlugin", (_suite,), {
    "plugin": _request["name"], "options": _request["options"], "fabric": _request["fabric"],
    "timeout_s": _request["timeout_s"], "__module__": __name__})
