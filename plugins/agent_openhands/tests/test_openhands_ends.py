"""How ends are told apart: what the program claims, what the record of the gateway knows, and who is to blame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from grpo_bench.contract import AgentEnd, End, Purpose, Sampling
from grpo_bench_agent_openhands import ends

STUCK = "AgentStuckInLoopError: Agent got stuck in a loop"
MOST = "RuntimeError: Agent reached maximum iteration. Current iteration: 30, max iteration: 30"
FULL = "LLMContextWindowExceedError: Conversation history longer than LLM context window limit."


@dataclass
class Access:
    granted: int = 3
    full: bool = False
    socket: str = "/s"
    token: str = "t"
    model: str = "policy"

    @property
    def sampling(self) -> Sampling:
        return Sampling(Purpose.TRAIN, 1.0, 1.0, -1, 0.0, 1.0, 0.0, 0.0, (), 64, 4000, 7)

    def replies(self) -> int:
        return self.granted

    def truncated(self) -> bool:
        return self.full

    def asked(self) -> Mapping[str, Any] | None:
        return None


def said(state: str = "error", error: str = "", **more: Any) -> bytes:
    return json.dumps({"state": state, "error": error, "steps": 3, **more}).encode()


@pytest.mark.parametrize(("data", "access", "expected"), [
    (said("finished"), Access(), AgentEnd(End.COMPLETED, "finished")),
    (said(error=MOST), Access(), AgentEnd(End.MAX_TURNS, "max_turns")),
    (said(error=STUCK), Access(), AgentEnd(End.COMPLETED, "stuck")),
    (said(error=FULL), Access(full=True), AgentEnd(End.TRUNCATED, "context")),
    (said(error="OSError: no tmux server"), Access(), AgentEnd(End.COMPLETED, "error")),
    (said(error="APIError: 403"), Access(granted=30), AgentEnd(End.MAX_TURNS, "max_turns")),
    (b"", Access(), AgentEnd(End.COMPLETED, "killed")),
])
def test_each_end_has_its_row(data: bytes, access: Access, expected: AgentEnd) -> None:
    assert ends.ended(ends.read(data), access, 30, "") == expected
    assert ends.ENDS[expected.reason] == expected


def test_what_the_record_knows_counts_more_than_what_the_program_says() -> None:
    assert ends.reason(ends.read(said("finished")), Access(full=True), 30) == "context"
    assert ends.reason(ends.read(said(error=FULL)), Access(full=False), 30) == "error"


@pytest.mark.parametrize("data", [b"", said(error="it broke"), said("failed", "boom"), said("running")])
def test_no_program_can_have_a_rollout_tried_again_once_the_policy_has_had_a_reply(data: bytes) -> None:
    assert ends.ended(ends.read(data), Access(granted=1), 30, "").end is End.COMPLETED
    with pytest.raises(RuntimeError, match="did not get to ask the policy"):
        ends.ended(ends.read(data), Access(granted=0), 30, "")


def test_the_error_has_what_was_said() -> None:
    result = ends.read(said("failed", "FileNotFoundError: no tmux"))
    with pytest.raises(RuntimeError, match=r"FileNotFoundError: no tmux; its last words: oh no"):
        ends.ended(result, Access(granted=0), 30, "oh no")


@pytest.mark.parametrize("data", [
    b"{", b"[]", b"null", b"\xff", b'{"state": "finished"}', b"[" * 100_000, said()[:-3],
    b'{"state": 1, "error": "", "steps": 1}', b'{"state": "x", "error": "", "steps": true}',
])
def test_a_result_that_is_none(data: bytes) -> None:
    assert ends.read(data) is None


def test_of_the_costs_only_plain_numbers_are_kept() -> None:
    found = ends.read(said("finished", cpu_s=2, peak_mb=-1.0, own_mb="many", run_s=1e300, import_s=True, other=3))
    assert found is not None
    assert found.cost == {"cpu_s": 2.0}
