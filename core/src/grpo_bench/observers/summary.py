"""What a run came to, from events alone: the object that ``--json`` prints and that ``run_ended`` carries.

The *tally* is the running state behind it: the engine feeds it as events happen and asks for the ending at the end;
anybody else feeds it the journals. An *account* is the time of one journal: training and deferred evaluation have one
each. Times are those of all attempts together: from a run's interruption to its resumption no time counts.

The time to a target is that of the validation that met it. In a deferred evaluation it is the training's time until the
update behind the weights that met it had ended: the update's event, less what passed between that end and the event. A
simulation that leaves its evaluation to later takes the first weights from step ``passes_at`` on for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..contract import Event, Kind, Status
from .ledger import PhaseLedger

KEYS = ("run", "status", "scored", "metric", "value", "target", "steps", "attempts", "time_to_target_s", "wall_s",
        "cpu_s", "weights_sha256", "ledger", "evaluation")
"""Of a run with a deferred evaluation, ``status``, ``value``, ``steps`` and ``time_to_target_s`` are what both came to,
``attempts`` and those from ``wall_s`` to ``ledger`` the training's. A simulation's begin with ``modelled``, where its
times are from, and ``assumed``, which of the others follow from when its target is taken to be met."""
_NOT_COMPUTED = ("value", "cpu_s", "weights_sha256")
_ASSUMED = ("status", "steps", "time_to_target_s")
_OF_THE_TRAINING = ("wall_s", "cpu_s", "weights_sha256", "ledger")


class Account:
    """The time of one journal over its attempts."""

    def __init__(self) -> None:
        self.attempts = 1
        self.ledger = PhaseLedger()
        self.before_s = 0.0
        """What the earlier attempts took."""
        self.ended: Mapping[str, Any] | None = None
        """The data of its last event, where it has one."""
        self._before_cpu_s: float | None = 0.0
        self._last_s = 0.0

    def add(self, event: Event) -> None:
        self.ledger.add(event)
        if event.kind == Kind.RESUMED:
            self.before_s += self._last_s
            self._before_cpu_s = self.ended["cpu_s"] if self.ended else None
            self.ended, self.attempts = None, event.data["attempt"]
        elif event.kind == Kind.RUN_ENDED:
            self.ended = event.data
        self._last_s = event.elapsed_s

    def times(self, elapsed_s: float | None = None, cpu_s: float | None = None) -> dict[str, Any]:
        """Wall clock, CPU time and phases at ``elapsed_s`` of the latest attempt; None: at its latest event."""
        now = self._last_s if elapsed_s is None else elapsed_s
        cpu_s = None if self._before_cpu_s is None or cpu_s is None else self._before_cpu_s + cpu_s
        return {"wall_s": self.before_s + now, "cpu_s": cpu_s, "ledger": self.ledger.phases(now)}


@dataclass(frozen=True, slots=True)
class _Validated:
    step: int
    value: float | None
    met: bool
    counts_s: float | None


@dataclass(frozen=True, slots=True)
class _Updated:
    """An update: between which two moments of the run it ended, and the UTC of the second."""

    after_s: float
    before_s: float
    at: str

    def ended_s(self, at: str) -> float:
        """The moment of the run that ``at`` was. Another node's clock may be wrong, the order of events is not."""
        late = datetime.fromisoformat(self.at) - datetime.fromisoformat(at)
        return min(self.before_s, max(self.after_s, self.before_s - late.total_seconds()))


class Tally:
    """The state of a run after the events it was fed."""

    def __init__(self) -> None:
        self.started: Mapping[str, Any] = {}
        self.evaluated: Mapping[str, Any] = {}
        """What the first event of the deferred evaluation says; empty while there is none."""
        self.forced: tuple[str, ...] = ()
        self.training = Account()
        self.evaluation: Account | None = None
        self.trained = 0
        """Steps of the training."""
        self.updated_s: dict[int, float] = {}
        """For each checkpoint that is to be evaluated, the time of the run at the end of the update behind it."""
        self.taken_to_meet: tuple[int, float] | None = None
        """In a simulation that leaves its evaluation to later: the step whose weights are taken to meet the target, and
        when its update ended."""
        self._updates: dict[int, _Updated] = {}
        self._validated: list[_Validated] = []

    @property
    def ledger(self) -> PhaseLedger:
        """The training's phases."""
        return self.training.ledger

    @property
    def attempts(self) -> int:
        return self.training.attempts

    @property
    def steps(self) -> int:
        """Steps that were done; in a deferred evaluation those behind the weights that met the target, else behind the
        latest that were evaluated."""
        if self.evaluation is None or not self._validated:
            return self.trained
        return (self._met or self._validated[-1]).step

    @property
    def modelled(self) -> str:
        """Where the times of a simulation are from; empty for what ran."""
        return self.started.get("modelled", "")

    @property
    def value(self) -> float | None:
        """The metric at the latest validation that counts."""
        return self._validated[-1].value if self._validated else None

    @property
    def time_to_target_s(self) -> float | None:
        if self._met:
            return self._met.counts_s
        return self.taken_to_meet[1] if self.taken_to_meet else None

    @property
    def scored(self) -> bool:
        """Whether the run can count as a result: its plan and that of its evaluation say so, and no resumption was
        forced. A simulation never can."""
        return (bool(self.started.get("scored")) and bool(self.evaluated.get("scored", True)) and not self.forced
                and not self.modelled)

    def add(self, event: Event) -> None:
        match event.kind:
            case Kind.RUN_STARTED:
                self.started = event.data
            case Kind.EVALUATION_STARTED:
                self._evaluate(event.data)
            case Kind.UPDATE if event.step is not None:
                before = self.training.before_s
                self._updates[event.step] = _Updated(before + self.ledger.since_s, before + event.elapsed_s, event.at)
            case Kind.STEP:
                self.trained = event.step or 0
            case Kind.CHECKPOINT if self.modelled and "updated_at" in event.data:
                self._take_to_meet(event.step or 0, event.data["updated_at"])
            case Kind.VALIDATION:
                self._validate(event)
            case Kind.RESUMED:
                self._resume(event.data)
        (self.evaluation or self.training).add(event)

    def ending(self, status: Status, *, elapsed_s: float, cpu_s: float | None,
               weights_sha256: str | None) -> dict[str, Any]:
        """The ``data`` of the last event of the journal that is being written, at ``elapsed_s`` of its clock."""
        return self._outcome(status, (self.evaluation or self.training).times(elapsed_s, cpu_s), weights_sha256)

    def summary(self) -> dict[str, Any]:
        """The object of ``--json``. A run without an end was cut off: it is ``interrupted``, its CPU time None."""
        current = self.evaluation or self.training
        known = dict(current.ended or self._outcome(Status.INTERRUPTED, current.times(), None))
        if self.evaluation is not None:
            known["evaluation"] = {
                "attempts": self.evaluation.attempts, "checkpoints": len(self.evaluated["checkpoints"]),
                "evaluated": len(self._validated), **{key: known[key] for key in ("wall_s", "cpu_s", "ledger")}}
            trained = self.training.ended or self.training.times()
            known |= {key: trained.get(key) for key in _OF_THE_TRAINING}
        known |= {"run": self.started.get("run"), "scored": self.scored, "attempts": self.attempts, **self._blank}
        return {**self._told, **{key: known.get(key) for key in KEYS}}

    @property
    def _told(self) -> dict[str, Any]:
        """What has to be known of a simulation before its figures are read."""
        if not self.modelled:
            return {}
        deferred = self.started.get("settings", {}).get("validation", {}).get("deferred")
        assumed = [key for key in _ASSUMED if key == "time_to_target_s" or not deferred]
        return {"modelled": self.modelled, "assumed": assumed if self.started.get("metric") else []}

    @property
    def _blank(self) -> dict[str, Any]:
        """The figures that a simulation has not, whatever its events say."""
        return dict.fromkeys(_NOT_COMPUTED) if self.modelled else {}

    @property
    def _met(self) -> _Validated | None:
        return next((item for item in self._validated if item.met), None)

    def _outcome(self, status: Status, times: Mapping[str, Any], weights_sha256: str | None) -> dict[str, Any]:
        found = {
            "status": status.value, "metric": self.started.get("metric"), "value": self.value,
            "target": self.started.get("target"), "steps": self.steps, "time_to_target_s": self.time_to_target_s,
            "wall_s": times["wall_s"], "cpu_s": times["cpu_s"], "weights_sha256": weights_sha256,
            "ledger": times["ledger"],
        }
        return {**found, **self._blank}

    def _evaluate(self, data: Mapping[str, Any]) -> None:
        self.evaluated, self.evaluation = data, Account()
        for checkpoint in data["checkpoints"]:
            step = checkpoint["step"]
            if step in self._updates:
                self.updated_s[step] = self._updates[step].ended_s(checkpoint["updated_at"])

    def _take_to_meet(self, step: int, updated_at: str) -> None:
        first = self.started.get("passes_at")
        if self.taken_to_meet is None and first is not None and step >= first and self.started.get("metric"):
            self.taken_to_meet = step, self._updates[step].ended_s(updated_at)

    def _resume(self, data: Mapping[str, Any]) -> None:
        step = data["from_step"]
        self.forced += tuple(data["forced"])
        self._validated = [item for item in self._validated if step and item.step <= step]
        if self.evaluation is None:
            self.trained = step

    def _validate(self, event: Event) -> None:
        metric, step = self.started.get("metric"), event.step or 0
        counts_s = self.training.before_s + event.elapsed_s if self.evaluation is None else self.updated_s.get(step)
        self._validated.append(_Validated(step, event.data["metrics"][metric] if metric is not None else None,
                                          event.data["target_met"], counts_s))


def summarise(events: Iterable[Event]) -> dict[str, Any]:
    """The ``--json`` object of a run's events."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.summary()
