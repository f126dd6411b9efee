from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import GrpoBenchError, Kind, Phase
from grpo_bench.observers.trace import TraceFile, write_trace
from hypothesis import given
from hypothesis import strategies as st

Slice = tuple[int, int, str]
"""Begin and end in nanoseconds, and the name."""


class Trace:
    """A trace as a viewer reads it. Reading checks what Perfetto's importer asks for: known kinds of events, times that
    are numbers, named tracks, bars that nest on their track, finite counts."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
        self.tracks: dict[tuple[int, int], str] = {}
        self.processes: dict[int, str] = {}
        self.bars: defaultdict[tuple[int, int], list[Slice]] = defaultdict(list)
        self.counts: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in self.events:
            getattr(self, f"_{event['ph']}")(event)
        for track, bars in self.bars.items():
            assert track in self.tracks
            assert track[0] in self.processes
            self._nest(bars)

    def track(self, name: str) -> list[Slice]:
        return next(sorted(self.bars[key]) for key, title in self.tracks.items() if title == name)

    def _M(self, event: dict[str, Any]) -> None:
        if event["name"] == "thread_name":
            self.tracks[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["name"] == "process_name":
            self.processes[event["pid"]] = event["args"]["name"]
        else:
            assert isinstance(event["args"]["sort_index"], int)

    def _X(self, event: dict[str, Any]) -> None:
        begin = round(event["ts"] * 1000)
        end = begin + round(event["dur"] * 1000)
        assert 0 <= begin <= end
        self.bars[event["pid"], event["tid"]].append((begin, end, event["name"]))

    def _C(self, event: dict[str, Any]) -> None:
        assert math.isfinite(event["args"]["value"])
        self.counts[event["name"]].append((event["ts"], event["args"]["value"]))

    def _i(self, event: dict[str, Any]) -> None:
        assert event["s"] == "g"
        assert event["ts"] >= 0

    @staticmethod
    def _nest(bars: list[Slice]) -> None:
        open_until: list[int] = []
        for begin, end, name in sorted(bars, key=lambda bar: (bar[0], -bar[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], name
            open_until.append(end)


def trace(folder: Path, history: Any) -> Trace:
    return Trace(write_trace(folder, history.events))


def test_phases_cover_the_whole_run_without_gaps(tmp_path: Path, met: Any) -> None:
    phases = trace(tmp_path, met).track("phases")
    assert phases[0][0] == 0
    assert phases[-1][1] == pytest.approx(met.events[-1].elapsed_s * 1e9)
    assert all(before[1] == after[0] for before, after in pairwise(phases))
    assert [name for *_, name in phases[:3]] == ["startup", "validation", "rollout"]


def test_steps_and_work_stand_where_they_happened(tmp_path: Path, met: Any) -> None:
    found = trace(tmp_path, met)
    assert [(round(begin / 1e9, 3), round(end / 1e9, 3), name) for begin, end, name in found.track("steps")] == [
        (2.0, 5.4, "step 1"), (6.4, 9.8, "step 2")]
    assert [name for *_, name in found.track("refits, validations, checkpoints")] == [
        "validation after step 0", "refit 1", "validation after step 1", "refit 2", "validation after step 2"]


def test_a_rollout_holds_its_hops_and_leaves_out_its_wait(tmp_path: Path, history: Any) -> None:
    history.start()
    history.phase(Phase.ROLLOUT)
    history.rollout("t0.0", after=2.0, durations={"queue": 0.5, "score": 0.1, "generate": 0.7, "environment": 0.2})
    slot = trace(tmp_path, history).track("slot 1")
    assert [(begin / 1e9, end / 1e9, name) for begin, end, name in sorted(slot, key=lambda bar: (bar[0], -bar[1]))] == [
        (1.0, 2.0, "t0.0"), (1.0, 1.7, "generate"), (1.7, 1.9, "environment"), (1.9, 2.0, "score")]


def test_rollouts_stand_under_their_worker(tmp_path: Path, history: Any) -> None:
    history.start()
    for index in range(4):
        history.rollout(f"t0.{index}", worker=index % 2)
    found = trace(tmp_path, history)
    assert set(found.processes.values()) == {"engine", "rollout worker 0", "rollout worker 1"}


def test_counts_go_up_and_down_to_nothing(tmp_path: Path, met: Any) -> None:
    counts = trace(tmp_path, met).counts
    assert set(counts) == {"rollouts in flight", "rollouts waiting", "finished groups waiting", "mean reward", "pass@2",
                           "sampled tokens a second"}
    assert max(value for _, value in counts["rollouts in flight"]) == 8
    for name in ("rollouts in flight", "rollouts waiting"):
        assert counts[name][-1][1] == 0
        assert counts[name] == sorted(counts[name], key=lambda item: item[0])


def test_groups_wait_for_their_step_also_after_a_resumption(tmp_path: Path, history: Any) -> None:
    history.start()
    history.step = 1
    for target in (0, 1, 1):
        history.emit(Kind.GROUP, 1.0, target=target)
    history.emit(Kind.BATCH, 1.0, rollouts=2, reward_mean=None)
    saved = history.checkpoint()
    history.emit(Kind.GROUP, 1.0, target=1)
    history.resume(2, 1, saved)
    history.step = 2
    history.emit(Kind.GROUP, 1.0, target=2)
    history.emit(Kind.BATCH, 1.0, rollouts=2, reward_mean=None)
    counts = trace(tmp_path, history).counts["finished groups waiting"]
    assert [value for _, value in counts] == [1, 2, 3, 2, 3, 3, 1]


def test_attempts_follow_each_other_after_a_gap(tmp_path: Path, resumed: Any) -> None:
    found = trace(tmp_path, resumed)
    attempts = found.track("attempts")
    assert [name for *_, name in attempts] == ["attempt 1", "interrupted, then resumed", "attempt 2",
                                               "interrupted, then resumed", "attempt 3"]
    assert all(before[1] == after[0] for before, after in pairwise(attempts))
    assert attempts[-1][1] / 1e9 == pytest.approx(11.55 + 1.0 + 5.6 + 1.0 + 10.4, abs=0.2)
    starts = [begin for begin, _, name in found.track("phases") if name == "startup"]
    assert starts == [attempts[0][0], attempts[2][0], attempts[4][0]]


def test_an_evaluation_stands_after_its_training(tmp_path: Path, evaluated_again: Any) -> None:
    found = trace(tmp_path, evaluated_again)
    attempts = found.track("attempts")
    assert [name for *_, name in attempts] == [
        "attempt 1", "trained, then evaluated", "evaluation, attempt 1", "interrupted, then resumed",
        "evaluation, attempt 2"]
    assert all(before[1] == after[0] for before, after in pairwise(attempts))
    assert attempts[-1][1] / 1e9 == pytest.approx(19.6 + 1.0 + 2.15 + 1.0 + 4.5)
    work = [(name, begin) for begin, _, name in found.track("refits, validations, checkpoints")]
    assert [name for name, begin in work if begin >= attempts[2][0]] == [
        "refit 2", "validation after step 2", *(f"{what} {step}" for step in (3, 4, 5)
                                                for what in ("refit", "validation after step"))]


def test_notices_are_marks(tmp_path: Path, history: Any) -> None:
    history.start()
    history.emit(Kind.ALARM, name="x", message="no gradient \U0001f9ea")
    history.emit(Kind.STALL, waiting={}, seconds=130.0, stacks={})
    marks = [event["name"] for event in trace(tmp_path, history).events if event["ph"] == "i"]
    assert marks == ["alarm: no gradient \U0001f9ea", "stall: nothing moved for 2 min 10 s"]


@given(rollouts=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5), st.floats(0, 2), st.integers(0, 2)), max_size=60))
def test_no_slot_holds_two_rollouts_at_a_time(tmp_path_factory: pytest.TempPathFactory,
                                              rollouts: list[tuple[float, float, float, int]]) -> None:
    from .conftest import History
    history = History()
    history.start()
    for index, (after, generate, score, worker) in enumerate(rollouts):
        history.rollout(f"t0.{index}", after=after, worker=worker, durations={
            "queue": 0.1, "generate": min(generate, history.now), "score": score})
    trace(tmp_path_factory.mktemp("run"), history)


def test_a_cut_off_run_has_a_trace(tmp_path: Path, history: Any) -> None:
    history.start()
    history.phase(Phase.ROLLOUT, 1.0)
    history.rollout("t0.0")
    assert [name for *_, name in trace(tmp_path, history).track("phases")] == ["startup", "rollout"]


def test_a_report_leaves_the_trace_of_a_run_that_goes_on_alone(tmp_path: Path, met: Any) -> None:
    going_on = TraceFile(tmp_path)
    for event in met.events[:30]:
        going_on.add(event)
    assert len(Trace(write_trace(tmp_path, met.events[:30])).track("steps")) == 1
    for event in met.events[30:]:
        going_on.add(event)
    going_on.end()
    assert len(Trace(tmp_path / "trace.json").track("steps")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_killed_run_leaves_a_beginning(tmp_path: Path, met: Any) -> None:
    killed = TraceFile(tmp_path)
    for event in met.events[:-3]:
        killed.add(event)
    (tmp_path / "whole.json").write_text((tmp_path / "trace.json.part").read_text() + "]")
    assert len(Trace(tmp_path / "whole.json").bars) > 3


def test_a_trace_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(GrpoBenchError, match=r"cannot write .*trace\.json"):
        write_trace(tmp_path / "nowhere", [])
