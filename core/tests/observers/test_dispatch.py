from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest
import structlog
from grpo_bench.contract import Event, Group, GrpoBenchError, Kind, PluginError, Position, RunFacts, hookimpl
from grpo_bench.observers import Journal, Observers, read_events

LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


def event(seq: int, kind: Kind = Kind.GROUP, **data: Any) -> Event:
    return Event(seq, "", float(seq), kind.value, None, data)


class Listener:
    def __init__(self) -> None:
        self.heard: list[int] = []

    @hookimpl
    def event(self, event: Event) -> None:
        self.heard.append(event.seq)


class Failing:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    @hookimpl
    def event(self, event: Event) -> None:
        raise self.error


def watch(folder: Path, alarms: list[tuple[str, str]], *observers: tuple[str, object]) -> Observers:
    return Observers(folder, Journal(folder), alarm=lambda *what: alarms.append(what), logger=LOG, observers=observers)


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
def test_one_that_raises_is_reported_once_and_hears_nothing_more(tmp_path: Path, error: BaseException) -> None:
    alarms: list[tuple[str, str]] = []
    before, after = Listener(), Listener()
    observers = watch(tmp_path, alarms, ("before", before), ("bad", Failing(error)), ("after", after))
    for seq in range(3):
        observers.event(event(seq))
    observers.close()
    assert before.heard == after.heard == [0, 1, 2]
    assert [item.seq for item in read_events(tmp_path)] == [0, 1, 2]
    assert len(alarms) == 1
    assert alarms[0][0] == "observer_failed"
    assert f"observer bad no longer watches: event raised {type(error).__name__}: {error}" in alarms[0][1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_stop_is_passed_on(tmp_path: Path, error: BaseException) -> None:
    observers = watch(tmp_path, [], ("stopped", Failing(error)))
    with pytest.raises(type(error)):
        observers.event(event(0))
    observers.close()


def test_an_alarm_that_becomes_an_event_reaches_everybody_in_order(tmp_path: Path) -> None:
    last = Listener()

    def alarm(name: str, message: str) -> None:
        observers.event(event(1, Kind.ALARM, name=name, message=message))

    bad = Failing(ValueError("x"))
    observers = Observers(tmp_path, Journal(tmp_path), alarm=alarm, logger=LOG,
                          observers=[("bad", bad), ("last", last)])
    observers.event(event(0))
    observers.event(event(2))
    observers.close()
    assert last.heard == [0, 1, 2]
    assert [item.kind for item in read_events(tmp_path)] == ["group", "alarm", "group"]


def test_a_failure_before_the_first_event_is_reported_after_it(tmp_path: Path) -> None:
    class Early:
        @hookimpl
        def run_started(self, run: RunFacts) -> None:
            raise RuntimeError("too soon")

    alarms: list[tuple[str, str]] = []
    observers = watch(tmp_path, alarms, ("early", Early()))
    observers.run_started(RunFacts("r", tmp_path, {}, True))
    assert alarms == []
    observers.event(event(0, Kind.ALARM, name="x", message="y"))
    observers.close()
    assert [message for _, message in alarms] == [
        "observer early no longer watches: run_started raised RuntimeError: too soon"]


def test_observers_of_one_name_all_watch(tmp_path: Path) -> None:
    listeners = [Listener(), Listener(), Listener()]
    observers = watch(tmp_path, [], ("same", listeners[0]), ("same", listeners[1]), ("report", listeners[2]))
    observers.event(event(0))
    observers.close()
    assert [listener.heard for listener in listeners] == [[0]] * 3


def test_a_run_that_cannot_be_recorded_stops(tmp_path: Path) -> None:
    listener = Listener()
    observers = watch(tmp_path, [], ("listener", listener))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(GrpoBenchError, match=r"events\.jsonl"):
            observers.event(event(0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    observers.event(event(1))
    observers.close()
    assert listener.heard == [1]
    assert list(read_events(tmp_path)) == []


def test_trajectories_that_cannot_be_written_do_not_stop_the_run(tmp_path: Path) -> None:
    alarms: list[tuple[str, str]] = []
    observers = watch(tmp_path, alarms)
    (tmp_path / "trajectories").write_text("in the way")
    observers.group_finished(Group(0, "t", Position(0, 0), 0, ()))
    observers.close()
    assert [name for name, _ in alarms] == ["observer_failed"]
    assert "observer trajectories" in alarms[0][1]


def test_nothing_is_recorded_after_the_last_event(tmp_path: Path, met: Any) -> None:
    class Late:
        @hookimpl
        def event(self, event: Event) -> None:
            if event.kind == Kind.RUN_ENDED:
                raise RuntimeError("at the end")

    class Later:
        @hookimpl
        def run_ended(self, summary: dict[str, Any]) -> None:
            raise RuntimeError("after the end")

    alarms: list[tuple[str, str]] = []
    observers = watch(tmp_path, alarms, ("late", Late()), ("later", Later()))
    for item in met.events:
        observers.event(item)
    observers.run_ended({})
    observers.close()
    assert alarms == []
    assert list(read_events(tmp_path))[-1].kind == Kind.RUN_ENDED


def test_rollouts_that_cannot_be_synced_are_reported_once(tmp_path: Path) -> None:
    alarms: list[tuple[str, str]] = []
    observers = watch(tmp_path, alarms)
    observers.group_finished(Group(0, "t", Position(0, 0), 0, ()))
    (tmp_path / "trajectories" / "step-00001.jsonl").unlink()
    observers.sync()
    observers.sync()
    observers.close()
    assert [name for name, _ in alarms] == ["observer_failed"]


def test_an_observer_with_a_hook_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    class Misspelt:
        @hookimpl
        def evnt(self, event: Event) -> None: ...

    with pytest.raises(PluginError, match=r"evnt.*plugin misspelt, role observer"):
        watch(tmp_path, [], ("misspelt", Misspelt()))


def test_the_end_of_a_run_writes_its_report(tmp_path: Path, met: Any) -> None:
    alarms: list[tuple[str, str]] = []
    observers = watch(tmp_path, alarms)
    observers.run_started(RunFacts("r", tmp_path, {}, True))
    for item in met.events:
        observers.event(item)
    observers.run_ended({})
    observers.close()
    observers.close()
    assert alarms == []
    assert "Target met" in (tmp_path / "report.html").read_text()
