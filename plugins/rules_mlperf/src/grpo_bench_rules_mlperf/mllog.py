"""A run as MLLOG: a pure function from its events to lines.

The log covers the whole run as one, whatever number of attempts it took. What was measured is the canonical history;
the clock started with the first attempt: ``init_start`` is the start of its process, ``run_start`` the first moment at
which any attempt was past its start-up. ``samples_count`` is always steps done, times rollouts per step. Each line
names the journal and the line of it that it comes from.

A block of training lasts from the first wait for rollouts to the next validation. Where validation is deferred there
is one block, which ends with the last weight update, and the evaluations follow it. ``run_stop`` stands last, in the
log of a run that ran to its end, be it the target or the last step, and in no other. Its time is that of the validation
that met the target, else of the last thing that was measured; where validation is deferred, that of the weight update
behind the weights that met it, else behind the last ones that were evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from grpo_bench.contract import Event, Kind, Metric, Phase, Status, canonical, divided, settings_of

from .config import MllogConfig
from .form import END, POINT, START, Line
from .header import header

FILE = "mllog.txt"
JOURNALS = ("events.jsonl", "eval/events.jsonl")
"""Of the training and of the evaluation, in the run folder."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ORIGIN = "journal and line"
_ENDINGS = {Status.TARGET_MET: "success", Status.TARGET_MISSED: "aborted", Status.COMPLETED: "aborted"}
"""What MLLOG calls the ways in which a run can run to its end."""


def lines(events: Iterable[Event], identity: MllogConfig) -> list[str]:
    """The log of a run, given the events of all its attempts, the first one included."""
    everything = [_with_origin(event, journal) for journal, part in zip(JOURNALS, divided(events)) for event in part]
    history = canonical(everything)
    log = _Log(everything[0], divided(history)[0])
    settings = settings_of(divided(everything)[0])
    evaluated_with = {**settings, "validation": settings_of(everything)["validation"]}
    log.start(everything, header(everything[0].data, evaluated_with, identity, history))
    for event in history:
        log.take(event)
    log.end(everything[-1])
    return [str(line) for line in log.lines]


class _Log:
    """The lines so far, and which interval is open. ``training`` is its canonical history."""

    def __init__(self, started: Event, training: Sequence[Event]) -> None:
        self.lines: list[Line] = []
        self._batch = started.data["prompts_per_step"] * started.data["generations_per_prompt"]
        self._metric = started.data["metric"]
        self._block = False
        self._batches: dict[str, Any] = {}
        self._update: Mapping[str, Any] = {}
        self._last = started
        """The last step or validation that ended."""
        self._deferred = is_trained(training)
        self._last_update = next((event for event in reversed(training) if event.kind == Kind.UPDATE), None)
        self._saved = {event.step: event for event in training if event.kind == Kind.CHECKPOINT
                       and "updated_at" in event.data}

    def start(self, everything: Sequence[Event], values: Mapping[str, tuple[Any, dict[str, Any]]]) -> None:
        started, beginning = everything[0], process_start(everything)
        cleared, rest = values["cache_clear"], {key: value for key, value in values.items() if key != "cache_clear"}
        self._put(started, "cache_clear", cleared[0], time_ms=beginning)
        self._put(started, "init_start", event_type=START, time_ms=beginning)
        for key, (value, metadata) in rest.items():
            self._put(started, key, value, **metadata)
        past = next((event for event in everything if is_past_startup(event)), None)
        if past is not None:
            self._put(past, "init_stop", event_type=END)
            self._put(past, "run_start", event_type=START)

    def take(self, event: Event) -> None:
        """Add what ``event`` means."""
        match event.kind:
            case Kind.PHASE if event.data["phase"] == Phase.ROLLOUT and not self._block:
                self._block = True
                self._put(event, "block_start", event_type=START, step=(event.step or 0) - 1)
            case Kind.PHASE if event.data["phase"] == Phase.VALIDATION:
                self._end_block(event)
                self._put(event, "eval_start", event_type=START, step=event.step or 0)
            case Kind.BATCH:
                self._batches = dict(event.data)
            case Kind.UPDATE:
                self._update = event.data
                if self._deferred and event is self._last_update:
                    self._end_block(event, to_ms(event.data["ended_at"]))
            case Kind.STEP:
                self._last = event
                self._stats(event)
            case Kind.VALIDATION:
                self._last = event
                self._put(event, "eval_accuracy", _metric(event.data, self._metric), step=event.step or 0)
                self._put(event, "eval_stop", event_type=END, step=event.step or 0)

    def _end_block(self, event: Event, time_ms: int | None = None) -> None:
        if self._block:
            self._block = False
            self._put(event, "block_stop", event_type=END, time_ms=time_ms, step=event.step or 0)

    def end(self, event: Event) -> None:
        """Add the end of the run where ``event``, its last, says that it ran to its end. An attempt that found all done
        has no history but that. Weights that this training did not save have no time, so they end no run."""
        status = _ENDINGS.get(event.data["status"]) if event.kind == Kind.RUN_ENDED else None
        if status is None:
            return
        if not self._deferred:
            self._end_block(self._last)
            self._put(self._last, "run_stop", event_type=END, step=self._last.step or 0, status=status)
        elif (saved := self._saved.get(self._last.step)) is not None:
            self._put(saved, "run_stop", event_type=END, time_ms=to_ms(saved.data["updated_at"]), step=saved.step,
                      status=status)

    def _stats(self, event: Event) -> None:
        values = {"reward": event.data["reward_mean"], "reduced_train_loss": self._update.get("loss"),
                  "grad_norm": self._update.get("grad_norm"), "global_valid_toks": self._batches.get("n_tokens"),
                  "global_valid_seqs": self._batches.get("n_sequences")}
        for value in (values, {"train_step_time": event.data["seconds"]}):
            self._put(event, "tracked_stats", {key: _finite(number) for key, number in value.items()}, step=event.step)

    def _put(self, event: Event, key: str, value: Any = None, *, event_type: str = POINT, time_ms: int | None = None,
             step: int | None = None, **metadata: Any) -> None:
        count = {} if step is None else {"samples_count": step * self._batch, "step": step}
        self.lines.append(Line(to_ms(event.at) if time_ms is None else time_ms, event_type, key, value,
                               {**event.data[_ORIGIN], **count, **metadata}))


def is_trained(training: Sequence[Event]) -> bool:
    """Whether a training ended with all its weights saved, to be evaluated afterwards."""
    return training[-1].kind == Kind.RUN_ENDED and training[-1].data["status"] == Status.TRAINED


def process_start(everything: Sequence[Event]) -> int:
    """When the first attempt's process began: what its events say, since each has both its times."""
    known = [to_ms(event.at) - round(1000 * event.elapsed_s) for event in everything[1:] if event.elapsed_s > 0][:1]
    return min([to_ms(everything[0].at), *known])


def is_past_startup(event: Event) -> bool:
    return event.kind == Kind.PHASE and event.data["phase"] not in (Phase.STARTUP, Phase.SHUTDOWN)


def to_ms(at: str) -> int:
    """Milliseconds since 1970, UTC."""
    return (datetime.fromisoformat(at) - _EPOCH) // timedelta(milliseconds=1)


def _with_origin(event: Event, journal: str) -> Event:
    return replace(event, data={**event.data, _ORIGIN: {"file": journal, "lineno": event.seq + 1}})


def _metric(data: Mapping[str, Any], name: str | None) -> float:
    """The metric that ends the run, or pass@k where none does; pass@k is told as counted."""
    name = name or Metric.usual(data["k"])
    return data["passed"] / data["tasks"] if name == Metric.PASS_K else data["metrics"][name]


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
