"""The events of runs that never took place, in the form in which the engine records them.

One short run of two steps is told in whole, with everything that can happen in it: a rollout that failed and was tried
again, an alarm, a stall, validations, checkpoints. The other histories are made of it: one that fails, one that is
interrupted and goes on, one that is evaluated when its training is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ..contract import (
    End, Event, FinishReason, Group, Kind, Phase, Position, Purpose, Role, Status, TokenSequence, Trajectory, Turn,
    ValidationReport,
)
from ..observers.summary import Tally
from ..registry import Profile

PROMPTS, SIZE, STEPS, K, TASKS = 2, 2, 2, 2, 2
"""Prompts of a step, rollouts of each, steps, rollouts of a validated task, tasks."""
_BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
_BREAK_S = 60.0
_SOFTWARE = "4" * 64


def profile(deferred: bool = False) -> dict[str, Any]:
    """A resolved profile as JSON data."""
    part = {"use": "conformance"}
    roles = [role.value for role in Role if role not in (Role.OBSERVER, Role.RULESET)]
    return Profile.model_validate({
        **dict.fromkeys(roles, part), "policy": {"checkpoint": "policy", "max_context": 256},
        "grpo": {"prompts_per_step": PROMPTS, "generations_per_prompt": SIZE, "max_steps": STEPS},
        "validation": {"split": "heldout", "max_tasks": TASKS, "k": K, "metric": "pass_k", "target": 1.0,
                       "deferred": deferred},
        "checkpoint": {"period": 0 if deferred else 1}, "observers": [part]}).model_dump(mode="json")


class Recording:
    """Events as they come, numbered and timed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tally = Tally()
        self.elapsed_s = self._before_s = 0.0
        self._first = 0

    @property
    def at(self) -> str:
        """The time of day of the latest event."""
        return (_BEGAN + timedelta(seconds=self._before_s + self.elapsed_s)).isoformat(timespec="microseconds")

    def add(self, kind: str, step: int | None = None, **data: Any) -> None:
        self.elapsed_s += 0.25
        event = Event(len(self.events) - self._first, self.at, self.elapsed_s, kind, step, data)
        self.events.append(event)
        self.tally.add(event)

    def another_process(self) -> None:
        """One goes on, with a clock of its own."""
        self._before_s += self.elapsed_s + _BREAK_S
        self.elapsed_s = 0.0

    def another_journal(self) -> None:
        self.another_process()
        self._first = len(self.events)

    def end(self, status: Status, step: int | None) -> None:
        self.add(Kind.PHASE, step, phase=Phase.SHUTDOWN.value)
        self.elapsed_s += 0.25
        self.add(Kind.RUN_ENDED, step, **self.tally.ending(
            status, elapsed_s=self.elapsed_s + 0.25, cpu_s=3.0, weights_sha256="0" * 64))


def whole_run() -> list[Event]:
    """A run that meets its target at its second step."""
    recording = _begun()
    for step in range(1, STEPS + 1):
        _step(recording, step)
    recording.end(Status.TARGET_MET, STEPS)
    return recording.events


def failed_run() -> list[Event]:
    """A run that fails in its second step."""
    recording = _begun()
    _step(recording, 1)
    recording.add(Kind.ERROR, 2, type="PluginError", message="ValueError: no", hint="see engine.log", plugin="acme",
                  role="trainer", task=None, traceback="Traceback (most recent call last):\n  ...\nValueError: no")
    recording.end(Status.FAILED, 2)
    return recording.events


def resumed_run() -> tuple[list[Event], list[Event]]:
    """A run that was cut off in its second step, and its second attempt, which goes on after the first."""
    recording = _begun()
    _step(recording, 1)
    first = len(recording.events)
    _rollouts(recording, 2)
    cut = len(recording.events)
    recording.another_process()
    recording.add(Kind.RESUMED, from_step=1, from_seq=first, attempt=2, forced=[], provenance_sha256=_SOFTWARE)
    recording.add(Kind.PHASE, phase=Phase.STARTUP.value)
    _refit(recording, None, 1)
    _step(recording, 2)
    recording.end(Status.TARGET_MET, STEPS)
    return recording.events[:cut], recording.events[cut:]


def deferred_run() -> tuple[list[Event], list[Event]]:
    """A run whose evaluation is deferred: its training, and its evaluation. That finds at the second checkpoint that
    the target was met."""
    recording = _begun(deferred=True)
    for step in range(1, STEPS + 1):
        _train(recording, step)
        _save(recording, step, f"weights-{step:05d}", "weights", updated_at=_updated_at(recording), seal="5" * 64)
    recording.end(Status.TRAINED, STEPS)
    length, started = len(recording.events), recording.events[0].data
    weights = [{"step": event.step, **{key: event.data[key] for key in ("folder", "updated_at")}}
               for event in recording.events if event.kind == Kind.CHECKPOINT]
    recording.another_journal()
    recording.add(Kind.EVALUATION_STARTED, training_sha256="3" * 64, checkpoints=weights, k=K, forced=[],
                  provenance_sha256=_SOFTWARE, **{
        key: started[key] for key in ("run", "metric", "target", "scored", "unscored", "settings", "parts", "observers",
                                      "placements", "tasks")})
    recording.add(Kind.PHASE, phase=Phase.STARTUP.value)
    for step in range(1, STEPS + 1):
        _refit(recording, step, step)
        _validate(recording, step)
    recording.end(Status.TARGET_MET, STEPS)
    return recording.events[:length], recording.events[length:]


def group(number: int, purpose: Purpose = Purpose.TRAIN) -> Group:
    """A group whose first rollout was rewarded and whose second was not."""
    def rollout(index: int) -> Trajectory:
        ids = np.arange(5, dtype=np.int32)
        turn = Turn(ids, ids, np.full(5, -0.5, np.float32), ((5, 0),), FinishReason.STOP, 0.1, 0.1)
        return Trajectory(f"t{number}.{index}", number, f"task-{number}", purpose, (TokenSequence((turn,)),),
                          End.COMPLETED, float(index == 0), durations={"queue": 0.1, "generate": 0.2})

    return Group(number, f"task-{number}", Position(0, number), 0, tuple(rollout(index) for index in range(SIZE)))


def validation(step: int) -> ValidationReport:
    return ValidationReport(step, step, K, TASKS, step, _metrics(step), 0.1, 0.5, {"completed": K * TASKS})


def _metrics(step: int) -> dict[str, float]:
    share = step / STEPS
    return {"accuracy": share, "pass_k": share, "pass_hat_k": share, "pass_1": share}


_NO_HOSTS = {"hosts": [], "units": {}, "crossings": []}


def _begun(deferred: bool = False) -> Recording:
    recording = Recording()
    roles = [role.value for role in Role if role not in (Role.OBSERVER, Role.RULESET)]
    part = {"name": "conformance", "summary": "none", "distribution": "none", "version": "1", "stand_in": True,
            "facts": {}, "env": "", "interpreter": None, "lacking": {}}
    place = {"workers": 1, "threads": 1, "nodes": [], "env": {}}
    recording.add(
        Kind.RUN_STARTED, run="20300101-000000-conformance-0", profile="conformance", seed=0, target=1.0,
        metric="pass_k", max_steps=STEPS, prompts_per_step=PROMPTS, generations_per_prompt=SIZE, scored=False,
        unscored=["it never took place"], settings=profile(deferred), parts=dict.fromkeys(roles, part),
        observers=[part], placements=dict.fromkeys(["trainer", "generator", "rollout"], place), layout=_NO_HOSTS,
        tasks={"train": {"available": 9, "count": PROMPTS * STEPS, "sha256": "1" * 64},
               "heldout": {"available": 4, "count": TASKS, "sha256": "2" * 64}},
        provenance_sha256=_SOFTWARE)
    recording.add(Kind.PHASE, phase=Phase.STARTUP.value)
    _refit(recording, None, 0)
    return recording


def _step(recording: Recording, step: int) -> None:
    _train(recording, step)
    _validate(recording, step)
    _save(recording, step, f"step-{step:05d}", "full")


def _train(recording: Recording, step: int) -> None:
    _rollouts(recording, step)
    recording.add(Kind.PHASE, step, phase=Phase.LOG_PROBABILITIES.value)
    recording.add(Kind.PHASE, step, phase=Phase.ADVANTAGES.value)
    recording.add(
        Kind.BATCH, step, rows=4, rollouts=4, tokens=200, n_tokens=80.0, n_sequences=4.0, reward_mean=0.5,
        not_samples={}, advantage_zero_groups=0, masked={"overlong": 1}, ages={"0": 4},
        metrics={"sequence_error_mean": 1.0})
    recording.add(Kind.ALARM, step, name="advantages", message="something a person should know")
    recording.add(Kind.PHASE, step, phase=Phase.UPDATE.value)
    recording.add(Kind.UPDATE, step, loss=-0.1, grad_norm=0.5, learning_rate=1e-3, tokens=200,
                  ended_at=recording.at, metrics={"ratio": 1.0})
    recording.add(Kind.PHASE, step, phase=Phase.DRAIN.value)
    _refit(recording, step, step)
    recording.add(Kind.PHASE, step, phase=Phase.JOURNAL.value)
    recording.add(Kind.STEP, step, version=step, seconds=2.0, reward_mean=0.5, rollouts=4, sampled_tokens=80)


def _validate(recording: Recording, step: int) -> None:
    recording.add(Kind.PHASE, step, phase=Phase.VALIDATION.value)
    for task in range(TASKS):
        for index in range(K):
            _rollout(recording, step, f"v{step}.{task}.{index}", task, purpose="validation", reward=float(task < step))
    recording.add(Kind.VALIDATION, step, version=step, k=K, tasks=TASKS, passed=step, metrics=_metrics(step),
                  standard_error=0.1, seconds=0.5, ends={"completed": K * TASKS}, target_met=step == STEPS)


def _save(recording: Recording, step: int, folder: str, what: str, **more: Any) -> None:
    recording.add(Kind.PHASE, step, phase=Phase.CHECKPOINT.value)
    recording.add(Kind.CHECKPOINT, step, folder=folder, what=what, seconds=0.1, bytes=1000, **more)


def _updated_at(recording: Recording) -> str:
    return next(event.data["ended_at"] for event in reversed(recording.events) if event.kind == Kind.UPDATE)


def _rollouts(recording: Recording, step: int) -> None:
    recording.add(Kind.PHASE, step, phase=Phase.ROLLOUT.value)
    recording.add(Kind.STALL, step, message="nothing has moved for 130 s in phase rollout", seconds=130.0,
                  waiting={"phase": Phase.ROLLOUT.value, "prompts": PROMPTS, "rollouts": [[]], "generator": {}},
                  stacks={"engine": "File ..."})
    for number in range((step - 1) * PROMPTS, step * PROMPTS):
        _rollout(recording, step, f"t{number}.0", number, end="failed", cause="environment", message="no: such tool",
                 reward=None)
        for index in range(SIZE):
            _rollout(recording, step, f"t{number}.{index}" + ("r1" if index == 0 else ""), number,
                     reward=float(index == 0), attempt=int(index == 0))
        recording.add(Kind.GROUP, step, group_id=number, task_id=f"task-{number}", epoch=0, index=number,
                      target=step - 1, rewards=[1.0, 0.0], oldest_version=step - 1)


def _rollout(recording: Recording, step: int, name: str, number: int, *, purpose: str = "train",
             end: str = "completed", cause: str | None = None, message: str | None = None, reward: float | None,
             attempt: int = 0) -> None:
    durations = dict.fromkeys(["queue", "sandbox_start", "generate", "environment", "score"], 0.1)
    recording.add(
        Kind.ROLLOUT, step, rollout_id=name, group_id=number, task_id=f"task-{number}", purpose=purpose, end=end,
        cause=cause, message=message, reward=reward, turns=2, sampled_tokens=20, versions=[step - 1],
        durations=durations, counters={"malformed_calls": 1}, attempt=attempt, worker=0)


def _refit(recording: Recording, step: int | None, version: int) -> None:
    recording.add(Kind.PHASE, step, phase=Phase.REFIT.value)
    recording.add(Kind.REFIT, step, version=version, bytes=4096, seconds=0.1, probe_difference=1e-6,
                  transport="safetensors")


def with_something_new(events: Sequence[Event]) -> list[Event]:
    """The events with kinds and keys in between that a later version may bring."""
    found: list[Event] = []
    for event in events:
        found += [replace(event, data={**event.data, "of_a_later_version": {"a": [1, None]}}),
                  replace(event, kind="of_a_later_version", data={"b": "c"})]
    return [replace(event, seq=number) for number, event in enumerate(found)]
