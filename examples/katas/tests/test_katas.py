"""What this environment does on its own account: it reads files of tasks, and grades by evaluating."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import ExecResult, InputError, Score
from grpo_katas import SAMPLE, Config, diffs
from grpo_katas.environment import Environment
from grpo_katas.tasks import FILE, read_tasks

GOOD = {"id": "one", "split": "train", "statement": "Say it.", "start": "left",
        "cases": [{"given": {"left": 1}, "value": 1}, {"given": {"left": 2}, "value": 2}]}


def lines(folder: Path, *items: Any) -> Path:
    file = folder / "tasks.jsonl"
    file.write_bytes(b"\n".join(item if isinstance(item, bytes) else json.dumps(item).encode() for item in items))
    return file


def graded(answer: str, **settings: Any) -> Score:
    """The score of ``answer`` to the sample's first task."""
    async def main() -> Score:
        environment = Environment(Config(**settings))
        return await environment.score(environment.tasks("train")[0], diffs.make(FILE, "left\n", answer))

    return asyncio.run(main())


@pytest.mark.parametrize(("answer", "reward"), [
    ("right\n", 1.0), ("max(left, right) if left < right else right\n", 1.0), ("left\n", 0.0), ("2\n", 0.0),
    ("", 0.0), ("right right\n", 0.0), ("exit(0)\n", 0.0), ("print(2) or right\n", 0.0), ("\0\ud800\n", 0.0),
])
def test_an_answer_is_right_where_every_case_comes_out(answer: str, reward: float) -> None:
    assert graded(answer).reward == reward


@pytest.mark.parametrize("answer", [
    "sum(1 for _ in iter(int, 1))", "__import__('time').sleep(60)", "bytearray(10**10)", "print('x' * 10**6) or right",
])
def test_no_answer_gets_past_its_limits(answer: str) -> None:
    assert graded(f"{answer}\n", wall_s=3).reward == 0.0


def test_what_an_answer_leaves_running_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    late = f"__import__('os').close(1) or __import__('time').sleep(1) or open({str(mark)!r}, 'x')"
    assert graded(f"(__import__('os').fork() or {late}) and right\n").reward == 1.0

    async def later() -> None:
        await asyncio.sleep(1.5)

    asyncio.run(later())
    assert not mark.exists()


def test_check_says_whether_the_told_case_comes_out() -> None:
    async def main() -> list[ExecResult]:
        environment = Environment(Config())
        sandbox = await environment.open(environment.tasks("train")[0], mounts={}, sockets={})
        results = [await sandbox.exec(["check"], timeout_s=10.0)]
        await sandbox.write(FILE, "right")
        results += [await sandbox.exec(["check"], timeout_s=10.0), await sandbox.exec(["ls", "-l"], timeout_s=10.0)]
        await sandbox.write(FILE, "__import__('time').sleep(60)")
        return [*results, await sandbox.exec(["check"], timeout_s=0.5)]

    wrong, right, unknown, slow = asyncio.run(main())
    assert (wrong.exit_code, wrong.stderr) == (1, "1, not 2\n")
    assert (right.exit_code, right.stdout) == (0, "right\n")
    assert (unknown.exit_code, unknown.stderr) == (127, "ls -l: not found; there is check\n")
    assert (slow.exit_code, slow.timed_out) == (124, True)


def test_the_sample_has_tasks_in_both_splits() -> None:
    assert {split: len(tasks) for split, tasks in read_tasks(SAMPLE).items()} == {"train": 4, "heldout": 4}


def test_the_agent_is_told_one_case_and_no_more(tmp_path: Path) -> None:
    (task,) = read_tasks(lines(tmp_path, b"", GOOD))["train"]
    assert task.prompt["statement"] == "Say it.\nFor instance, left = 1 should give 1."
    assert task.payload["cases"] == GOOD["cases"]


@pytest.mark.parametrize(("bad", "said"), [
    (b"{", "Invalid JSON"), (b"\xff", "Invalid JSON"), (b"[]", "Input should be an object"),
    ({**GOOD, "level": 3}, "level: Extra inputs are not permitted"),
    ({key: value for key, value in GOOD.items() if key != "split"}, "split: Field required"),
    ({**GOOD, "id": 7}, "id: Input should be a valid string"),
    ({**GOOD, "id": "two", "split": "test"}, "split: Input should be 'train' or 'heldout'"),
    ({**GOOD, "cases": GOOD["cases"][:1]}, "cases: Tuple should have at least 2 items"),
    (GOOD, "the id 'one' is that of line 1"),
])
def test_a_broken_line_is_named(tmp_path: Path, bad: Any, said: str) -> None:
    file = lines(tmp_path, GOOD, b"", bad)
    with pytest.raises(InputError) as caught:
        read_tasks(file)
    assert caught.value.message.startswith(f"{file}:3: ")
    assert said in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for file in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(InputError, match=str(file)):
            Environment(Config(tasks=file)).tasks("train")
