"""Runs that are over, judged by their events: what the rules want done, and everything that can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf.after import broken
from grpo_bench_rules_mlperf.judge import MLPerfRuleset
from grpo_bench_rules_mlperf.rules import Division
from grpo_bench_rules_mlperf.training_6_1 import RULES

from grpo_bench.contract import Event, Finding, Kind, Status

TASKS, K = 251, 4
SETTINGS = {"agent": {"use": "openhands", "max_turns": 30, "agent_timeout_s": 1800.0}, "schedule": {"max_age": 3}}
"""Some of a profile: what is left out is broken in training and evaluation alike."""
START = datetime(2026, 3, 4, tzinfo=UTC)


class Journals:
    """The journals of a run at batch 256: a training that saved weights, and an evaluation of them."""

    def __init__(self) -> None:
        self.training: list[Event] = []
        self.evaluation: list[Event] = []

    @property
    def events(self) -> list[Event]:
        return [*self.training, *self.evaluation]

    def add(self, journal: list[Event], kind: Kind, step: int | None = None, **data: Any) -> None:
        at = (START + timedelta(seconds=len(journal))).isoformat(timespec="microseconds")
        journal.append(Event(len(journal), at, float(len(journal)), kind.value, step, data))

    def train(self, steps: int) -> None:
        self.add(self.training, Kind.RUN_STARTED, run="r", seed=7, prompts_per_step=16, generations_per_prompt=16,
                 settings=SETTINGS, unscored=[f"rule {rule}: {message}" for rule, message in broken(
                     RULES, Division.CLOSED, 256, {"settings": SETTINGS}).items()])
        for step in range(1, steps + 1):
            self.add(self.training, Kind.BATCH, step, rollouts=256, not_samples={})
            self.add(self.training, Kind.UPDATE, step, learning_rate=1e-6, ended_at=ended(step))
            self.add(self.training, Kind.STEP, step)
            if step >= 18:
                self.add(self.training, Kind.CHECKPOINT, step, folder=f"weights-{step:05d}", what="weights",
                         updated_at=ended(step))
        self.add(self.training, Kind.RUN_ENDED, status=Status.TRAINED.value)

    def begin(self) -> None:
        saved = [{"step": event.step, "folder": event.data["folder"], "updated_at": event.data["updated_at"]}
                 for event in self.training if event.kind == Kind.CHECKPOINT]
        self.add(self.evaluation, Kind.EVALUATION_STARTED, checkpoints=saved, settings=SETTINGS)

    def evaluate(self, step: int, passed: int) -> None:
        self.add(self.evaluation, Kind.REFIT, step, version=step)
        for task in range(TASKS):
            for number in range(K):
                self.add(self.evaluation, Kind.ROLLOUT, step, rollout_id=f"v{step}.{task}.{number}", group_id=task,
                         task_id=f"task-{task}", purpose="validation", end="completed", versions=[step],
                         reward=float(task < passed and number == 0))
        self.add(self.evaluation, Kind.VALIDATION, step, version=step, k=K, tasks=TASKS, passed=passed,
                 metrics={"pass_k": passed / TASKS, "accuracy": passed / (TASKS * K)}, ends={"completed": TASKS * K},
                 target_met=passed >= 174)

    def change(self, journal: list[Event], kind: Kind, number: int, **data: Any) -> None:
        """Other data in the ``number``-th event of a kind."""
        at = [index for index, event in enumerate(journal) if event.kind == kind][number]
        journal[at] = replace(journal[at], data={**journal[at].data, **data})

    def drop(self, journal: list[Event], kind: Kind, step: int) -> None:
        journal[:] = [event for event in journal if (event.kind, event.step) != (kind, step)]


def ended(step: int) -> str:
    return (START + timedelta(hours=step)).isoformat(timespec="microseconds")


def run(passed: Sequence[int] = (160, 180), steps: int = 20) -> Journals:
    made = Journals()
    made.train(steps)
    made.begin()
    for step, count in enumerate(passed, 18):
        made.evaluate(step, count)
    return made


def judged(made: Journals, division: Division = Division.CLOSED) -> dict[str, Finding]:
    found = MLPerfRuleset(RULES, 256, division).check_run(Path(), made.events)
    assert len({finding.rule for finding in found}) == len(found)
    return {finding.rule: finding for finding in found}


def wrong(made: Journals, **how: Any) -> list[str]:
    return [rule for rule, finding in judged(made, **how).items() if not finding.ok]


def test_a_run_that_kept_to_the_rules() -> None:
    found = judged(run([100, 173, 174]))
    assert all(finding.ok for finding in found.values())
    assert found["saved weights"].message == "of steps 18 to 20, each with the time of its update"
    assert found["validation schedule"].message == "after step 18, 19, 20"
    assert found["validation after step 19"].message == "173 of 251 tasks solved"
    assert found["reference convergence"].message == "converged after 5120 samples; the reference needs 4608"
    assert judged(run([174], steps=30))["target"].ok


def test_rollouts_and_evaluations_that_were_started_again_count_once() -> None:
    made = run([160])
    failed = next(event for event in made.evaluation if event.kind == Kind.ROLLOUT)
    made.evaluation.insert(1, replace(failed, data={**failed.data, "end": "timeout", "reward": None}))
    made.evaluation[:] = [replace(event, seq=seq) for seq, event in enumerate(made.evaluation)]
    kept = len(made.evaluation)
    made.add(made.evaluation, Kind.ROLLOUT, 19, **{**failed.data, "versions": [19]})
    made.add(made.evaluation, Kind.RESUMED, from_step=18, from_seq=kept, attempt=2, forced=[])
    made.evaluate(19, 180)
    assert wrong(made) == []


def test_an_evaluation_may_run_otherwise_within_the_rules() -> None:
    made = run([160])
    elsewhere = {**SETTINGS, "agent": {**SETTINGS["agent"], "agent_timeout_s": 3600.0}, "hardware": {"nodes": 8}}
    made.add(made.evaluation, Kind.RESUMED, from_step=18, from_seq=len(made.evaluation), attempt=2, forced=[],
             settings=elsewhere)
    made.evaluate(19, 180)
    assert wrong(made) == []
    made.change(made.evaluation, Kind.RESUMED, 0, settings={**SETTINGS, "agent": {"use": "other"}})
    assert wrong(made) == ["evaluation settings"]


def test_other_checkpoints_are_no_weights_to_evaluate() -> None:
    made = run()
    made.add(made.training, Kind.CHECKPOINT, 10, folder="step-00010", what="full")
    made.add(made.training, Kind.CHECKPOINT, folder="final", what="weights")
    assert wrong(made) == []


def test_the_open_division_has_its_own_learning_rate_and_convergence() -> None:
    made = run([180])
    made.change(made.training, Kind.UPDATE, 3, learning_rate=5e-6)
    assert wrong(made) == ["learning rate"]
    assert wrong(made, division=Division.OPEN) == []
    assert judged(made).keys() - judged(made, division=Division.OPEN).keys() == {
        "learning rate", "reference convergence"}


def resumed(made: Journals) -> None:
    end = made.training.pop()
    made.add(made.training, Kind.RESUMED, from_step=20, from_seq=end.seq, attempt=2, forced=[])


def inline(made: Journals) -> None:
    made.training.insert(-1, next(event for event in made.evaluation if event.kind == Kind.VALIDATION))


def other_group(made: Journals) -> None:
    made.change(made.evaluation, Kind.ROLLOUT, 4, group_id=0)


def other_task(made: Journals) -> None:
    made.change(made.evaluation, Kind.ROLLOUT, 4, task_id="task-0")


def twice(made: Journals) -> None:
    for number in range(K):
        made.change(made.evaluation, Kind.ROLLOUT, K + number, task_id="task-0")


def eight(made: Journals) -> None:
    again = [replace(event, data={**event.data, "group_id": TASKS}) for event in made.evaluation[2:2 + K]]
    made.evaluation[2:2] = again


def change(journal: str, kind: Kind, number: int, **data: Any) -> Callable[[Journals], None]:
    return lambda made: made.change(getattr(made, journal), kind, number, **data)


def gap(step: int) -> Callable[[Journals], None]:
    """No weights of a step, and so no evaluation of them."""
    def act(made: Journals) -> None:
        made.drop(made.training, Kind.CHECKPOINT, step)
        made.evaluation.clear()
        made.begin()
        made.evaluate(18 if step > 18 else 19, 180)

    return act


FAULTS: dict[str, tuple[Callable[[Journals], None], str, str]] = {
    "no seed": (change("training", Kind.RUN_STARTED, 0, seed=None), "seed", "None; should be an integer"),
    "a seed beyond 32 bits": (change("training", Kind.RUN_STARTED, 0, seed=2**32), "seed", "4294967296"),
    "a second attempt": (resumed, "training attempts", "2; what training did"),
    "a training rollout without an end": (change("training", Kind.BATCH, 4, not_samples={"timeout": 2}),
                                          "training rollouts", "2 came to none, in step 5"),
    "another learning rate": (change("training", Kind.UPDATE, 5, learning_rate=2e-6), "learning rate",
                              "2e-06; the rules want 1e-06"),
    "a validation during training": (inline, "deferred evaluation", "while training, after step 18"),
    "no weights of the last step": (lambda made: made.drop(made.training, Kind.CHECKPOINT, 20), "saved weights",
                                    "of step 18, 19; training ended with step 20"),
    "the time of something else": (change("training", Kind.CHECKPOINT, 1, updated_at=ended(30)), "saved weights",
                                   "kept for step 19"),
    "other weights than were saved": (change("evaluation", Kind.EVALUATION_STARTED, 0, checkpoints=[
        {"step": step, "folder": "", "updated_at": ended(step + (step == 19))} for step in (18, 19, 20)]),
        "evaluated weights", "evaluated for step 19"),
    "weights left out": (change("evaluation", Kind.EVALUATION_STARTED, 0, checkpoints=[
        {"step": step, "folder": "", "updated_at": ended(step)} for step in (18, 19)]), "evaluated weights",
        "left out: step 20"),
    "another agent": (change("evaluation", Kind.EVALUATION_STARTED, 0, settings={
        **SETTINGS, "agent": {**SETTINGS["agent"], "max_turns": 60}}), "evaluation settings",
        "agent.max_turns 60; the rules want 30"),
    "a gap in the evaluation": (lambda made: made.drop(made.evaluation, Kind.VALIDATION, 18), "validation schedule",
                                "after step 19; the rules want one after every step from 18 on"),
    "fewer tasks": (change("evaluation", Kind.VALIDATION, 0, tasks=128, passed=10), "validation after step 18",
                    "128 tasks x 4; the rules want 251 x 4"),
    "fewer rollouts a task": (change("evaluation", Kind.VALIDATION, 1, k=1), "validation after step 19",
                              "251 tasks x 1"),
    "rollouts that timed out": (change("evaluation", Kind.VALIDATION, 0, ends={"completed": 1000, "timeout": 4}),
                                "validation after step 18", "4 of 1004 rollouts did not end normally"),
    "a rollout in another group": (other_group, "validation after step 18", "are not 4 of each of 251"),
    "a rollout of another task": (other_task, "validation after step 18", "are not 4 of each of 251"),
    "a task twice": (twice, "validation after step 18", "are not 4 of each of 251"),
    "a task with twice the rollouts": (eight, "validation after step 18", "are not 4 of each of 251"),
    "a rollout too few": (change("evaluation", Kind.ROLLOUT, 4, end="failed"), "validation after step 18", "are not 4"),
    "a rollout of other weights": (change("evaluation", Kind.ROLLOUT, 4, versions=[17, 18]), "validation after step 18",
                                   "1 of its rollouts came from other weights"),
    "rollouts of no weights": (change("evaluation", Kind.ROLLOUT, 4, versions=[]), "validation after step 18",
                               "1 of its rollouts came from other weights"),
    "rollouts that nobody counted": (change("evaluation", Kind.VALIDATION, 0, ends={"completed": 1000}),
                                     "validation after step 18", "1000 rollouts ended, not 1004"),
    "no weights before it": (lambda made: made.drop(made.evaluation, Kind.REFIT, 19), "validation after step 19",
                             "got no weights of step 19"),
    "other weights before it": (change("evaluation", Kind.REFIT, 0, version=20), "validation after step 18",
                                "got no weights of step 18"),
    "another version": (change("evaluation", Kind.VALIDATION, 1, version=20), "validation after step 19",
                        "got no weights of step 19"),
    "another share": (change("evaluation", Kind.VALIDATION, 0, metrics={"pass_k": 0.7, "accuracy": 160 / 1004}),
                      "validation after step 18", "pass_k 0.7, by its rollouts 0.63745"),
    "another mean": (change("evaluation", Kind.VALIDATION, 0, metrics={"pass_k": 160 / 251, "accuracy": 0.5}),
                     "validation after step 18", "accuracy 0.5, by its rollouts 0.159363"),
    "an update too few": (lambda made: made.drop(made.training, Kind.UPDATE, 3), "training steps", "step 3 has not"),
    "a batch too few": (lambda made: made.drop(made.training, Kind.BATCH, 3), "training steps", "step 3 has not"),
    "a smaller batch": (change("training", Kind.BATCH, 3, rollouts=240), "training steps", "step 4 has not one batch"),
    "a rule that the run does not own up to": (change("training", Kind.RUN_STARTED, 0, settings={
        **SETTINGS, "agent": {"use": "mock"}}), "settings", "agent.use mock; the rules want openhands"),
    "more solved than rollouts say": (change("evaluation", Kind.VALIDATION, 0, passed=161), "validation after step 18",
                                      "161 tasks solved, by its rollouts 160"),
}


CONSEQUENCES = {"saved weights": {"evaluated weights"}, "training steps": {"saved weights"},
                "settings": {"evaluation settings"}}
"""What else a fault of one kind shows as."""


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str) -> None:
    act, rule, says = FAULTS[name]
    made = run()
    act(made)
    assert set(wrong(made)) - CONSEQUENCES.get(rule, set()) == {rule}
    assert says in judged(made)[rule].message


def cut_off(solved: int, of: int, passed: int) -> Journals:
    """An evaluation that was interrupted when ``solved`` of ``of`` tasks had been, and went on to find ``passed``."""
    made = run([160])
    kept = len(made.evaluation)
    made.evaluate(19, solved)
    made.evaluation[kept + 1 + K * of:] = []
    made.add(made.evaluation, Kind.RESUMED, from_step=18, from_seq=kept, attempt=2, forced=[])
    made.evaluate(19, passed)
    return made


@pytest.mark.parametrize(("solved", "of", "passed", "ok"), [
    (160, 251, 180, False), (40, 118, 174, False), (40, 117, 174, True), (160, 251, 173, True), (180, 251, 180, True),
    (0, 0, 180, True)])
def test_an_evaluation_is_not_repeated_until_it_passes(solved: int, of: int, passed: int, ok: bool) -> None:
    """Of 251 tasks 77 may stay unsolved."""
    made = cut_off(solved, of, passed)
    found = judged(made)["evaluation attempts"]
    assert found.ok is ok and ("evaluation attempts" in wrong(made)) is not ok
    assert found.message == ("2; none found otherwise what one before it had decided" if ok else
                             "step 19 was interrupted when its rollouts had missed the target")


def test_a_validation_that_stands_is_not_left_out() -> None:
    made = run([160])
    kept = len(made.evaluation)
    made.evaluate(19, 173)
    made.add(made.evaluation, Kind.RESUMED, from_step=18, from_seq=kept, attempt=2, forced=[])
    made.evaluate(19, 180)
    assert wrong(made) == ["evaluation attempts"]
    assert judged(made)["evaluation attempts"].message == "what a validation of step 19 had said was left out"


@pytest.mark.parametrize("step", [18, 19])
def test_a_gap_in_the_series_is_an_error(step: int) -> None:
    made = run()
    gap(step)(made)
    assert "saved weights" in wrong(made)


def test_the_target_is_met_last_and_once() -> None:
    assert judged(run([160, 173]))["target"].message == "no validation had 174 of 251 tasks solved"
    assert judged(run([174, 180]))["target"].message == "validations went on after the one that met it"
    assert "reference convergence" not in judged(run([160, 173]))


def test_a_training_that_nothing_was_evaluated_of() -> None:
    made = run()
    made.evaluation.clear()
    found = judged(made)
    assert "grpo-bench eval RUN" in found["deferred evaluation"].message
    assert {rule for rule, finding in found.items() if not finding.ok} == {
        "deferred evaluation", "evaluated weights", "validation schedule", "target"}
