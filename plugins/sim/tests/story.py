"""Journals of runs that never took place, with the times that a test gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Kind, Phase
from grpo_bench.observers import EVALUATION, Journal, journal_sha256
from grpo_bench.testing.history import profile

PROMPTS, SIZE = 2, 2
BATCH = PROMPTS * SIZE


class Story:
    """Events as they come; ``now`` is the clock of the process. A step has two prompts of two rollouts."""

    def __init__(self, *, deferred: bool = False, schedule: Mapping[str, Any] | None = None, **more: Any) -> None:
        self.settings = profile(deferred)
        self.settings["schedule"] |= schedule or {}
        self.events: list[Event] = []
        self.evaluation: list[Event] = []
        self._into = self.events
        self.now = 0.0
        self.add(Kind.RUN_STARTED, **{
            "run": "story", "profile": "told", "seed": 0, "target": 1.0, "metric": "pass_k", "max_steps": 9,
            "prompts_per_step": PROMPTS, "generations_per_prompt": SIZE, "scored": False, "settings": self.settings,
            "placements": {"generator": {"workers": 1}}, **more})
        self.phase(Phase.STARTUP)

    def add(self, kind: str, step: int | None = None, **data: Any) -> None:
        self._into.append(Event(len(self._into), "2030-01-02T03:04:05+00:00", self.now, kind, step, data))

    def phase(self, phase: str, step: int | None = None, seconds: float = 0.0) -> None:
        self.add(Kind.PHASE, step, phase=phase)
        self.now += seconds

    def begin(self, start: float = 10.0, refit: float = 1.0) -> Story:
        """The start-up and the first refit."""
        self.now += start
        self.refit(None, 0, refit)
        return self

    def resume(self, from_step: int, start: float = 20.0, refit: float = 1.0) -> Story:
        """Another process goes on."""
        self.now = 0.0
        self.add(Kind.RESUMED, from_step=from_step, from_seq=len(self.events), attempt=2, forced=[])
        self.phase(Phase.STARTUP, seconds=start)
        self.refit(None, from_step, refit)
        return self

    def refit(self, step: int | None, version: int, seconds: float) -> None:
        self.phase(Phase.REFIT, step, seconds)
        self.add(Kind.REFIT, step, version=version, bytes=1000, seconds=seconds, probe_difference=None)

    def rollout(self, step: int, name: str, *, group: int | None = None, purpose: str = "train", queue: float = 0.0,
                generate: float = 4.0, environment: float = 0.0, score: float = 0.0, tokens: int = 10, turns: int = 2,
                end: str = "completed", attempt: int = 0) -> None:
        self.add(Kind.ROLLOUT, step, rollout_id=name, group_id=(step - 1) * PROMPTS if group is None else group,
                 task_id="task", purpose=purpose, end=end, cause=None if end == "completed" else "environment",
                 message=None, reward=0.0 if end == "completed" else None, turns=turns, sampled_tokens=tokens,
                 durations={"queue": queue, "sandbox_start": 0.0, "generate": generate, "environment": environment,
                            "score": score}, attempt=attempt)

    def rollouts(self, step: int, generate: Sequence[float] = (1.0, 2.0, 3.0, 4.0), *, tokens: int = 10) -> None:
        """The rollouts of a step, in the phase of waiting for them, which lasts as long as the longest."""
        self.phase(Phase.ROLLOUT, step)
        began = self.now
        for place, seconds in sorted(enumerate(generate), key=lambda item: item[1]):
            self.now = began + seconds
            group = (step - 1) * PROMPTS + place % PROMPTS
            self.rollout(step, f"t{group}.{place // PROMPTS}", group=group, generate=seconds, tokens=tokens)

    def work(self, step: int, *, log_probabilities: float = 2.0, advantages: float = 0.1, update: float = 5.0,
             drain: float = 0.2, refit: float = 0.5, journal: float = 0.3, tokens: int = 40) -> None:
        """The rest of a step."""
        self.phase(Phase.LOG_PROBABILITIES, step, log_probabilities)
        self.phase(Phase.ADVANTAGES, step, advantages)
        self.add(Kind.BATCH, step, rows=BATCH, rollouts=BATCH, tokens=100, n_tokens=float(tokens), reward_mean=0.0)
        self.phase(Phase.UPDATE, step, update)
        self.add(Kind.UPDATE, step, loss=0.0, grad_norm=0.0)
        self.phase(Phase.DRAIN, step, drain)
        self.refit(step, step, refit)
        self.phase(Phase.JOURNAL, step)
        self.add(Kind.STEP, step, version=step, seconds=1.0, reward_mean=0.0, rollouts=BATCH, sampled_tokens=tokens)
        self.now += journal

    def step(self, step: int, generate: Sequence[float] = (1.0, 2.0, 3.0, 4.0), **work: Any) -> Story:
        self.rollouts(step, generate)
        self.work(step, **work)
        return self

    def validate(self, step: int | None, generate: Sequence[float] = (5.0, 6.0), *, met: bool = False,
                 drain: float = 0.0) -> Story:
        self.phase(Phase.DRAIN, step, drain)
        self.phase(Phase.VALIDATION, step, max(generate))
        for place, seconds in enumerate(generate):
            self.rollout(step or 0, f"v{step or 0}.{place}.0", group=place, purpose="validation", generate=seconds)
        metrics = dict.fromkeys(("accuracy", "pass_k", "pass_hat_k", "pass_1"), float(met))
        self.add(Kind.VALIDATION, step, version=step or 0, k=1, tasks=len(generate), passed=0, metrics=metrics,
                 standard_error=0.0, seconds=max(generate), target_met=met)
        return self

    def save(self, step: int, what: str = "full", seconds: float = 7.0) -> Story:
        self.phase(Phase.CHECKPOINT, step, seconds)
        self.add(Kind.CHECKPOINT, step, folder=f"step-{step}", what=what, seconds=seconds, bytes=3000)
        return self

    def end(self, status: str = "completed", shutdown: float = 3.0) -> Story:
        self.phase(Phase.SHUTDOWN, seconds=shutdown)
        self.add(Kind.RUN_ENDED, status=status, metric="pass_k", value=None, target=1.0, steps=1,
                 time_to_target_s=None, wall_s=self.now, cpu_s=None, weights_sha256=None, ledger={})
        return self

    def evaluate(self, folder: Path) -> Story:
        """What follows is the journal of the evaluation, of the training that :meth:`write` wrote to ``folder``."""
        self._into, self.now = self.evaluation, 0.0
        self.add(Kind.EVALUATION_STARTED, run="story", training_sha256=journal_sha256(folder / "events.jsonl"),
                 metric="pass_k", target=1.0, k=1, scored=False, unscored=[], settings=self.settings, checkpoints=[
                     {"step": event.step, "folder": event.data["folder"], "updated_at": event.at}
                     for event in self.events if event.kind == Kind.CHECKPOINT])
        self.phase(Phase.STARTUP, seconds=1000.0)
        return self

    def write(self, folder: Path) -> Path:
        """The run folder of what was told so far."""
        for place, events in ((folder, self.events), (folder / EVALUATION, self.evaluation)):
            if not events or (place / "events.jsonl").exists():
                continue
            place.mkdir(parents=True, exist_ok=True)
            journal = Journal(place)
            for event in events:
                journal.write(event)
            journal.close()
        return folder
