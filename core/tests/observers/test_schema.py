from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Kind, RunFolderError
from grpo_bench.observers import EVALUATION, read_training
from grpo_bench.observers._schema import read_run
from grpo_bench.observers.compare import Comparison
from grpo_bench.observers.overview import Overview
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**400, -1, "pass_k", "rollout", "\ud800", {"$float": "nan"}, {"$float": "inf"}, 2**53 + 1,
                       {"$float": []}, {"$array": "float32"}, {"$array": 3, "shape": [2], "data": [1]}, {"$tuple": 3},
                       {"$enum": "End", "value": "x"}, {"$type": "Event"}, {"$path": None},
                       {"$tuple": [1, {"$tuple": []}]}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=5)


def damaged(folder: Path, number: int, change: Any) -> Path:
    """The journal with one line changed as JSON data."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[number])
    change(record)
    lines[number] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")
    return folder


def line_of(history: Any, kind: str) -> int:
    return next(event.seq for event in history.events if event.kind == kind)


def test_a_sound_journal_comes_back_whole(tmp_path: Path, resumed: Any) -> None:
    assert list(read_run(resumed.save(tmp_path))) == resumed.events


@pytest.mark.parametrize(("kind", "key", "value", "words"), [
    ("rollout", "durations", None, "durations of a rollout event should be an object, not None"),
    ("rollout", "durations", {"generate": -1.0}, "under 'generate' what should be seconds: a finite number, 0 or more"),
    ("rollout", "end", "vanished", "end of a rollout event should be one of completed, failed"),
    ("rollout", "turns", True, "turns of a rollout event should be a count, not True"),
    ("rollout", "task_id", "\ud800", "task_id of a rollout event should be text without lone surrogates"),
    ("rollout", "reward", {"$float": "nan"}, "reward of a rollout event should be a number between"),
    ("step", "seconds", {"$float": "inf"}, "seconds of a step event should be seconds"),
    ("step", "sampled_tokens", 10**400, "sampled_tokens of a step event should be a count"),
    ("validation", "metrics", {"accuracy": 0.5}, "metrics of a validation event should have pass_k"),
    ("run_started", "metric", "luck", "metric of a run_started event should be one of accuracy, pass_1, "),
    ("run_started", "metric", "", "metric of a run_started event should be one of"),
    ("run_ended", "status", "won", "status of a run_ended event should be one of"),
])
def test_data_that_no_view_can_be_made_of_is_named_by_line(tmp_path: Path, met: Any, capsys: pytest.CaptureFixture[str],
                                                           kind: str, key: str, value: Any, words: str) -> None:
    number = line_of(met, kind)
    folder = damaged(met.save(tmp_path), number, lambda record: record["data"].update({key: value}))
    for command in (["report", str(folder)], ["report", str(folder), "--json"], ["compare", str(folder), str(folder)]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"events.jsonl, line {number + 1}: " in err
        assert words in err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(("change", "words"), [
    (lambda record: record.update(kind="levitation"), "'levitation' is no kind of event that this version knows"),
    (lambda record: record.update(kind=["step"]), "is no kind of event"),
    (lambda record: record.update(data={"$float": "nan"}), "data of a phase event should be an object"),
    (lambda record: record["data"].clear(), "a phase event should have phase"),
    (lambda record: record.update(elapsed_s="soon"), "elapsed_s should be seconds"),
    (lambda record: record.update(elapsed_s=-1), "elapsed_s should be seconds"),
    (lambda record: record.update(elapsed_s=1e9), "elapsed_s goes back from 1000000000.0 to"),
    (lambda record: record.update(step=-1), "step should be a count, or null"),
    (lambda record: record.update(kind="run_started"), "should have run"),
])
def test_an_event_that_is_none_is_named_by_line(tmp_path: Path, met: Any, change: Any, words: str) -> None:
    folder = damaged(met.save(tmp_path), line_of(met, "phase"), change)
    with pytest.raises(RunFolderError, match=r"events\.jsonl, line [23]: ") as caught:
        list(read_run(folder))
    assert words in caught.value.message


def test_a_run_has_one_beginning(tmp_path: Path, met: Any) -> None:
    first = json.loads(json.dumps(dict(met.events[0].data)))
    folder = damaged(met.save(tmp_path), 5, lambda record: record.update(kind="run_started", data=first))
    with pytest.raises(RunFolderError, match="line 6: a run begins with one run_started event"):
        list(read_run(folder))


def test_a_journal_of_a_later_version_may_say_more(tmp_path: Path, met: Any) -> None:
    folder = damaged(met.save(tmp_path), 0, lambda record: record["data"].update(colour="green", lead=[1, {"x": None}]))
    assert len(list(read_run(folder))) == len(met.events)


def test_an_evaluation_follows_its_training(tmp_path: Path, evaluated_again: Any) -> None:
    folder = evaluated_again.save(tmp_path)
    assert list(read_run(folder)) == evaluated_again.events
    assert list(read_training(folder)) == evaluated_again.events[:evaluated_again.first]


def test_a_journal_of_an_evaluation_that_holds_nothing_is_none(tmp_path: Path, trained: Any) -> None:
    folder = trained.save(tmp_path)
    (folder / EVALUATION).mkdir()
    (folder / EVALUATION / "events.jsonl").write_bytes(b'{"seq":0,"at":"20')
    assert list(read_run(folder)) == trained.events


def test_an_evaluation_of_another_training_is_refused(tmp_path: Path, evaluated: Any,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    folder = damaged(evaluated.save(tmp_path), 0, lambda record: record["data"].update(seed=1))
    for command in (["report", str(folder)], ["compare", str(folder), str(folder)]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"{EVALUATION}/events.jsonl evaluates another training than {folder}/events.jsonl records" in error
        assert "restore events.jsonl from a copy" in error


@pytest.mark.parametrize(("change", "words"), [
    ({"checkpoints": [{"step": 2, "folder": "weights-00002", "updated_at": "yesterday"}]},
     "have under updated_at what should be a time in ISO 8601"),
    ({"checkpoints": [{"step": 2, "folder": "weights-00002"}]}, "each of which should have updated_at"),
    ({"checkpoints": [3, 2]}, "each of which should be an object"),
    ({"scored": None}, "scored of an evaluation_started event should be true or false"),
])
def test_an_evaluation_says_what_it_evaluates(tmp_path: Path, evaluated: Any, change: dict[str, Any],
                                              words: str) -> None:
    folder = evaluated.save(tmp_path)
    damaged(folder / EVALUATION, 0, lambda record: record["data"].update(change))
    with pytest.raises(RunFolderError, match=r"eval/events\.jsonl, line 1: ") as caught:
        list(read_run(folder))
    assert words in caught.value.message


@pytest.mark.parametrize(("change", "words"), [
    (lambda record: record.update(kind="step", data={"seconds": 1.0, "reward_mean": None, "rollouts": 1,
                                                     "sampled_tokens": 1}), "an evaluation has no step event"),
    (lambda record: record.update(step=7), "a validation of step 7, of which the evaluation has no checkpoint"),
    (lambda record: record["data"].update(metrics={"accuracy": 1.0}), "metrics of a validation event should have pass"),
    (lambda record: record["data"].update(target_met=None), "target_met of a validation event should be true or false"),
])
def test_what_cannot_be_part_of_an_evaluation_is_named_by_line(tmp_path: Path, evaluated: Any, change: Any,
                                                               words: str) -> None:
    folder = evaluated.save(tmp_path)
    number = line_of_evaluation(evaluated, Kind.VALIDATION)
    damaged(folder / EVALUATION, number, change)
    with pytest.raises(RunFolderError, match=rf"eval/events\.jsonl, line {number + 1}: ") as caught:
        list(read_run(folder))
    assert words in caught.value.message


def test_each_journal_begins_with_its_own_first_event(tmp_path: Path, evaluated: Any) -> None:
    folder = evaluated.save(tmp_path)
    other = folder / EVALUATION / "events.jsonl"
    other.write_bytes((folder / "events.jsonl").read_bytes())
    with pytest.raises(RunFolderError, match="line 1: an evaluation begins with one evaluation_started event"):
        list(read_run(folder))
    evaluated.save(tmp_path / "b")
    (tmp_path / "b" / "events.jsonl").write_bytes((tmp_path / "b" / EVALUATION / "events.jsonl").read_bytes())
    with pytest.raises(RunFolderError, match="line 1: a run begins with one run_started event"):
        list(read_run(tmp_path / "b"))


def line_of_evaluation(history: Any, kind: Kind) -> int:
    return next(event.seq for event in history.events[history.first:] if event.kind == kind)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_bottomless_data_is_refused(tmp_path: Path, met: Any, depth: int) -> None:
    path = met.save(tmp_path) / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[0] = lines[0].replace('"scored":true', '"scored":true,"settings":{"x":' + "[" * depth + "]" * depth + "}")
    path.write_text("".join(lines))
    with pytest.raises(RunFolderError, match=r"line 1: .*(nested|recursion)"):
        list(read_run(tmp_path))


def test_a_loss_may_be_anything(tmp_path: Path, met: Any) -> None:
    folder = damaged(met.save(tmp_path), line_of(met, "update"),
                     lambda record: record["data"].update(loss={"$float": "nan"}, grad_norm={"$float": "inf"}))
    Overview(folder).write()
    page = (folder / "report.html").read_text()
    assert "NaN" in page
    assert "∞" in page


@FIXED
@given(data=st.data())
def test_a_journal_either_can_be_shown_or_is_refused_by_line(tmp_path_factory: pytest.TempPathFactory, resumed: Any,
                                                             data: st.DataObject) -> None:
    folder = resumed.save(tmp_path_factory.mktemp("run"))
    shown_or_refused(folder, folder, len(resumed.events), data)


@FIXED
@given(data=st.data())
def test_so_is_the_journal_of_an_evaluation(tmp_path_factory: pytest.TempPathFactory, evaluated_again: Any,
                                            data: st.DataObject) -> None:
    folder = evaluated_again.save(tmp_path_factory.mktemp("run"))
    shown_or_refused(folder, folder / EVALUATION, len(evaluated_again.events) - evaluated_again.first, data)


def shown_or_refused(folder: Path, journal: Path, lines: int, data: st.DataObject) -> None:
    """Whatever is written into a line of a journal, no view fails but by naming that line, or the one that it then
    contradicts."""
    number = data.draw(st.integers(0, lines - 1), "line")

    def change(record: dict[str, Any]) -> None:
        target = data.draw(st.sampled_from([record, record["data"]]), "level")
        key = data.draw(st.sampled_from([key for key in target if key != "seq"]), "key")
        if target is not record and data.draw(st.booleans(), "gone"):
            del target[key]
        else:
            target[key] = data.draw(ANYTHING, "value")

    damaged(journal, number, change)
    try:
        overview = Overview(folder)
    except RunFolderError as error:
        named = (f"{journal / 'events.jsonl'}, line {number + 1}:", f"line {number + 2}:", "evaluates another training",
                 "of which the evaluation has no checkpoint")
        if not any(words in error.message for words in named):
            raise
        return
    overview.write()
    json.dumps(overview.record, allow_nan=False)
    assert list(overview.lines(80))
    assert list(Comparison(folder, folder).lines(80))
    assert json.loads((folder / "trace.json").read_text())
