"""A made-up run, event by event, with times that add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Event, Kind, Phase, Status, divided
from grpo_bench.observers import EVALUATION, Journal, Tally, journal_sha256

BREAK_S = 60.0
"""What lies between two processes."""


class History:
    """Builds events on a clock of its own."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0.0
        self.step: int | None = None
        self.began = datetime(2026, 1, 1, tzinfo=UTC)
        self.first = 0

    def at(self, ago_s: float = 0.0) -> str:
        return (self.began + timedelta(seconds=self.now - ago_s)).isoformat(timespec="microseconds")

    def emit(self, kind: Kind, after: float = 0.0, **data: Any) -> Event:
        self.now += after
        event = Event(len(self.events) - self.first, self.at(), self.now, kind.value, self.step, data)
        self.events.append(event)
        return event

    def another_process(self) -> None:
        self.began += timedelta(seconds=self.now + BREAK_S)
        self.now, self.step = 0.0, None

    def start(self, **changed: Any) -> None:
        self.emit(Kind.RUN_STARTED, **{
            "run": "r-laptop-0", "profile": "laptop", "seed": 0, "target": 0.5, "metric": "pass_k", "max_steps": 4,
            "prompts_per_step": 2, "generations_per_prompt": 2, "scored": True} | changed)
        self.phase(Phase.STARTUP)

    def phase(self, phase: Phase, after: float = 0.0) -> None:
        self.emit(Kind.PHASE, after, phase=phase.value)

    def rollout(self, name: str, purpose: str = "train", after: float = 0.25, **changed: Any) -> None:
        durations = {"queue": 0.1, "sandbox_start": 0.01, "generate": 0.5, "environment": 0.2, "score": 0.05}
        self.emit(Kind.ROLLOUT, after, **{
            "rollout_id": name, "group_id": 0, "task_id": "t-1", "purpose": purpose, "end": "completed", "cause": None,
            "message": None, "reward": 1.0, "turns": 3, "sampled_tokens": 20, "versions": [0], "durations": durations,
            "counters": {}, "attempt": 0} | changed)

    def validate(self, passed: int) -> None:
        self.phase(Phase.VALIDATION)
        for index in range(8):
            self.rollout(f"v{self.step}.{index}", "validation", 0.0)
        metrics = {"accuracy": 0.25, "pass_k": passed / 4, "pass_hat_k": 0.1, "pass_1": 0.25}
        self.emit(Kind.VALIDATION, 1.0, version=self.step, k=2, tasks=4, passed=passed, metrics=metrics,
                  standard_error=0.05, seconds=1.0, ends={"completed": 8}, target_met=passed >= 2)

    def one_step(self, step: int, passed: int) -> None:
        self.train(step)
        self.validate(passed)

    def train(self, step: int) -> None:
        """3.4 s: the update ends 0.25 s before its event."""
        self.step, began = step, self.now
        self.phase(Phase.ROLLOUT)
        for index in range(4):
            self.rollout(f"t{step}.{index}")
        self.phase(Phase.ADVANTAGES)
        self.emit(Kind.BATCH, 0.1, rows=4, rollouts=4, tokens=400, n_tokens=80.0, n_sequences=4.0, reward_mean=0.3,
                  advantage_zero_groups=1, masked={"truncated": 1}, ages={"0": 4})
        self.phase(Phase.UPDATE)
        self.now += 2.0
        self.emit(Kind.UPDATE, loss=0.01, grad_norm=0.5, learning_rate=1e-3, tokens=400, ended_at=self.at(0.25),
                  metrics={})
        self.phase(Phase.REFIT)
        self.emit(Kind.REFIT, 0.2, version=step, bytes=10, seconds=0.2, probe_difference=1e-6, transport="files")
        self.phase(Phase.JOURNAL)
        self.emit(Kind.STEP, 0.1, version=step, seconds=self.now + 0.1 - began, reward_mean=0.3, rollouts=4,
                  sampled_tokens=80)

    def keep_weights(self) -> None:
        """Save the weights of the step for an evaluation: 0.3 s."""
        updated_at = next(event.data["ended_at"] for event in reversed(self.events) if event.kind == Kind.UPDATE)
        self.phase(Phase.CHECKPOINT)
        self.emit(Kind.CHECKPOINT, 0.3, folder=f"weights-{self.step:05d}", what="weights", seconds=0.3, bytes=1,
                  updated_at=updated_at)

    def evaluation(self, **changed: Any) -> None:
        """Another process begins to evaluate all weights that were kept; its start-up takes 0.5 s."""
        kept = {event.step: event.data for event in self.events if "updated_at" in event.data}
        self.another_process()
        self.first = len(self.events)
        self.emit(Kind.EVALUATION_STARTED, **{
            "run": "r-laptop-0", "training_sha256": "", "metric": "pass_k", "target": 0.5, "k": 2, "scored": True,
            "unscored": [], "checkpoints": [{"step": step, "folder": data["folder"], "updated_at": data["updated_at"]}
                                            for step, data in kept.items()]} | changed)
        self.phase(Phase.STARTUP)
        self.now += 0.5

    def evaluation_goes_on(self, attempt: int, from_step: int, from_seq: int) -> None:
        self.another_process()
        self.emit(Kind.RESUMED, from_step=from_step, from_seq=from_seq, attempt=attempt, forced=[])
        self.phase(Phase.STARTUP)
        self.now += 0.5

    def evaluate(self, step: int, passed: int) -> None:
        """Load the weights of a step in 0.2 s and validate them in 1.0 s."""
        self.step = step
        self.phase(Phase.REFIT)
        self.emit(Kind.REFIT, 0.2, version=step, bytes=10, seconds=0.2, probe_difference=1e-6, transport="safetensors")
        self.validate(passed)

    def end(self, status: Status) -> None:
        self.phase(Phase.SHUTDOWN)
        self.now += 0.4
        tally = Tally()
        for event in self.events:
            tally.add(event)
        self.emit(Kind.RUN_ENDED, **tally.ending(status, elapsed_s=self.now, cpu_s=9.0, weights_sha256="ab" * 32))

    def checkpoint(self) -> int:
        """Write a checkpoint; returns the number of the first event that is not in it."""
        self.phase(Phase.CHECKPOINT)
        self.emit(Kind.CHECKPOINT, 0.5, folder=f"step-{self.step:05d}", what="full", seconds=0.5, bytes=1)
        return len(self.events)

    def resume(self, attempt: int, from_step: int, from_seq: int, **changed: Any) -> None:
        """Another process goes on: its set-up takes 1.2 s."""
        self.another_process()
        self.emit(Kind.RESUMED, **{
            "from_step": from_step, "from_seq": from_seq, "attempt": attempt, "forced": []} | changed)
        self.phase(Phase.STARTUP)
        self.phase(Phase.REFIT, after=1.0)
        self.emit(Kind.REFIT, 0.2, version=from_step, bytes=10, seconds=0.2, probe_difference=0.0, transport="files")

    def save(self, folder: Path) -> Path:
        """Write the journals into a run folder."""
        training, evaluation = divided(self.events)
        path = write(folder, training)
        if evaluation:
            evaluation[0].data["training_sha256"] = journal_sha256(path)  # type: ignore[index]
            write(folder / EVALUATION, evaluation)
        return folder


def write(folder: Path, events: list[Event]) -> Path:
    folder.mkdir(exist_ok=True)
    journal = Journal(folder)
    for event in events:
        journal.write(event)
    journal.close()
    return journal.path


@pytest.fixture
def history() -> History:
    """A history without events."""
    return History()


@pytest.fixture
def resumed(history: History) -> History:
    """Cut off in step 3 and again in step 2, both times gone on from step 1, forced the first time; then it met its
    target at step 3. Attempts of 11.5 s, 5.6 s and 10.4 s."""
    history.start()
    history.now += 1.0
    history.step = 0
    history.validate(1)
    history.one_step(1, 1)
    saved = history.checkpoint()
    history.one_step(2, 1)
    history.step = 3
    history.phase(Phase.ROLLOUT)
    history.rollout("t3.0")
    history.resume(2, 1, saved, forced=["trainer.learning_rate: was 0.001, is 0.002"])
    history.one_step(2, 1)
    history.resume(3, 1, saved)
    history.one_step(2, 1)
    history.one_step(3, 3)
    history.end(Status.TARGET_MET)
    return history


@pytest.fixture
def met(history: History) -> History:
    """A run whose second step met the target: 1 s of start-up, a base validation, steps of 4.4 s."""
    history.start()
    history.now += 1.0
    history.step = 0
    history.validate(1)
    history.one_step(1, 1)
    history.one_step(2, 3)
    history.end(Status.TARGET_MET)
    return history


@pytest.fixture
def trained(history: History) -> History:
    """A training whose evaluation is deferred: five steps after 1 s of start-up, the weights of steps 2 to 5 kept."""
    history.start(max_steps=5)
    history.now += 1.0
    for step in range(1, 6):
        history.train(step)
        if step > 1:
            history.keep_weights()
    history.end(Status.TRAINED)
    return history


@pytest.fixture
def evaluated(trained: History) -> History:
    """The same, evaluated: the first two checkpoints missed the target, the third met it."""
    trained.evaluation()
    for step, passed in ((2, 1), (3, 1), (4, 3)):
        trained.evaluate(step, passed)
    trained.end(Status.TARGET_MET)
    return trained


@pytest.fixture
def evaluated_again(trained: History) -> History:
    """The same, but the evaluation was cut off in its second checkpoint, went on, and no checkpoint met the target."""
    trained.evaluation()
    trained.evaluate(2, 1)
    done = trained.events[-1].seq + 1
    trained.step = 3
    trained.phase(Phase.REFIT)
    trained.phase(Phase.VALIDATION, 0.2)
    trained.rollout("v3.0", "validation")
    trained.evaluation_goes_on(2, 2, done)
    for step in (3, 4, 5):
        trained.evaluate(step, 1)
    trained.end(Status.TARGET_MISSED)
    return trained
