"""What cannot be resumed is said in one message; what is resumed all the same is on record."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Event, Kind, RunFolderError, settings_of, timeless
from grpo_bench.engine import conduct, make_folder, prepare, run_virtual
from grpo_bench.observers import Journal, read_events, summarise
from grpo_bench.registry import make_plan, resolve

from .deferring import software as software

SMALL = ("grpo.max_steps=4", "grpo.prompts_per_step=2", "grpo.generations_per_prompt=2", "validation.max_tasks=2",
         "validation.metric=off", "validation.target=off", "checkpoint.period=1", "checkpoint.keep=4")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went to its end."""
    folder = tmp_path_factory.mktemp("ended")
    plan = make_plan(resolve("mock", overrides=SMALL, cwd=folder))
    run = make_folder(plan, folder / "runs", datetime.now(UTC))
    run_virtual(lambda clock: conduct(plan, run, clock))
    return run


@pytest.fixture
def cut(ended: Path, tmp_path: Path) -> Path:
    """The same, cut off after the checkpoint of step 2 while an event was written."""
    run = Path(shutil.copytree(ended, tmp_path / ended.name))
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if _is(line, Kind.CHECKPOINT, 2)) + 4
    (run / "events.jsonl").write_bytes(b"".join(lines[:end]) + lines[end][:20])
    for step in (3, 4):
        shutil.rmtree(run / "checkpoints" / f"step-{step:05d}")
    return run


def _is(line: bytes, kind: str, step: int) -> bool:
    event = json.loads(line)
    return (event["kind"], event["step"]) == (kind, step)


def events(run: Path) -> list[Event]:
    return list(read_events(run))


def resume(run: Path, *, force: bool = False) -> dict[str, Any]:
    plan, resumption = prepare(run, force=force)
    return run_virtual(lambda clock: conduct(plan, run, clock, resumption=resumption)).summary


def changed(file: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def refused(run: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")} if run.is_dir() else {}
    assert main(["resume", str(run), *arguments]) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_a_torn_last_line_is_cut_off_and_the_run_goes_on(cut: Path, ended: Path) -> None:
    summary = resume(cut)
    assert (summary["status"], summary["attempts"], summary["steps"]) == ("completed", 2, 4)
    assert timeless(events(cut)) == timeless(events(ended))
    resumed = next(event for event in events(cut) if event.kind == Kind.RESUMED)
    assert (resumed.data["from_step"], resumed.data["attempt"], resumed.data["forced"]) == (2, 2, [])


def test_time_and_phases_are_those_of_all_attempts(cut: Path) -> None:
    before = summarise(events(cut))
    after = resume(cut)
    assert sum(after["ledger"].values()) == pytest.approx(after["wall_s"])
    assert after["wall_s"] >= before["wall_s"]
    assert after["cpu_s"] is None


def test_a_line_that_is_damaged_is_named(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (cut / "events.jsonl").read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b"{", b"[", 1)
    (cut / "events.jsonl").write_bytes(b"".join(lines))
    assert "events.jsonl, line 7" in refused(cut, capsys)


def test_a_run_that_has_ended_has_nothing_to_resume(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has ended (completed)" in refused(ended, capsys)


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        assert "is no run folder" in refused(path, capsys)


def test_a_run_that_went_on_while_it_was_planned_is_left_as_it_is(cut: Path, ended: Path) -> None:
    plan, stale = prepare(cut)
    resume(cut)
    with pytest.raises(RunFolderError, match="went on while it was looked at"):
        run_virtual(lambda clock: conduct(plan, cut, clock, resumption=stale))
    assert timeless(events(cut)) == timeless(events(ended))


def test_a_journal_that_does_not_say_what_ran_is_named(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (cut / "events.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    for key, says in (("settings", "line 1: it does not say what the run is made of"), ("profile", "line 1")):
        data = {name: value for name, value in first["data"].items() if name != key}
        (cut / "events.jsonl").write_text("\n".join([json.dumps({**first, "data": data}), *lines[1:-1]]) + "\n")
        assert says in refused(cut, capsys)


def test_a_run_that_goes_on_elsewhere_is_left_alone(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(cut)
    try:
        assert "is in use by another process" in refused(cut, capsys)
    finally:
        journal.close()


def test_a_profile_that_was_edited_is_named_key_by_key(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(cut / "profile.json", lambda profile: profile["trainer"].update(learning_rate=0.5))
    assert "trainer.learning_rate: was 0.08, is 0.5" in refused(cut, capsys)


@pytest.mark.parametrize(("change", "says"), [
    (lambda found: found["distributions"]["grpo-bench-mock"].update(version="0.0.9"),
     'distributions.grpo-bench-mock.version: was "0.0.9", is "'),
    (lambda found: found["distributions"].update({"acme-grpo": {"version": "1.0", "sha256": "00"}}),
     "distributions.acme-grpo: was {"),
    (lambda found: found["libraries"].update(numpy="1.0"), 'libraries.numpy: was "1.0", is "'),
    (lambda found: found["tasks"]["train"].update(sha256="00"), 'tasks.train.sha256: was "00", is "'),
    (lambda found: found["policy"]["config.json"].update(sha256="00"), 'policy.config.json.sha256: was "00", is "'),
])
def test_other_software_data_or_policy_is_named(change: Any, says: str, cut: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    changed(cut / "provenance.json", change)
    said = refused(cut, capsys)
    assert says in said and "--force" in said


def test_a_forced_resumption_is_on_record_and_never_scored(cut: Path) -> None:
    def harder(profile: Any) -> None:
        profile["grpo"]["max_steps"] = 6

    changed(cut / "profile.json", harder)
    summary = resume(cut, force=True)
    assert (summary["steps"], summary["scored"]) == (6, False)
    history = events(cut)
    resumed = next(event for event in history if event.kind == Kind.RESUMED)
    assert "grpo.max_steps: was 4, is 6" in resumed.data["forced"]
    assert settings_of(history)["grpo"]["max_steps"] == 6
    with pytest.raises(RunFolderError, match="has ended"):
        prepare(cut)


def test_after_a_forced_resumption_its_software_is_what_counts(cut: Path) -> None:
    changed(cut / "provenance.json", lambda found: found["libraries"].update(numpy="1.0"))
    resume(cut, force=True)
    lines = (cut / "events.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "events.jsonl").write_bytes(b"".join(lines[:-1]))
    resume(cut)
    assert [event.data["attempt"] for event in events(cut) if event.kind == Kind.RESUMED] == [2, 3]


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(cut: Path, ended: Path,
                                                                    capsys: pytest.CaptureFixture[str]) -> None:
    newest = cut / "checkpoints" / "step-00002"
    (newest / "state.json").write_text('{"step": 2}')
    assert "step-00002/state.json is damaged" in refused(cut, capsys)
    shutil.rmtree(newest)
    resume(cut)
    assert timeless(events(cut)) == timeless(events(ended))


@pytest.mark.parametrize("change", [{"step": 1}, {"step": "2"}, {"seq": -7}, {"seq": None}, {"seq": True}])
def test_a_state_that_cannot_be_is_named(cut: Path, capsys: pytest.CaptureFixture[str], change: Any) -> None:
    changed(cut / "checkpoints" / "step-00002" / "state.json", lambda state: state.update(change))
    assert "step-00002/state.json is damaged" in refused(cut, capsys)


@pytest.mark.parametrize("name", ["events.jsonl", "provenance.json"])
def test_a_pipe_where_a_file_belongs_is_named(cut: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (cut / name).unlink()
    os.mkfifo(cut / name)
    assert f"{name} is no file" in refused(cut, capsys)


def test_a_pipe_where_the_log_belongs_is_not_waited_for(cut: Path) -> None:
    (cut / "engine.log").unlink()
    os.mkfifo(cut / "engine.log")
    with pytest.raises(RunFolderError, match=r"cannot open .*engine\.log"):
        resume(cut)


def test_checkpoints_without_a_journal_are_no_run_to_begin(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cut / "events.jsonl").write_text("")
    assert "has checkpoints, but its events.jsonl is empty or gone" in refused(cut, capsys)


def test_where_software_cannot_be_recorded_nothing_is(cut: Path, ended: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    (cut / "provenance-2.json").mkdir()
    assert main(["resume", str(cut)]) == 2
    assert "cannot write" in (said := capsys.readouterr().err) and "provenance-2.json" in said
    (cut / "provenance-2.json").rmdir()
    resume(cut)
    assert timeless(events(cut)) == timeless(events(ended))


def test_a_checkpoint_of_another_run_is_named(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(cut / "checkpoints" / "step-00002" / "state.json", lambda state: state.update(run="other"))
    assert "belongs to run other" in refused(cut, capsys)


def test_a_journal_shorter_than_its_checkpoint_is_named(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (cut / "events.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "events.jsonl").write_bytes(b"".join(lines[:5]))
    assert "the journal has 5" in refused(cut, capsys)


def test_a_run_that_was_killed_before_its_first_event_starts(cut: Path, ended: Path) -> None:
    changed(cut / "provenance.json", lambda found: found["libraries"].update(numpy="1.0"))
    for name in ("events.jsonl", "engine.log"):
        (cut / name).unlink()
    shutil.rmtree(cut / "checkpoints")
    shutil.rmtree(cut / "trajectories")
    assert main(["resume", str(cut), "--json"]) == 0
    assert json.loads((cut / "provenance.json").read_text())["libraries"]["numpy"] != "1.0"
    told = [line for line in timeless(events(cut)) if line[0] != Kind.RUN_STARTED]
    assert told == [line for line in timeless(events(ended)) if line[0] != Kind.RUN_STARTED]


def test_the_run_goes_on_after_its_folder_was_moved(cut: Path, ended: Path, tmp_path: Path) -> None:
    moved = cut.rename(tmp_path / "moved")
    assert resume(moved)["run"] == ended.name
    assert timeless(events(moved)) == timeless(events(ended))
