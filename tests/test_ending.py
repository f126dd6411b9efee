"""SIGUSR1, by which a scheduler says that time will be up: the step under way ends, is saved, and none is lost."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo_bench.contract import Event, Kind
from grpo_bench.observers import read_events

from .children import Child, last_object, stepped
from .conftest import run_mock

STEPS = 6
SMALL = {"grpo.max_steps": STEPS, "grpo.prompts_per_step": 4, "grpo.generations_per_prompt": 3,
         "validation.metric": "off", "validation.target": "off", "validation.max_tasks": 2, "validation.period": 2,
         "checkpoint.period": 100, "trainer.update_s": 0.3}
ASYNC = {"schedule.mode": "async", "schedule.max_age": 1, "deterministic": "false"}
DEFERRED = {"validation.deferred": "true", "validation.metric": "pass_k", "validation.target": 1.0}
HANGING = {"trainer.faults": '[{at = "update", kind = "hang", step = 2}]'}


def steps(events: Sequence[Event]) -> list[int]:
    return [event.data["version"] for event in events if event.kind == Kind.STEP]


def told(child: Child, *numbers: int) -> tuple[int, str | None, list[Event], str]:
    """Exit code, status, events and stderr of a run that got these signals after its first step."""
    child.until(lambda: stepped(child))
    for number in numbers:
        child.process.send_signal(number)
    code, out, err = child.end()
    return code, last_object(out).get("status"), list(read_events(child.folder)), err


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Those of the run that nobody ended."""
    overrides = [f"{key}={value}" for key, value in SMALL.items()]
    return run_mock(tmp_path_factory.mktemp("whole"), overrides).outcome.summary["weights_sha256"]


@pytest.mark.parametrize("settings", [{}, ASYNC], ids=["sync", "async"])
def test_the_step_under_way_is_ended_and_saved_and_a_resumption_loses_none(
        tmp_path: Path, settings: dict[str, object], weights: str) -> None:
    code, status, events, err = told(Child(tmp_path, {**SMALL, **settings}, "mock"), signal.SIGUSR1, signal.SIGUSR1)
    assert (code, status) == (130, "interrupted")
    assert err.startswith("grpo-bench: the run was told to end and did so after a step (grpo-bench resume ")
    assert (events[-1].kind, events[-1].data["status"]) == (Kind.RUN_ENDED, "interrupted")
    ended = steps(events)[-1]
    assert 1 <= ended < STEPS
    saved = [event.data["folder"] for event in events if event.kind == Kind.CHECKPOINT]
    assert saved == [f"step-{ended:05d}"]
    assert [event.data["version"] for event in events if event.kind == Kind.VALIDATION] == list(range(2, ended + 1, 2))
    folder = tmp_path / "runs"
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(next(folder.iterdir())))).end()
    assert (code, last_object(out)["status"]) == (0, "completed"), err
    events = list(read_events(next(folder.iterdir())))
    assert steps(events) == list(range(1, STEPS + 1))
    assert [event.data["from_step"] for event in events if event.kind == Kind.RESUMED] == [ended]
    if not settings:
        assert last_object(out)["weights_sha256"] == weights


@pytest.mark.parametrize("settings", [{}, DEFERRED], ids=["validating", "deferred"])
def test_a_run_that_saves_no_full_checkpoints_is_interrupted_at_once(
        tmp_path: Path, settings: dict[str, object]) -> None:
    child = Child(tmp_path, {**SMALL, **HANGING, **settings, "checkpoint.period": 0}, "mock")
    code, status, events, err = told(child, signal.SIGUSR1)
    assert (code, status) == (130, "interrupted")
    assert steps(events) == [1]
    assert events[-1].kind == Kind.RUN_ENDED
    assert err.startswith("grpo-bench: the run was interrupted (" + ("start a new run" if settings else "grpo-bench"))


def test_a_later_interrupt_stops_the_run_at_once(tmp_path: Path) -> None:
    code, status, events, _ = told(Child(tmp_path, {**SMALL, **HANGING}, "mock"), signal.SIGUSR1, signal.SIGINT)
    assert (code, status) == (130, "interrupted")
    assert steps(events) == [1]
    assert not [event for event in events if event.kind == Kind.CHECKPOINT]


def test_in_the_last_step_the_run_ends_as_ever_and_leaves_its_evaluation_to_another_process(tmp_path: Path) -> None:
    settings = {**SMALL, **DEFERRED, "grpo.max_steps": 1, "validation.period": 1, "trainer.update_s": 1.0}
    child = Child(tmp_path, settings, "mock")
    child.until(lambda: any(event.kind == Kind.BATCH for event in child.recorded()))
    child.process.send_signal(signal.SIGUSR1)
    code, out, err = child.end()
    assert (code, last_object(out)["status"]) == (130, "trained")
    assert "before its evaluation" in err
    assert list(read_events(child.folder))[-1].data["status"] == "trained"
    assert not (child.folder / "eval").exists()
    assert Child(tmp_path, {}, "", verb=("eval", str(child.folder))).end()[0] in (0, 1)


def test_an_evaluation_is_interrupted_and_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = {**SMALL, **DEFERRED, "generator.base_skill": -9, "generator.token_s": 0.002, "trainer.update_s": 0,
                "validation.period": 1, "checkpoint.period": 2}
    child = Child(tmp_path, settings, "mock", verb=())
    journal = "eval/events.jsonl"
    child.until(lambda: any(b'"validation"' in file.read_bytes() for file in child.runs.glob(f"*/{journal}")))
    child.process.send_signal(signal.SIGUSR1)
    code, _, err = child.end()
    assert code == 130 and f"grpo-bench eval {child.folder} goes on with it" in err
    events = list(read_events(child.folder / journal))
    assert events[-1].data["status"] == "interrupted"
    code, out, err = Child(tmp_path, {}, "", verb=("eval", str(child.folder))).end()
    assert (code, last_object(out)["status"]) == (1, "target_missed"), err
    versions = [event.data["version"] for event in read_events(child.folder / journal) if event.kind == Kind.VALIDATION]
    assert versions == list(range(1, STEPS + 1))
