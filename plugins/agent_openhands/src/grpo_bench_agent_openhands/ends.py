"""How a rollout ended, by a table.

What the program says is a claim: it shares its sandbox with what the policy runs. So whatever it says, and also when it
says nothing, a rollout in which the policy has had a reply ends normally and is graded: it could otherwise have its
attempt at a hard task tried again by breaking its agent. Failures of the policy's own generator are in the record of
the gateway, and those of the sandbox are seen from outside. Before the first reply nothing is the policy's doing, and
an end other than these is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_bench.contract import AgentEnd, End, PolicyAccess

ENDS: Mapping[str, AgentEnd] = {end.reason: end for end in (
    AgentEnd(End.COMPLETED, "finished"),    # the policy called the finish tool
    AgentEnd(End.MAX_TURNS, "max_turns"),   # as many steps, or replies, as there may be
    AgentEnd(End.COMPLETED, "stuck"),       # it repeats itself; OpenHands gives up
    AgentEnd(End.TRUNCATED, "context"),     # the conversation is as long as it may be
    AgentEnd(End.COMPLETED, "error"),       # OpenHands failed after the policy had a reply
    AgentEnd(End.COMPLETED, "killed"),      # the program went without a word after the policy had a reply
)}
_ERRORS = (
    ("AgentStuckInLoopError", "stuck"),
    ("maximum iteration", "max_turns"),
    ("LLMContextWindowExceedError", "context"),
)
_NUMBERS = ("import_s", "setup_s", "run_s", "cpu_s", "tools_cpu_s", "peak_mb", "own_mb")
_MOST = 1e9


@dataclass(frozen=True, slots=True)
class Result:
    """What the program says of itself: OpenHands' state, error and steps, and what it took."""

    state: str
    error: str
    steps: int
    cost: Mapping[str, float]


def read(data: bytes) -> Result | None:
    """The result in what a program wrote; None where there is none."""
    try:
        found = json.loads(data)
        state, error, steps = found["state"], found["error"], found["steps"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not (isinstance(state, str) and isinstance(error, str) and type(steps) is int):
        return None
    cost = {name: float(value) for name in _NUMBERS
            if type(value := found.get(name)) in (int, float) and 0 <= value <= _MOST}
    return Result(state, error, steps, cost)


def reason(result: Result | None, access: PolicyAccess, max_turns: int) -> str:
    """Which row of the table an end is."""
    if access.truncated():
        return "context"
    if result is None:
        return "killed"
    if result.state == "finished":
        return "finished"
    named = next((name for text, name in _ERRORS if text in result.error), "error")
    if named == "error" and access.replies() >= max_turns:
        return "max_turns"
    return "error" if named == "context" else named


def ended(result: Result | None, access: PolicyAccess, max_turns: int, words: str) -> AgentEnd:
    """The end of a rollout; RuntimeError where it is none. ``words`` are the program's last."""
    name = reason(result, access, max_turns)
    if access.replies() == 0 and name in ("error", "killed"):
        said = _shown(result) if result else "it ended without a result"
        raise RuntimeError(f"the agent did not get to ask the policy: {said}{words and f'; its last words: {words}'}")
    return ENDS[name]


def _shown(result: Any) -> str:
    return f"OpenHands ended as {result.state!r}{result.error and f': {result.error}'}"
