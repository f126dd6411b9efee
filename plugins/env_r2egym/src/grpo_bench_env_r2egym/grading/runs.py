"""One test run in a fresh sandbox, in either mode, and its verdict.

``exact`` does what R2E-Gym does: apply the patch, run the task's script, read its output. ``hardened`` leaves out of
the patch what steers a test run, takes pytest's command out of the script and runs it without the repository's
conftest files and ini, recorded (see :mod:`..inside.run`). It says 1 only where the summary that pytest printed and
the records each are as expected, the hidden tests came out as they must in both, pytest's exit code is that of a run
with a failure (the hidden one), and nothing of pytest was changed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_bench.contract import Sandbox

from . import command, patch, records, summary

TESTS, GRADING = "r2e_tests", ".grading"
"""Folders that are mounted, read-only, in the working folder: the hidden tests; ``run.py`` and ``run_tests.sh``."""
_FAILURES, _PASSED = 1, 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``faults`` are what an honest run does not do."""

    reward: float
    detail: str
    faults: tuple[str, ...] = ()
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What is graded: a patch, against the results expected."""

    patch: str
    expected: Mapping[str, str]
    test_timeout_s: float
    command_timeout_s: float


async def exact(job: Job, sandbox: Sandbox) -> Verdict:
    """R2E-Gym's verdict."""
    applied = await patch.apply(sandbox, job.patch, exact=True, timeout_s=job.command_timeout_s)
    if applied.problem:
        return Verdict(0.0, f"the patch does not apply: {applied.problem}")
    argv = ["bash", "-c", f"exec 2>&1; exec bash {GRADING}/run_tests.sh"]
    result = await sandbox.exec(argv, timeout_s=job.test_timeout_s)
    if result.timed_out:
        return Verdict(0.0, f"the tests took longer than {job.test_timeout_s:g} s", timed_out=True)
    found, expected = summary.results(result.stdout), summary.comparable(job.expected)
    if summary.agree(found, expected):
        return Verdict(1.0, f"{len(found)} tests are as expected")
    return Verdict(0.0, summary.differences(found, expected))


async def hardened(job: Job, sandbox: Sandbox, script: command.Command) -> Verdict:
    """The verdict that a patch cannot steer."""
    applied = await patch.apply(sandbox, job.patch, exact=False, timeout_s=job.command_timeout_s)
    if applied.problem:
        return Verdict(0.0, f"the patch does not apply: {applied.problem}")
    word = secrets.token_hex(16)
    env = dict(script.env)
    path = [part for part in env.pop("PYTHONPATH", "").split(":") if part]
    options = ["-c", "/dev/null", "--rootdir=.", f"--confcutdir={TESTS}", "-p", "no:cacheprovider"]
    order = {"word": word, "trusted": [TESTS, ".venv"], "path": path, "arguments": [*options, *script.arguments]}
    argv = ["env", *(f"{name}={value}" for name, value in env.items()), script.interpreter, *script.flags, "-s",
            f"{GRADING}/run.py"]
    result = await sandbox.exec(argv, timeout_s=job.test_timeout_s, stdin=json.dumps(order))
    if result.timed_out:
        return Verdict(0.0, f"the tests took longer than {job.test_timeout_s:g} s", timed_out=True)
    verdict = judge(result.stdout, records.read(result.stderr, word), result.exit_code, job.expected)
    left_out = f"; left out of the patch: {', '.join(applied.left_out[:3])}" if applied.left_out else ""
    return Verdict(verdict.reward, verdict.detail + left_out, verdict.faults)


def judge(log: str, said: records.Records, exit_code: int, expected: Mapping[str, str]) -> Verdict:
    """The verdict on what pytest printed, what the recorder said and how the process ended."""
    wanted, printed, recorded = summary.comparable(expected), summary.results(log), dict(said.results)
    if said.code is None:
        return Verdict(0.0, f"the tests did not come to their end (exit code {exit_code})", said.faults)
    faults = list(said.faults)
    if said.code != exit_code:
        faults.append(f"the process ended with {exit_code} and not with pytest's {said.code}")
    for source, found in (("summary", printed), ("records", recorded)):
        passing, failing = found.pop(said.passing or "", None), found.pop(said.failing or "", None)
        if said.failing is not None and failing not in ("FAILED", "ERROR"):
            faults.append(f"a test that must fail did not, by the {source}")
        if said.passing is not None and passing != "PASSED" and not (
                passing == "ERROR" and "ERROR" in wanted.values()):
            faults.append(f"a test that must pass did not, by the {source}")
    if printed != recorded:
        faults.append(f"summary and records differ: {summary.differences(printed, recorded)}")
    if faults:
        return Verdict(0.0, "; ".join(faults[:3]), tuple(faults))
    if not summary.agree(recorded, wanted):
        return Verdict(0.0, summary.differences(recorded, wanted))
    bad = said.failing is not None or set(recorded.values()) != {"PASSED"}
    if exit_code not in ((_FAILURES,) if bad and said.failing is not None else (_FAILURES, 2) if bad else (_PASSED,)):
        return Verdict(0.0, f"pytest ended with {exit_code}")
    return Verdict(1.0, f"{len(recorded)} tests are as expected")
