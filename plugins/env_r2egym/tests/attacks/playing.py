"""Plays one attack as a rollout would, beside another sandbox, and says what of the claims does not hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from grpo_bench.contract import Environment, ExecResult, Sandbox, Score, Task

from ..toy import GOOD, NAMES
from .corpus import HOLE, HUNK, Attack, filled
from .decoys import Decoys, left_running

BEGIN = "PY=$(command -v python3 || echo /testbed/.venv/bin/python)\n"
SUMMARY = "\n".join(["=== short test summary info ===", *(
    f"PASSED r2e_tests/test_tally.py::{name.replace('.', '::')}" for name in NAMES)])
IN_THE_TOY = {
    "MODULE": "tally.py", "TEST": "test_tally.py", "SUMMARY": repr(SUMMARY), "HUNK": HUNK,
    "SECRET": "assert most([1, 2, 2]) == 2", "FIX_FILE": "parsed_commit",
}
REPAIR = f"\nif globals().get('WON'):\n    exec({GOOD!r}, globals())\n"
BESIDE = """
test "$(cat kept)" = "as it was" || echo HARMED
ls -aR /tmp /dev/shm /var/tmp "$HOME" . 2>/dev/null | grep -q "$1" && echo SEEN
cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem | grep -qv key && echo SHARED
python3 -c 'print(6 * 7)' 2>/dev/null || .venv/bin/python -c 'print(6 * 7)'
"""
FINE = "42"
_SOON_S = 10.0


@dataclass
class Outcome:
    """What happened. ``complaints`` are claims that do not hold."""

    complaints: list[str] = field(default_factory=list)
    result: ExecResult | None = None
    patch: str = ""
    score: Score | None = None


async def play(attack: Attack, environment: Environment, task: Task, beside: Sandbox, decoys: Decoys) -> Outcome:
    values = {**IN_THE_TOY, **decoys.values}
    outcome = Outcome(patch=filled(attack.patch, values))
    if attack.phase == "agent" or not attack.patch:
        await _as_agent(attack, environment, task, beside, decoys, values, outcome)
    if outcome.patch.strip():
        await _graded(attack, environment, task, outcome)
    elif attack.phase == "patch" and attack.diff == "works":
        outcome.complaints.append("it left no patch, so nothing was tried")
    outcome.complaints += decoys.harm()
    if left := await _left(decoys):
        outcome.complaints.append(f"still running after the sandbox was closed: {left}")
    await _look_beside(beside, decoys, outcome)
    return outcome


async def _as_agent(attack: Attack, environment: Environment, task: Task, beside: Sandbox, decoys: Decoys,
                    values: dict[str, str], outcome: Outcome) -> None:
    sandbox = await environment.open(task, mounts={}, sockets={})
    try:
        if attack.library:
            module = values["MODULE"]
            code = filled(attack.library, values)
            await sandbox.write(module, await sandbox.read(module) + "\n" + code + REPAIR)
        if attack.agent:
            script = BEGIN + filled(attack.agent, values)
            argv = ["env", f"ATTACK={decoys.token}", "bash", "-c", script]
            _, outcome.result = await asyncio.gather(_look_beside(beside, decoys, outcome),
                                                     sandbox.exec(argv, timeout_s=attack.timeout_s))
            _judge_result(attack, outcome.result, outcome.complaints)
            if left := await _left(decoys):
                outcome.complaints.append(f"still running after the command ended: {left}")
        await _files(attack, sandbox, values, outcome.complaints)
        await _diff(attack, sandbox, values, outcome)
    finally:
        await sandbox.close()


def _judge_result(attack: Attack, result: ExecResult, complaints: list[str]) -> None:
    said = f"{result.stdout}\n{result.stderr}"
    complaints += [line for line in said.splitlines() if line.startswith(HOLE)]
    if attack.ends != "any" and result.timed_out != (attack.ends == "time-out"):
        complaints.append(f"timed out: {result.timed_out}; {said[-300:]}")
    if attack.ends == "well" and result.exit_code in (126, 127, 2):
        complaints.append(f"the attack itself is wrong: exit code {result.exit_code}: {said[-300:]}")
    if attack.counts and said.count(attack.counts["text"]) > attack.counts["at_most"]:
        complaints.append(f"{attack.counts['text']} is there {said.count(attack.counts['text'])} times")
    if len(said) > 1 << 20:
        complaints.append(f"{len(said)} characters of output were kept")


async def _files(attack: Attack, sandbox: Sandbox, values: dict[str, str], complaints: list[str]) -> None:
    for path in attack.reads:
        try:
            text = await sandbox.read(path)
        except OSError:
            continue
        if values["MARK_TEXT"] in text:
            complaints.append(f"the environment read a file of the host through {path}")
    for path in attack.writes:
        try:
            await sandbox.write(filled(path, values), "overwritten")
        except OSError:
            continue


async def _diff(attack: Attack, sandbox: Sandbox, values: dict[str, str], outcome: Outcome) -> None:
    try:
        outcome.patch = await sandbox.diff()
    except Exception as error:
        if attack.diff == "works":
            outcome.complaints.append(f"no diff: {error}")
        return
    if filled(attack.diff_has, values) not in outcome.patch:
        outcome.complaints.append(f"the change is not in the diff: {outcome.patch[:300]}")
    if attack.diff_lacks and filled(attack.diff_lacks, values) in outcome.patch:
        outcome.complaints.append(f"{attack.diff_lacks} is in the diff")
    if attack.absent:
        found = await sandbox.exec(["ls", attack.absent], timeout_s=20.0)
        if found.exit_code == 0:
            outcome.complaints.append(f"taking the diff ran something: {attack.absent} is there")


async def _graded(attack: Attack, environment: Environment, task: Task, outcome: Outcome) -> None:
    try:
        outcome.score = score = await environment.score(task, outcome.patch)
    except Exception as error:
        outcome.complaints.append(f"it could not be graded: {type(error).__name__}: {error}")
        return
    if attack.open:
        if score.reward != 1.0:
            outcome.complaints.append(f"it is said to be rewarded, and is not: {score.detail}")
    elif score.reward != 0.0:
        outcome.complaints.append(f"reward {score.reward}: {score.detail}")


async def _look_beside(beside: Sandbox, decoys: Decoys, outcome: Outcome) -> None:
    """The other sandbox works, is as it was, and sees nothing."""
    result = await beside.exec(["bash", "-c", BESIDE, "bash", decoys.token], timeout_s=60.0)
    if result.stdout.split() != [FINE]:
        outcome.complaints.append(f"the sandbox beside it: {result.stdout} {result.stderr}".strip())


async def _left(decoys: Decoys) -> list[int]:
    """Processes that are there for good, not only until the kernel is done with them."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _SOON_S
    while (left := left_running(decoys.token)) and loop.time() < until:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.1)
    return left
