"""The room's public names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import grpo_bench.policy as policy


def test_public_names() -> None:
    assert sorted(policy.__all__) == [
        "CallSuperseded", "ChatFormat", "Completion", "ConversationError", "Gateway", "Parsed", "Policy",
        "RolloutRecord", "Session", "Ticket", "TurnLimit", "make_policy",
    ]
    assert all(getattr(policy, name) for name in policy.__all__)


def test_the_http_server_is_imported_when_it_is_used() -> None:
    code = ("import sys, grpo_bench.policy as p; print('aiohttp' in sys.modules); "
            "p.Gateway; print('aiohttp' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
