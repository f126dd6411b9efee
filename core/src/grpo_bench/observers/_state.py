"""What a live display knows about a run: a fold over its events."""

from __future__ import annotations

from collections import deque
from statistics import mean
from typing import Any

from ..contract import Event, Kind, Metric, Phase, Purpose, RunFacts
from ._text import metric_label

_RECENT = 10


class RunState:
    """The state after the events it was fed. ``done`` and ``total`` count the rollouts of the batch or the validation
    that is under way; ``total`` is None where nobody knows it yet. ``saved`` are the steps whose weights the training
    left to a deferred evaluation, ``weights`` those that it goes through: none while there is no evaluation.
    ``modelled`` says where a simulation's times are from."""

    def __init__(self) -> None:
        self.run = self.profile = self.modelled = ""
        self.seed = self.step = self.max_steps = 0
        self.metric: str | None = None
        self.target: float | None = None
        self.k: int | None = None
        self.phase: str = Phase.STARTUP
        self.elapsed_s = 0.0
        self._values: dict[int, float] = {}
        self.standard_error: float | None = None
        self._rewards: dict[int, float] = {}
        self.step_seconds: float | None = None
        self.loss: float | None = None
        self.rate: float | None = None
        self.done = {Purpose.TRAIN: 0, Purpose.VALIDATION: 0}
        self.total: dict[Purpose, int | None] = {Purpose.TRAIN: None, Purpose.VALIDATION: None}
        self.saved: list[int] = []
        self.weights: list[int] = []
        self._turned_to: int | None = None
        self._tokens = 0
        self._stepped_s = 0.0
        self._intervals: deque[float] = deque(maxlen=_RECENT)

    def expect(self, run: RunFacts) -> None:
        """Take what the profile says about sizes."""
        validation: dict[str, Any] = run.profile.get("validation") or {}
        self.k = validation.get("k")
        if validation.get("max_tasks") and self.k:
            self.total[Purpose.VALIDATION] = validation["max_tasks"] * self.k

    def add(self, event: Event) -> None:
        self.elapsed_s = event.elapsed_s
        data = event.data
        if self.weights:
            self._turned_to = event.step
        match event.kind:
            case Kind.RUN_STARTED:
                self._started(data)
            case Kind.PHASE:
                if self.phase == Phase.STARTUP:
                    self._stepped_s = event.elapsed_s
                self.phase = data["phase"]
            case Kind.ROLLOUT:
                self.done[Purpose(data["purpose"])] += 1
                self._tokens += data["sampled_tokens"]
            case Kind.BATCH:
                self.done[Purpose.TRAIN] = max(0, self.done[Purpose.TRAIN] - data["rollouts"])
            case Kind.UPDATE:
                self.loss = data["loss"]
            case Kind.VALIDATION:
                self._validated(event.step or 0, data)
                if self.weights:
                    self._moved(event)
            case Kind.CHECKPOINT if data.get("updated_at"):
                self.saved.append(event.step or 0)
            case Kind.EVALUATION_STARTED:
                self.weights = [checkpoint["step"] for checkpoint in data["checkpoints"]]
                self._begin_anew()
            case Kind.STEP:
                self._stepped(event)
            case Kind.RESUMED:
                self._resumed(data["from_step"])

    @property
    def metric_name(self) -> str:
        return metric_label(self.metric, self.k)

    @property
    def values(self) -> list[float]:
        """The metric at each validation."""
        return list(self._values.values())

    @property
    def rewards(self) -> list[float]:
        """The mean reward of each step that has one."""
        return list(self._rewards.values())

    @property
    def value(self) -> float | None:
        return self.values[-1] if self._values else None

    @property
    def evaluated(self) -> int:
        """How many of the weights are."""
        return sum(step in self._values for step in self.weights)

    @property
    def place(self) -> tuple[int, int]:
        """Which of the weights are being evaluated, counted from 1, and their step."""
        step = self._turned_to if self._turned_to in self.weights else self.weights[
            min(self.evaluated, len(self.weights) - 1)]
        return self.weights.index(step) + 1, step

    @property
    def under_way(self) -> tuple[int, int | None]:
        """Rollouts that ended, and how many are wanted, in the batch or validation of the current phase."""
        purpose = Purpose.VALIDATION if self.phase == Phase.VALIDATION or self.weights else Purpose.TRAIN
        total = self.total[purpose]
        return (self.done[purpose] if total is None else min(self.done[purpose], total)), total

    def left_s(self) -> float | None:
        """Seconds until the last step or checkpoint at the recent pace, validations included; the target may be met
        before, and steps may take longer as the policy changes."""
        left = len(self.weights) - self.evaluated if self.weights else self.max_steps - self.step
        return left * mean(self._intervals) if self._intervals else None

    def _started(self, data: Any) -> None:
        self.run, self.profile, self.seed = data["run"], data["profile"], data["seed"]
        self.modelled = data.get("modelled", "")
        self.metric, self.target, self.max_steps = data["metric"], data["target"], data["max_steps"]
        self.total[Purpose.TRAIN] = data["prompts_per_step"] * data["generations_per_prompt"]

    def _validated(self, step: int, data: Any) -> None:
        self.k = data["k"]
        self.metric = self.metric or Metric.usual(data["k"])
        self._values[step] = data["metrics"][self.metric]
        self.standard_error = data["standard_error"]
        self.done[Purpose.VALIDATION] = 0
        self.total[Purpose.VALIDATION] = data["tasks"] * data["k"]

    def _stepped(self, event: Event) -> None:
        self.step = event.step or 0
        if event.data["reward_mean"] is not None:
            self._rewards[self.step] = event.data["reward_mean"]
        self._moved(event)

    def _moved(self, event: Event) -> None:
        """A step or the evaluation of a checkpoint is over."""
        seconds: float = event.data["seconds"]
        self.step_seconds = seconds
        passed = event.elapsed_s - self._stepped_s
        self._intervals.append(passed if self._intervals else seconds)
        self.rate = self._tokens / passed if passed > 0 else None
        self._tokens, self._stepped_s = 0, event.elapsed_s

    def _resumed(self, from_step: int) -> None:
        """Another process goes on from a checkpoint."""
        self._begin_anew()
        if not self.weights:
            self.step = from_step
            self.saved = [step for step in self.saved if step <= from_step]
        for curve in (self._values,) if self.weights else (self._values, self._rewards):
            for step in [step for step in curve if step > from_step]:
                del curve[step]

    def _begin_anew(self) -> None:
        """A process begins, with a clock of its own."""
        self.phase, self._tokens, self._stepped_s, self._turned_to = Phase.STARTUP, 0, 0.0, None
        self.done = dict.fromkeys(Purpose, 0)
        self._intervals.clear()
