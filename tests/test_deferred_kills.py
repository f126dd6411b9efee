"""Deferred evaluations that are ended at any moment, by a signal, a kill or a loss of power, and go on in another
process; and those that somebody else wants at the same time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import Kind, canonical
from grpo_bench.engine.assembly import Assembly
from grpo_bench.observers import read_events

from .children import pause
from .deferring import FAILS_THEN_PASSES, NEVER, SMALL, of, of_evaluation, trained, whole
from .test_resume import KILL, Workshop, same_run
from .test_resume import work as work


def process(verb: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "grpo_bench", verb, *arguments], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def until(running: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait while the process goes on and ``condition`` does not hold."""
    while not condition():
        assert running.poll() is None, running.communicate()
        pause(0.005)


def evaluates(run: Path, step: int) -> bool:
    """Whether a rollout of a step's validation has ended."""
    journal = run / "eval" / "events.jsonl"
    return journal.exists() and any((event.kind, event.step) == (Kind.ROLLOUT, step) for event in read_events(journal))


SLOW = "environment.score_s=0.5"
"""Enough for a validation to be looked at while it runs."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -KILL), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_ended_by_a_signal_it_goes_on(tmp_path: Path, number: int, code: int) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    before = (run / "events.jsonl").read_bytes()
    running = process("eval", str(run), "--json", "--set", SLOW)
    until(running, lambda: evaluates(run, 4))
    running.send_signal(number)
    out, error = running.communicate()
    assert running.returncode == code
    if number != signal.SIGKILL:
        assert json.loads(out)["status"] == "interrupted"
        assert f"grpo-bench eval {run} goes on with it" in error and len(error.splitlines()) == 1
        assert of_evaluation(run)[-1].data["status"] == "interrupted"
    assert [event.step for event in of(of_evaluation(run), Kind.VALIDATION)] == [3]
    done = process("eval", str(run), "--json")
    out, error = done.communicate()
    assert (done.returncode, error) == (0, "")
    summary = json.loads(out)
    assert (summary["status"], summary["steps"], summary["evaluation"]["attempts"]) == ("target_met", 5, 2)
    assert [event.step for event in of(canonical(whole(run)), Kind.VALIDATION)] == [3, 4, 5]
    assert (run / "events.jsonl").read_bytes() == before


def test_while_it_is_evaluated_nobody_else_evaluates_or_resumes_it(tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    first = process("eval", str(run), "--set", SLOW)
    until(first, lambda: evaluates(run, 3))
    assert main(["eval", str(run)]) == 2
    assert "is in use by another process" in capsys.readouterr().err
    assert main(["resume", str(run)]) == 2
    _, error = first.communicate()
    assert (first.returncode, error) == (0, "")
    assert not of(of_evaluation(run), Kind.RESUMED)


def test_while_it_trains_nobody_evaluates_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for override in (*SMALL, *NEVER, "trainer.update_s=0.5") for word in ("--set", override)]
    training = process("run", "--profile", "mock", "--runs", str(tmp_path), "--no-eval", *sets)
    until(training, lambda: any(tmp_path.glob("*/checkpoints/weights-00003")))
    (run,) = tmp_path.iterdir()
    assert main(["eval", str(run)]) == 2
    assert "is in use by another process" in capsys.readouterr().err
    _, error = training.communicate()
    assert (training.returncode, error) == (0, "")
    assert not (run / "eval").exists()


def test_interrupted_between_training_and_evaluation_it_says_what_evaluates_it(
        tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    close = Assembly.close

    async def signalled(self: Assembly) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await close(self)

    monkeypatch.setattr(Assembly, "close", signalled)
    sets = [word for override in (*SMALL, *FAILS_THEN_PASSES) for word in ("--set", override)]
    assert main(["run", "--profile", "mock", "--runs", str(tmp_path), "--json", *sets]) == 130
    (run,) = tmp_path.iterdir()
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "trained"
    assert f"grpo-bench eval {run} evaluates it" in said.err
    assert not (run / "eval").exists()


def test_an_evaluation_that_fails_after_a_training_says_what_goes_on_with_it(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = 'generator.faults=[{at = "receive", kind = "raise", step = 4, call = 2}]'
    sets = [word for override in (*SMALL, *FAILS_THEN_PASSES, fault) for word in ("--set", override)]
    assert main(["run", "--profile", "mock", "--runs", str(tmp_path), "--json", *sets]) == 1
    (run,) = tmp_path.iterdir()
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "failed"
    assert f"grpo-bench eval {run} goes on with it" in said.err
    assert main(["eval", str(run), "--set", "generator.faults=[]"]) == 0


DEFERRED = ["grpo.max_steps=5", "grpo.prompts_per_step=3", "grpo.generations_per_prompt=2", "validation.start_at=2",
            "validation.period=1", "validation.max_tasks=3", "validation.k=2", "validation.metric=off",
            "validation.target=off", "checkpoint.period=2", "environment.train_tasks=4", "validation.deferred=true"]


@pytest.fixture(scope="module")
def straight(work: Workshop) -> dict[str, Any]:
    """The run that nobody cut off."""
    return work("touch", overrides=DEFERRED)


def test_killed_anywhere_it_ends_as_if_it_had_not_been(work: Workshop, straight: dict[str, Any]) -> None:
    draw, touched = random.Random(4), len(straight["touched"])
    points = sorted(draw.sample(range(1, touched), 40))
    for cut in work.all([*(("touch", at) for at in points), ("touch", touched // 2, touched // 3, touched // 3)],
                        overrides=DEFERRED):
        assert KILL in cut["signals"]
        same_run(cut, straight)


def test_after_a_loss_of_power_what_was_not_synced_is_evaluated_again(work: Workshop,
                                                                      straight: dict[str, Any]) -> None:
    draw, touched = random.Random(5), len(straight["touched"])
    for cut in work.all([("power", at) for at in sorted(draw.sample(range(touched // 2, touched), 20))],
                        overrides=DEFERRED):
        assert KILL in cut["signals"]
        same_run(cut, straight)
