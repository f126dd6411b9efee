"""``trace.json``: a run on a time axis, in the Chrome trace event format that Perfetto (ui.perfetto.dev) opens.

One process of the trace is the engine, with a track each for its phases, its steps, and the refits, validations and
checkpoints; the others are the rollout workers, with as many tracks as rollouts ran at once there. The bar of a rollout
begins when it got its place; inside it stand the totals of its hops in their usual order, replies before tool calls,
since the journal does not say how they alternate. Curves show rollouts in flight and waiting, groups that wait for
their step, reward, metric and speed. Attempts follow each other after a gap of fixed width, and so does a deferred
evaluation after its training.

Events are written as they come, some at a time, so that neither a long run needs much memory nor its end much time;
only the counts of rollouts in flight wait for the end of an attempt. Until then the file is called
``trace.json.part``: a killed run leaves that, and it opens too, though it lacks its closing bracket.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import Any

from ..contract import Event, Kind, Metric, Phase
from ._chrome import ChromeTrace
from ._text import duration, metric_label, name
from .ledger import HOPS

FILE = "trace.json"
_ENGINE, _WORKERS = 1, 10
_PHASES, _STEPS, _WORK, _ATTEMPTS = 1, 2, 3, 4
_GAP_S = 1.0
_COMPUTED = frozenset({"reward", "reward_mean", "probe_difference", "passed"})
_COUNTED_PER_S = 1000
"""How often at most the rollouts in flight are told."""


def write_trace(folder: Path, events: Iterable[Event]) -> Path:
    """Write ``trace.json`` of these events into a run folder, and return its path."""
    trace = TraceFile(folder, "tmp")
    for event in events:
        trace.add(event)
    trace.end()
    return folder / FILE


@dataclass(slots=True)
class _Lanes:
    """Rollouts of one worker packed into lanes, none of which holds two at a time. ``free`` is (free since, lane)."""

    free: list[tuple[float, int]] = field(default_factory=list)
    count: int = 0

    def take(self, start_s: float, end_s: float) -> tuple[int, bool]:
        """A lane that is free from ``start_s`` on, the one used last, and whether it is a new one."""
        index = bisect_right(self.free, start_s, key=lambda item: item[0]) - 1
        if new := index < 0:
            self.count += 1
        lane = self.count if new else self.free.pop(index)[1]
        insort(self.free, (end_s, lane))
        return lane, new


class TraceFile:
    """Folds events into the file. ``elapsed_s`` restarts with every attempt; the trace's time does not."""

    def __init__(self, folder: Path, draft: str = "part") -> None:
        self._file = ChromeTrace(folder / FILE, draft)
        self._offset = self._now = self._began = 0.0
        self._phase: tuple[str, float, int | None] | None = None
        self._free_at = {_STEPS: 0.0, _WORK: 0.0}
        self._lanes: dict[int, _Lanes] = {}
        self._asked, self._started, self._ended = array("d"), array("d"), array("d")
        self._groups: dict[int, int] = {}
        self._saved: dict[int, dict[int, int]] = {0: {}}
        self._metric: str | None = None
        self._modelled = False
        self._part = ""
        self._attempt = 1
        self._file.name("engine", _ENGINE)
        for track, title in ((_PHASES, "phases"), (_STEPS, "steps"), (_WORK, "refits, validations, checkpoints"),
                             (_ATTEMPTS, "attempts")):
            self._file.name(title, _ENGINE, track)

    def add(self, event: Event) -> None:
        if event.kind == Kind.RESUMED:
            self._resume(event)
        elif event.kind == Kind.EVALUATION_STARTED:
            self._process(event, "trained, then evaluated", 1)
            self._part = "evaluation, "
        now = self._now = self._offset + event.elapsed_s
        data, step = event.data, event.step
        match event.kind:
            case Kind.RUN_STARTED:
                self._metric = data["metric"]
                if "modelled" in data:
                    self._modelled = True
                    self._file.mark(f"simulation, times from {data['modelled']}", _ENGINE, _ATTEMPTS, now)
            case Kind.PHASE:
                self._close_phase()
                self._phase = (data["phase"], now, step)
            case Kind.ROLLOUT:
                self._rollout(data, step)
            case Kind.GROUP:
                self._groups[data["target"]] = self._groups.get(data["target"], 0) + 1
                self._buffered()
            case Kind.BATCH:
                self._groups = {target: count for target, count in self._groups.items() if target >= (step or 0)}
                self._buffered()
            case Kind.REFIT:
                self._ending(_WORK, f"refit {data['version']}", data["seconds"], data, ("bytes", "probe_difference"))
            case Kind.VALIDATION:
                self._ending(_WORK, f"validation after step {step or 0}", data["seconds"], data, ("passed", "tasks"))
                if not self._modelled:
                    metric = self._metric or Metric.usual(data["k"])
                    self._file.count(metric_label(metric, data["k"]), _ENGINE, now, data["metrics"][metric])
            case Kind.CHECKPOINT:
                self._saved[step or 0] = dict(self._groups)
                self._ending(_WORK, f"checkpoint {data['folder']}", data["seconds"], data, ("what", "bytes"))
            case Kind.STEP:
                self._step(data, step)
            case Kind.ALARM | Kind.ERROR | Kind.STALL:
                message = str(data.get("message") or f"nothing moved for {duration(data.get('seconds'))}")
                self._file.mark(f"{event.kind}: {message}", _ENGINE, _ATTEMPTS, now)
            case Kind.RUN_ENDED:
                self._file.mark(f"run ended: {name(data['status'])}", _ENGINE, _ATTEMPTS, now)

    def end(self) -> None:
        """End the last attempt and the file."""
        self._end_attempt()
        self._file.finish()

    def _resume(self, event: Event) -> None:
        self._process(event, "interrupted, then resumed", event.data["attempt"], from_step=event.data["from_step"])
        self._groups = dict(self._saved.get(event.data["from_step"], {}))

    def _process(self, event: Event, why: str, attempt: int, **about: Any) -> None:
        """Another process goes on, on a clock of its own."""
        self._end_attempt()
        self._file.bar(why, _ENGINE, _ATTEMPTS, self._now, self._now + _GAP_S, {**about, "began_at": event.at})
        self._offset = self._began = self._now + _GAP_S
        self._free_at = dict.fromkeys(self._free_at, self._offset)
        self._lanes = {worker: _Lanes([(self._offset, lane + 1) for lane in range(lanes.count)], lanes.count)
                       for worker, lanes in self._lanes.items()}
        self._attempt = attempt
        self._phase = (Phase.STARTUP, self._offset, None)

    def _end_attempt(self) -> None:
        self._close_phase()
        self._file.bar(f"{self._part}attempt {self._attempt}", _ENGINE, _ATTEMPTS, self._began, self._now)
        self._count_rollouts()
        del self._asked[:], self._started[:], self._ended[:]

    def _count_rollouts(self) -> None:
        waiting = running = tick = 0
        at = self._began
        for moment, asked, started in merge(
                _changes(self._asked, 1, 0), _changes(self._started, -1, 1), _changes(self._ended, 0, -1)):
            if (now := int(moment * _COUNTED_PER_S)) != tick:
                self._file.count("rollouts waiting", _ENGINE, at, waiting)
                self._file.count("rollouts in flight", _ENGINE, at, running)
            waiting, running, tick, at = waiting + asked, running + started, now, moment
        self._file.count("rollouts waiting", _ENGINE, at, waiting)
        self._file.count("rollouts in flight", _ENGINE, at, running)

    def _close_phase(self) -> None:
        if self._phase is not None:
            phase, since, step = self._phase
            if self._now > since:
                self._file.bar(name(phase), _ENGINE, _PHASES, since, self._now, {} if step is None else {"step": step})
            self._phase = None

    def _rollout(self, data: Mapping[str, Any], step: int | None) -> None:
        durations = data["durations"]
        busy = sum(seconds for hop, seconds in durations.items() if hop != "queue")
        end = self._now
        start = max(self._began, end - busy)
        asked = max(self._began, start - durations.get("queue", 0.0))
        for times, at in ((self._asked, asked), (self._started, start), (self._ended, end)):
            times.append(at)
        worker = data.get("worker") or 0
        process = _WORKERS + worker
        if worker not in self._lanes:
            self._lanes[worker] = _Lanes()
            self._file.name(f"rollout worker {worker}" if data.get("worker") is not None else "rollouts", process)
        lane, new = self._lanes[worker].take(start, end)
        if new:
            self._file.name(f"slot {lane}", process, lane)
        told = self._shown(data, ("task_id", "purpose", "end", "cause", "reward", "turns", "sampled_tokens"))
        self._file.bar(data["rollout_id"], process, lane, start, end,
                       {**told, "step": step, "queue_s": durations.get("queue", 0.0)}, data["purpose"])
        at = start
        for hop in (*(hop for hop in HOPS[1:] if hop in durations), *sorted(durations.keys() - set(HOPS))):
            until = min(end, at + durations[hop])
            if until > at:
                self._file.bar(name(hop), process, lane, at, until)
            at = until

    def _step(self, data: Mapping[str, Any], step: int | None) -> None:
        self._ending(_STEPS, f"step {step}", data["seconds"], data, ("rollouts", "sampled_tokens", "reward_mean"))
        if data["reward_mean"] is not None and not self._modelled:
            self._file.count("mean reward", _ENGINE, self._now, data["reward_mean"])
        if data["seconds"]:
            self._file.count("sampled tokens a second", _ENGINE, self._now, data["sampled_tokens"] / data["seconds"])
        self._file.flush()

    def _ending(self, track: int, title: str, seconds: float, data: Mapping[str, Any], told: tuple[str, ...]) -> None:
        """A bar that ends now, on a track where one follows the other."""
        start = min(self._now, max(self._free_at[track], self._now - seconds))
        self._free_at[track] = self._now
        self._file.bar(title, _ENGINE, track, start, self._now, self._shown(data, told))

    def _shown(self, data: Mapping[str, Any], told: Iterable[str]) -> dict[str, Any]:
        """These of the data, but those that a simulation does not compute."""
        return {key: data.get(key) for key in told if not (self._modelled and key in _COMPUTED)}

    def _buffered(self) -> None:
        self._file.count("finished groups waiting", _ENGINE, self._now, sum(self._groups.values()))


def _changes(moments: Iterable[float], waiting: int, running: int) -> Iterator[tuple[float, int, int]]:
    return ((moment, waiting, running) for moment in sorted(moments))
