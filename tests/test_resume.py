"""A run that was cut off goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Kind, Phase, timeless
from grpo_bench.observers import read_events

SMALL = ["grpo.max_steps=5", "grpo.prompts_per_step=3", "grpo.generations_per_prompt=2", "validation.period=2",
         "validation.max_tasks=3", "validation.k=2", "validation.metric=off", "validation.target=off",
         "checkpoint.period=2", "environment.train_tasks=4"]
ASYNC = [*SMALL, "schedule.mode=async", "schedule.max_age=2", "deterministic=false", "generator.token_s=0.0001",
         "trainer.update_s=0.01"]
KILL, PROF = 9, 27


class Workshop:
    """Runs profile mock, cut off at the given points, in processes forked from warm ones, one for each core."""

    def __init__(self, folder: Path) -> None:
        script = str(Path(__file__).with_name("killing.py"))
        self._processes = [
            subprocess.Popen([sys.executable, script, str(folder / str(number))], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for number in range(os.cpu_count() or 1)]

    def __call__(self, how: str, *at: float, overrides: list[str] = SMALL) -> dict[str, Any]:
        return self.all([(how, *at)], overrides=overrides)[0]

    def all(self, cases: list[tuple[Any, ...]], *, overrides: list[str] = SMALL) -> list[dict[str, Any]]:
        """One answer for each case, in order."""
        lines = [json.dumps({"how": how, "at": at, "overrides": overrides}) + "\n" for how, *at in cases]
        count = len(self._processes)
        with ThreadPoolExecutor(count) as threads:
            shares = list(threads.map(_ask, self._processes, [lines[number::count] for number in range(count)]))
        return [shares[number % count][number // count] for number in range(len(cases))]

    def close(self) -> None:
        for process in self._processes:
            process.communicate()


def _ask(process: subprocess.Popen[str], lines: list[str]) -> list[dict[str, Any]]:
    assert process.stdin and process.stdout and process.stderr
    answers = []
    for line in lines:
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, process.stderr.read()
        answers.append(json.loads(answer))
    return answers


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("killed"))
    yield workshop
    workshop.close()


@pytest.fixture(scope="module")
def plain(work: Workshop) -> dict[str, Any]:
    """The run that nobody cut off."""
    return work("touch")


def same_run(cut: dict[str, Any], plain: dict[str, Any]) -> None:
    for before, after in zip(plain["history"], cut["history"], strict=False):
        assert after == before
    assert len(cut["history"]) == len(plain["history"])
    assert cut["rollouts"] == plain["rollouts"]


def test_killed_at_two_hundred_points_a_run_ends_as_if_it_had_not_been(work: Workshop, plain: dict[str, Any]) -> None:
    draw = random.Random(0)
    of_phase = {phase: [at for at, of in enumerate(plain["touched"], 1) if of == phase] for phase in plain["touched"]}
    points = [at for found in of_phase.values() for at in draw.sample(found, min(4, len(found)))]
    points += draw.sample(sorted({*range(1, len(plain["touched"]))} - {*points}), 140 - len(points))
    moments = [draw.uniform(0.02, 0.9) * plain["cpu_s"] for _ in range(60)]
    cuts = work.all([*(("touch", at) for at in points), *(("cpu", at) for at in moments)])
    assert all(cut["signals"][0] == KILL for cut in cuts[:140])
    assert sum(cut["signals"][0] == PROF for cut in cuts[140:]) > 30
    for cut in cuts:
        same_run(cut, plain)
    assert {cut["phases"][0] for cut in cuts} >= {phase.value for phase in Phase}
    assert {step for cut in cuts for step in cut["resumed"]} == {0, 2, 4}


def test_killed_again_and_again_it_still_ends_the_same(work: Workshop, plain: dict[str, Any]) -> None:
    draw = random.Random(1)
    for cut in work.all([("touch", *(draw.randrange(1, 2 * len(plain["touched"]) // 3) for _ in range(4)))
                         for _ in range(10)]):
        assert cut["signals"].count(KILL) > 1
        same_run(cut, plain)


def test_after_a_loss_of_power_what_was_not_synced_is_done_again(work: Workshop, plain: dict[str, Any]) -> None:
    draw = random.Random(2)
    cuts = work.all([*(("power", at) for at in sorted(draw.sample(range(20, len(plain["touched"])), 40))),
                     ("power", len(plain["touched"]) // 2, len(plain["touched"]) // 3)])
    for cut in cuts:
        assert KILL in cut["signals"]
        same_run(cut, plain)
    assert {step for cut in cuts for step in cut["resumed"]} == {0, 2, 4}


def test_an_asynchronous_run_loses_no_prompt_and_trains_none_twice(work: Workshop) -> None:
    whole = work("touch", overrides=ASYNC)
    draw = random.Random(3)
    for cut in work.all([("touch", at) for at in draw.sample(range(20, len(whole["touched"])), 25)], overrides=ASYNC):
        groups = [data for kind, _, data in cut["history"] if kind == "group"]
        assert Counter(group["group_id"] for group in groups) == Counter(range(15))
        assert all(0 <= group["target"] - group["oldest_version"] <= 2 for group in groups)
        steps = [step for kind, step, _ in cut["history"] if kind == "step"]
        assert steps == [1, 2, 3, 4, 5]


LAPTOP = ["grpo.max_steps=3", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=4", "validation.max_tasks=8",
          "validation.metric=off", "validation.target=off", "checkpoint.period=1"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grpo_bench", *arguments]


def laptop(runs: Path) -> list[str]:
    sets = [part for override in LAPTOP for part in ("--set", override)]
    return command("run", "--profile", "laptop", "--runs", str(runs), "--json", *sets)


@pytest.fixture(scope="module")
def whole_laptop_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Any]]:
    runs = tmp_path_factory.mktemp("whole")
    done = subprocess.run(laptop(runs), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), timeless(read_events(next(runs.iterdir())))


@pytest.mark.parametrize(("phase", "step"), [("rollout", 2), ("update", 3), ("checkpoint", 2), ("startup", None)])
def test_a_killed_laptop_run_ends_with_the_same_weights_and_events(
        phase: str, step: int | None, whole_laptop_run: tuple[dict[str, Any], list[Any]], tmp_path: Path) -> None:
    with subprocess.Popen(laptop(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not _entered(tmp_path, phase, step):
            pass
        process.kill()
    assert process.returncode == -KILL
    run = next(tmp_path.iterdir())
    done = subprocess.run(command("resume", str(run), "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary, (expected, history) = json.loads(done.stdout.splitlines()[-1]), whole_laptop_run
    assert summary["attempts"] == 2
    assert summary["weights_sha256"] == expected["weights_sha256"]
    assert timeless(read_events(run)) == history


def _entered(runs: Path, phase: str, step: int | None) -> bool:
    journals = [journal for journal in runs.glob("*/events.jsonl") if not journal.parent.name.startswith(".")]
    events = read_events(journals[0]) if journals else ()
    return any(event.kind == Kind.PHASE and (event.data["phase"], event.step) == (phase, step) for event in events)
