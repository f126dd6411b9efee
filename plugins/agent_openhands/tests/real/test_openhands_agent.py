"""The real agent in real sandboxes, against the real gateway: what it does, how it ends, and what is recorded of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpo_bench.registry.envs import locate, named
from grpo_bench_agent_openhands.benchmark import SYSTEM_PROMPT, TOOLS
from grpo_bench_agent_openhands.ends import ENDS
from grpo_bench_agent_openhands.inventory import digest

from .conftest import AGENT_S, COMMAND_S, SYSTEM, TURNS, Starter, Work
from .playing import FINISH, MAX_TOKENS, STATEMENT, Played, bash, call, converse, sandboxed

pytestmark = pytest.mark.real("openhands", "bwrap", "tmux")

EDIT = {"command": "str_replace", "path": "/testbed/calc.py", "old_str": "return a - b", "new_str": "return a + b",
        "security_risk": "LOW"}
DONE = call(*FINISH)
BROKEN = "<tool_call>\n<function=execute_bash>\n<parameter=command>\nls\n</tool_call>"


def exact(played: Played, *, dropped: int = 0) -> None:
    """What is recorded, and so trains, is what was sampled and nothing else, in one sequence; after each reply that
    OpenHands has dropped from its history a new one begins."""
    assert len(played.record.sequences) == dropped + 1
    turns = [turn for sequence in played.record.sequences for turn in sequence.turns]
    assert len(turns) == len(played.writer.sampled) == played.replies
    for turn, sampled in zip(turns, played.writer.sampled, strict=True):
        assert np.array_equal(turn.sampled_ids, sampled)


@pytest.mark.parametrize("way", ["forked", "spawned"])
def test_it_repairs_with_the_tools_that_the_policy_calls(way: str, request: pytest.FixtureRequest) -> None:
    work: Work = request.getfixturevalue(way)
    look = call("str_replace_editor", {"command": "view", "path": "/testbed", "security_risk": "LOW"}, "Look.\n")
    use = bash("python3 -c 'import calc; print(calc.add(2, 3))'")
    played = work.play(look, call("str_replace_editor", EDIT), use, DONE)
    assert (played.end, played.replies) == (ENDS["finished"], 4)
    assert "-    return a - b\n+    return a + b\n" in played.diff
    assert "calc.py" in played.told(1) and "has been edited" in played.told(2)
    assert played.told(3).rpartition("<|im_start|>tool\n")[2].startswith("5\n[The command completed with exit code 0.]")
    exact(played)
    cost = work.agent.costs[-1]
    assert (cost["import_s"] < 1.0) == (way == "forked")
    assert (cost["own_mb"] < 150) == (way == "forked")


def test_what_trains_is_what_was_sampled_whatever_the_policy_writes(forked: Work) -> None:
    played = forked.play(bash("echo a") + "\n" + bash("echo b"), BROKEN, call("nobody", {"x": 1}),
                         call("execute_bash", {"timeout": "[1, 2]"}), "I am  done, I think. ", DONE)
    assert played.end == ENDS["finished"]
    assert played.record.counters == {"malformed_calls": 1, "split_sequences": 2}
    exact(played, dropped=2)
    last = played.told(5)
    for words in ("a\n[The command completed", "b\n[The command completed", "Tool nobody is not registered",
                  'Missing required argument "command"'):
        assert words in last


def test_commands_share_a_session_and_have_a_limit(forked: Work) -> None:
    played = forked.play(
        bash("cd /tmp && export WORD=kept"), bash("echo $WORD $PWD"), bash("sleep 60", timeout=50),
        bash("C-c", is_input="true"), bash("echo after"), DONE)
    assert played.end == ENDS["finished"]
    assert "kept /tmp" in played.told(2)
    assert f"timed out after {COMMAND_S}.0 seconds" in played.told(3)
    assert "CTRL+C was sent" in played.told(4)
    assert "after\n[The command completed with exit code 0.]" in played.told(5)
    exact(played)


ENDINGS: Mapping[str, tuple[list[str], int]] = {
    "finished": ([DONE], 1),
    "max_turns": ([bash(f"echo {number}") for number in range(TURNS)], TURNS),
    "stuck": ([bash("echo again")], 4),
    "error": ([bash("tmux kill-server"), DONE], 2),
    "killed": ([bash("kill -9 -1")], 1),
}


@pytest.mark.parametrize("reason", ENDINGS)
def test_each_end_is_told_from_the_others(forked: Work, reason: str) -> None:
    replies, most = ENDINGS[reason]
    played = forked.play(*replies)
    assert played.end == ENDS[reason]
    assert 1 <= played.replies <= most
    exact(played)


@pytest.mark.parametrize("said", [bash("head -c 20000 /dev/zero | tr '\\0' x"), "x" * (MAX_TOKENS - 10)])
def test_a_context_that_is_full_ends_it(forked: Work, said: str) -> None:
    first = forked.play(DONE)
    played = forked.play(said, max_context=len(first.writer.asked[0]) + MAX_TOKENS + 2000)
    assert played.end == ENDS["context"]
    assert played.record.truncated
    exact(played)


def test_a_rollout_that_takes_too_long_is_no_sample(start: Starter) -> None:
    work = start(agent_timeout_s=3.0, command_timeout_s=AGENT_S, fork="never")
    played = work.play(bash("sleep 20"))
    assert isinstance(played.end, TimeoutError)
    assert str(played.end) == "the agent took longer than 3 s"


def test_a_generator_that_fails_is_in_the_record(forked: Work) -> None:
    played = forked.play(bash("echo 1"), RuntimeError("the engine broke"))
    assert played.end == ENDS["error"]
    assert str(played.record.error) == "the engine broke"


def test_side_by_side_they_do_not_meet(forked: Work) -> None:
    scripts = [[bash(f"(echo 'number = {number}'; ls /tmp) > mine.py; sleep 0.{number}"), bash("cat mine.py"), DONE]
               for number in range(6)]
    for number, played in enumerate(forked.together(scripts)):
        assert played.end == ENDS["finished"]
        assert f"+number = {number}\n" in played.diff
        assert played.diff.count("\n+openhands-") == 1
        exact(played)


def test_the_benchmarks_tools_and_prompt_are_what_the_policy_gets(start: Starter, tmp_path: Path) -> None:
    work = start(str(tmp_path), tools="benchmark-exact", command_timeout_s=60)
    assert work.play(DONE).end == ENDS["finished"]
    tools = json.loads((tmp_path / "agent/tools.json").read_text())
    assert {tool["function"]["name"]: digest(tool) for tool in tools} == TOOLS
    prompt = (tmp_path / "agent/system_prompt.txt").read_text()
    assert (hashlib.sha256(prompt.encode()).hexdigest(), len(prompt)) == (SYSTEM_PROMPT, 12842)
    inventory = locate(named("openhands")).inventory
    assert inventory["tools"] == TOOLS
    assert inventory["system_prompt"] == {"sha256": SYSTEM_PROMPT, "characters": len(prompt)}


def test_a_system_template_is_the_system_prompt(spawned: Work) -> None:
    asked = spawned.play(DONE).asked
    assert asked is not None
    system, user = asked["messages"]
    [part] = system["content"]
    assert part["text"].startswith(SYSTEM.partition("\n")[0] + "\n")
    assert "{%" not in part["text"] and len(part["text"]) > 100
    assert STATEMENT in user["content"][0]["text"]


def without(tool: str) -> Callable[..., AbstractAsyncContextManager[Any]]:
    def opener(source: Path, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> Any:
        return sandboxed(source, {**mounts, tool: "/dev/null"}, sockets)

    return opener


def test_a_sandbox_without_tmux_is_an_error_that_says_so(forked: Work) -> None:
    played = forked.play(DONE, opener=without("/usr/bin/tmux"))
    assert isinstance(played.end, RuntimeError)
    assert "the sandbox has no tmux, which OpenHands works with" in str(played.end)


MARK = "GRPO_BENCH_TEST_MARK"


def test_nothing_of_the_host_can_be_had_in_it(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent was forked outside: neither its descriptors nor its folders or environment may have come along."""
    probe = bash("for p in /proc/[0-9]*; do readlink $p/fd/* $p/cwd $p/root; tr '\\0' '\\n' < $p/environ; done "
                 f"2>/dev/null | grep -E '^/root|control|^PWD={os.getcwd()}|{MARK}' | head -5; echo end; id -u; "
                 "ls /root | wc -l")
    monkeypatch.setenv(MARK, "1")
    played = start().play(probe, DONE)
    said = played.told(1).rpartition("<|im_start|>tool\n")[2]
    assert said.startswith("end\n1000\n"), said


async def stricken(work: Work, blow: signal.Signals) -> Played:
    """A rollout under way when that signal hits the fork server."""
    server = work.agent._server
    assert server is not None
    rollout = asyncio.ensure_future(converse(work.agent, sandboxed, [bash("sleep 60")]))
    while not server._children and not rollout.done():  # noqa: ASYNC110 - nothing tells of a fork
        await asyncio.sleep(0.05)
    server._process.send_signal(blow)
    return await rollout


@pytest.mark.parametrize(("blow", "error", "words"), [
    (signal.SIGKILL, RuntimeError, "the fork server of the agent ended"),
    (signal.SIGSTOP, TimeoutError, "the agent took longer than 15 s"),
])
def test_a_fork_server_that_dies_or_hangs_is_replaced(start: Starter, monkeypatch: pytest.MonkeyPatch,
                                                      blow: signal.Signals, error: type[Exception],
                                                      words: str) -> None:
    monkeypatch.setattr("grpo_bench_agent_openhands.forking._KILL_S", 1.0)
    work = start(agent_timeout_s=15.0, command_timeout_s=AGENT_S)
    first = work.agent._server
    assert first is not None
    played = work.run(stricken(work, blow))
    assert isinstance(played.end, error) and words in str(played.end)
    assert not first.alive
    work.play(DONE)
    assert work.agent._server is not first and work.agent.costs[-1]["import_s"] < 1.0
