"""The clock ledger of a run that has ended: its score, what is inside, what is not, and why.

A score lasts from ``run_start`` to ``run_stop``, as the log has them, by the wall clock. Inside lies whatever the
engine did between these two moments, phase by phase, by the clock of its process; a training that was interrupted has
the time until it went on inside too. Both clocks, the training's own account and the run's last event must agree, to
0.1 % or 50 ms; where they do not, ``wrong`` says so.

Outside lies the set-up before. Where evaluation is deferred, everything after the weight update behind the weights that
met the target is outside as well: the rest of its step, with the writing of these weights, the steps after it, and the
evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_bench.contract import Event, Finding, Kind, Phase, divided

from .config import MllogConfig
from .form import Line, parse
from .mllog import is_trained, lines, process_start, to_ms

_SKEW_S = 1.0
"""How far the trainer's clock may be from the engine's: updates are stamped by the one, phases by the other."""
LOST = "between attempts"
"""What the time between two attempts is charged to."""


@dataclass(frozen=True)
class Outside:
    """Seconds that the score leaves out."""

    what: str
    seconds: float
    why: str


@dataclass(frozen=True)
class Score:
    """``step`` is that of the weights which ended the run; ``inside`` maps a phase to seconds; ``saved`` and
    ``saved_after`` count the checkpoints that were written inside, and after it."""

    seconds: float
    status: str
    step: int
    inside: Mapping[str, float]
    outside: tuple[Outside, ...]
    saved: int
    saved_after: int
    wrong: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def findings(self) -> tuple[Finding, ...]:
        """The ledger in words."""
        inside = ", ".join(f"{phase} {seconds:.3f} s" for phase, seconds in self.inside.items())
        outside = "; ".join(f"{item.what} {item.seconds:.3f} s ({item.why})" for item in self.outside)
        return (
            Finding("score", True, f"{self.seconds:.3f} s ({self.seconds / 60:.3f} min) from run_start to run_stop, "
                                   f"{self.status} at step {self.step}"),
            Finding("score, inside", True, f"{inside}; checkpoints written: {self.saved}"),
            Finding("score, outside", True, f"{outside}; checkpoints written: {self.saved_after}"),
            Finding("score, sums", not self.wrong, "; ".join(self.wrong) or "both clocks and the run's account agree"))


@dataclass(frozen=True, order=True)
class _Moment:
    """A time of the training: seconds since the process of an attempt began."""

    attempt: int
    elapsed_s: float


@dataclass(frozen=True)
class _Span:
    """A phase, from its start to the next one."""

    phase: str
    step: int | None
    start: _Moment
    end: _Moment

    @property
    def seconds(self) -> float:
        return max(0.0, self.end.elapsed_s - self.start.elapsed_s)

    def cut(self, after: _Moment, before: _Moment) -> _Span:
        """The part of it that lies between two moments; of no length where there is none."""
        start = min(max(self.start, after), self.end)
        return _Span(self.phase, self.step, start, max(start, min(self.end, before)))


def score_of(events: Iterable[Event]) -> Score | None:
    """The ledger of a run, given all its events; None where its log has no ``run_stop``."""
    training, evaluation = divided(events)
    log = [parse(line) for line in lines([*training, *evaluation], MllogConfig())]
    start, stop = (next((line for line in log if line.key == key), None) for key in ("run_start", "run_stop"))
    if start is None or stop is None:
        return None
    began = _moment(training, training[start.metadata["lineno"] - 1])
    ended = _end(training, stop)
    spans = _spans(training)
    inside = [part for span in spans if (part := span.cut(began, ended)).seconds]
    total = _by_phase(inside)
    if gap := _gaps(training, began.attempt, ended.attempt):
        total[LOST] = gap
    beginning, far = _Moment(0, 0.0), _Moment(len(training), 0.0)
    before, after = [span.cut(beginning, began) for span in spans], [span.cut(ended, far) for span in spans]
    saves = [_moment(training, event) for event in training if event.kind == Kind.CHECKPOINT]
    seconds, step = (stop.time_ms - start.time_ms) / 1000, stop.metadata["step"]
    wrong = [*_wrong(training, [*training, *evaluation][-1], seconds, total, before, spans),
             *(_skewed(spans, ended, step) if evaluation else ())]
    return Score(seconds, stop.metadata["status"], step, total, tuple(_outside(before, after, evaluation, step)),
                 sum(moment <= ended for moment in saves), sum(moment > ended for moment in saves),
                 tuple(wrong))


def _spans(events: Sequence[Event]) -> list[_Span]:
    """The phases of one journal. The last of an attempt lasts until its last event."""
    found, attempt, since = [], 0, _Span(Phase.STARTUP.value, None, _Moment(0, 0.0), _Moment(0, 0.0))
    now = 0.0
    for event in events:
        if event.kind == Kind.RESUMED:
            found.append(_until(since, now))
            attempt += 1
            since = _Span(Phase.STARTUP.value, None, _Moment(attempt, 0.0), _Moment(attempt, 0.0))
        elif event.kind == Kind.PHASE:
            found.append(_until(since, event.elapsed_s))
            moment = _Moment(attempt, event.elapsed_s)
            since = _Span(event.data["phase"], event.step, moment, moment)
        now = event.elapsed_s
    return [*found, _until(since, now)]


def _until(span: _Span, elapsed_s: float) -> _Span:
    return _Span(span.phase, span.step, span.start, _Moment(span.start.attempt, elapsed_s))


def _moment(training: Sequence[Event], event: Event) -> _Moment:
    return _Moment(sum(other.kind == Kind.RESUMED for other in training[:event.seq + 1]), event.elapsed_s)


def _end(training: Sequence[Event], stop: Line) -> _Moment:
    """When the run stopped: with an event of its training, or at the end of an update, somewhat before its event."""
    if not is_trained(training):
        return _moment(training, training[stop.metadata["lineno"] - 1])
    step = stop.metadata["step"]
    update = [event for event in training if event.kind == Kind.UPDATE and event.step == step][-1]
    told = _moment(training, update)
    return _Moment(told.attempt, told.elapsed_s - (to_ms(update.at) - stop.time_ms) / 1000)


def _gaps(training: Sequence[Event], first: int, last: int) -> float:
    """Seconds from the last event of each of these attempts to the start of the next one's process, below 0 where that
    had begun before."""
    places = [number for number, event in enumerate(training) if event.kind == Kind.RESUMED][first:last]
    return sum(process_start(training[place:]) - to_ms(training[place - 1].at) for place in places) / 1000


def _by_phase(spans: Sequence[_Span]) -> dict[str, float]:
    found: dict[str, float] = {}
    for phase in [*(phase.value for phase in Phase), *(span.phase for span in spans)]:
        if (seconds := sum(span.seconds for span in spans if span.phase == phase)) > 0:
            found[phase] = seconds
    return found


def _outside(before: Sequence[_Span], after: Sequence[_Span], evaluation: Sequence[Event],
             step: int) -> Iterable[Outside]:
    yield Outside("set-up", _sum(before), "a run starts when its parts have")
    rest = [span for span in after if span.step == step and span.phase != Phase.SHUTDOWN]
    saving = [span for span in rest if span.phase == Phase.CHECKPOINT]
    later = [span for span in after if span not in rest]
    if evaluation:
        yield Outside("writing the weights", _sum(saving), f"those of step {step}, after the update that ends the run")
        yield Outside(f"rest of step {step}", _sum(rest) - _sum(saving), "it changes these weights no more")
        writing = _by_phase(later).get(Phase.CHECKPOINT, 0.0)
        yield Outside("later steps and the end of training", _sum(later),
                      f"these weights know nothing of it; {writing:.3f} s of it wrote checkpoints")
        yield Outside("evaluation", _sum(_spans(evaluation)), "quality is measured after training")
    else:
        yield Outside("end", _sum(after), "a run stops with the last thing that it measures")


def _sum(spans: Sequence[_Span]) -> float:
    return sum(span.seconds for span in spans)


def _wrong(training: Sequence[Event], ended: Event, seconds: float, inside: Mapping[str, float],
           before: Sequence[_Span], spans: Sequence[_Span]) -> Iterable[str]:
    """Sums that should come to the same and do not."""
    total, gaps = sum(inside.values()), inside.get(LOST, 0.0)
    pairs = [("the phases inside", total, "the score", seconds),
             ("the phases of the training", _sum(spans), "its last event", training[-1].data["wall_s"])]
    if (reached := ended.data["time_to_target_s"]) is not None:
        pairs.append(("set-up and score", _sum(before) + seconds - gaps, "the run's time to the target", reached))
    for what, one, other, value in pairs:
        if abs(one - value) > max(0.05, 1e-3 * value):
            yield f"{what}: {one:.3f} s, {other}: {value:.3f} s"


def _skewed(spans: Sequence[_Span], ended: _Moment, step: int) -> Iterable[str]:
    """Whether the trainer says that it updated at a time when the engine was not waiting for that."""
    for span in spans:
        if (span.phase, span.step, span.start.attempt) == (Phase.UPDATE, step, ended.attempt):
            off = max(span.start.elapsed_s - ended.elapsed_s, ended.elapsed_s - span.end.elapsed_s)
            if off > _SKEW_S:
                yield f"the update of step {step} ended {off:.3f} s outside of its phase, by the trainer's clock"
