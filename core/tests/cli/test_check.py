"""``check``: what makes a run a result, every reason why one is none, and plugins that are asked about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main
from grpo_bench.engine.folder import software_sha256

from .checking import SETTINGS, check, evaluated, keep, record, refusals, train

JUDGES = '''
from grpo_bench.contract import Finding, GrpoBenchError, Plugin, Role, Settings, hookimpl

class Config(Settings):
    least: int = 2

class Rules:
    def __init__(self, context):
        self.least = context.config.least
    def check_run(self, folder, events):
        steps = sum(event.kind == "step" for event in events)
        return [Finding("steps", steps >= self.least, f"{steps} of {self.least}")]

class Counting:
    def __init__(self, context):
        self.wanted = context.shared["grpo"].max_steps
    def check_run(self, folder, events):
        steps = sum(event.kind == "step" for event in events)
        return [Finding("steps", steps == self.wanted, f"{steps} of {self.wanted}")]

class Witness:
    def __init__(self, context):
        self.folder = context.run_folder
    @hookimpl
    def check_run(self, folder, events):
        assert folder == self.folder
        return (Finding("file", (folder / "witness").exists(), "there or not"),)

class Mute:
    def __init__(self, context):
        pass

class Broken(Mute):
    @hookimpl
    def check_run(self, folder, events):
        raise RuntimeError("in pieces")

class Angry(Mute):
    def check_run(self, folder, events):
        raise GrpoBenchError("will not say")

def of(role, name, kind):
    return Plugin(name=name, role=role, summary="of a test", config=Config, factory=f"{__name__}:{kind}")

rules = of(Role.RULESET, "rules", "Rules")
counting = of(Role.RULESET, "counting", "Counting")
angry = of(Role.RULESET, "angry", "Angry")
witness = of(Role.OBSERVER, "witness", "Witness")
mute = of(Role.OBSERVER, "mute", "Mute")
broken = of(Role.OBSERVER, "broken", "Broken")
'''
POINTS = {"ruleset": {"rules": "rules", "counting": "counting", "angry": "angry"},
          "observer": {"witness": "witness", "mute": "mute", "broken": "broken"}}

def test_a_training_that_is_not_evaluated_is_no_result_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run")
    code, verdict = check(run, capsys)
    assert (code, refusals(verdict)) == (1, ["run: end: trained, and not evaluated yet"])
    assert main(["check", str(run)]) == 1
    said = capsys.readouterr().out
    assert f"NO  run: end: trained, and not evaluated yet; grpo-bench eval {run} evaluates it" in said


def test_training_and_evaluation_make_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict = check(evaluated(tmp_path / "run"), capsys)
    assert (code, verdict["result"], refusals(verdict)) == (0, True, [])
    assert verdict["summary"]["time_to_target_s"] == 2.5


@pytest.mark.parametrize(("spoilt", "reason"), [
    ({"status": None}, "run: end: the record has no end: the evaluation was cut off, or goes on"),
    ({"status": "interrupted"}, "run: end: interrupted"),
    ({"scored": False, "unscored": ["generator 'm' is a stand-in"]}, "run: scored: generator 'm' is a stand-in")])
def test_what_is_wrong_with_an_evaluation_makes_it_none(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                        spoilt: dict[str, Any], reason: str) -> None:
    code, verdict = check(evaluated(tmp_path / "run", **spoilt), capsys)
    assert (code, refusals(verdict)) == (1, [reason])


def test_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = record(tmp_path / "good")
    code, verdict = check(run, capsys)
    assert (code, verdict["result"], verdict["run"], refusals(verdict)) == (0, True, "good", [])
    assert verdict["summary"]["time_to_target_s"] == 4.0
    assert main(["check", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a result: good", "ok  run: scored: every part is real, and the source is a commit",
        "ok  run: record: agrees with itself", "ok  run: end: target met", "ok  run: figures: what the events come to",
        "ok  run: ledger: every second belongs to a phase"]


def test_lines_are_no_wider_than_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["check", str(record(tmp_path / "good"))]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "a result: good", "ok  run: scored: every part is real, and the", "    source is a commit"]


@pytest.mark.parametrize(("spoilt", "reason"), [
    ({"scored": False, "unscored": ["trainer 'm' is a stand-in"]}, "run: scored: trainer 'm' is a stand-in"),
    ({"scored": False, "unscored": ["its time was virtual"]}, "run: scored: its time was virtual"),
    ({"forced": ["seed: was 1, is 2"]}, "run: resumed: attempt 2 was forced although seed: was 1, is 2"),
    ({"status": None}, "run: end: the record has no end: the run was cut off, or goes on"),
    ({"status": "target_missed"}, "run: end: target missed"),
    ({"status": "completed"}, "run: end: completed"),
    ({"status": "failed"}, "run: end: failed"),
    ({"status": "interrupted"}, "run: end: interrupted"),
    ({"said": 3.5}, "run: figures: the end says time_to_target_s 3.5, by the events 4.0"),
    ({"said": None, "met": False}, "run: figures: the end says a target that no validation met"),
    ({"wall_s": 6.0}, "run: ledger: 1.000 s of 6.000 s belong to no phase")])
def test_each_reason_makes_it_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoilt: dict[str, Any],
                                   reason: str) -> None:
    code, verdict = check(record(tmp_path / "run", **spoilt), capsys)
    assert (code, verdict["result"], refusals(verdict)) == (1, False, [reason])
    assert main(["check", str(tmp_path / "run")]) == 1
    text = capsys.readouterr().out
    assert text.startswith("not a result: run\n") and f"NO  {reason}" in text


STAND_IN = {"name": "m", "stand_in": True}
DIRTY = {"sources": {"/src": {"commit": "c", "dirty": True}}}


@pytest.mark.parametrize(("changes", "reason"), [
    ({"parts": {"trainer": STAND_IN}}, "run: scored: trainer 'm' is a stand-in"),
    ({"observers": [STAND_IN]}, "run: scored: observer 'm' is a stand-in"),
    ({"seed": 2}, "run: record: seed: was 1, is 2"),
    ({"provenance_sha256": ""}, "provenance.json is not what was kept when its attempt began")])
def test_a_first_event_that_was_changed_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                 changes: dict[str, Any], reason: str) -> None:
    code, verdict = check(record(tmp_path / "run", **changes), capsys)
    assert code == 1 and len(found := refusals(verdict)) == 1 and found[0].endswith(reason)


@pytest.mark.parametrize(("name", "value", "reason"), [
    ("profile.json", {**SETTINGS, "seed": 2}, "profile.json: seed: was 1, is 2"),
    ("profile.json", None, "profile.json cannot be read"),
    ("provenance.json", DIRTY, "provenance.json is not what was kept"), ("provenance.json", None, "provenance.json"),
    ("eval/provenance.json", DIRTY, "eval/provenance.json is not what was kept"),
    ("eval/provenance.json", [], "eval/provenance.json holds no JSON object")])
def test_files_beside_the_journals_have_to_be_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str,
                                                     value: Any, reason: str) -> None:
    run = evaluated(tmp_path / "run")
    (run / name).unlink()
    if value is not None:
        keep(run / name, value)
    code, verdict = check(run, capsys)
    assert code == 1 and len(found := refusals(verdict)) == 1 and reason in found[0]


def test_a_source_that_is_no_commit_cannot_be_scored_whatever_the_events_say(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = record(tmp_path / "run", provenance_sha256=software_sha256(DIRTY))
    keep(run / "provenance.json", DIRTY)
    assert refusals(check(run, capsys)[1]) == ["run: scored: source tree /src has changes that no commit holds"]


@pytest.mark.parametrize(("changes", "reason"), [
    ({"run": "other"}, "run: record: evaluation: run: was \"run\", is \"other\""),
    ({"metric": "accuracy"}, "run: record: evaluation: metric: was \"pass_k\", is \"accuracy\""),
    ({"target": 0.25}, "run: record: evaluation: target: was 0.5, is 0.25"),
    ({"forced": ["tasks: was 1, is 2"]}, "run: scored: its evaluation differs from its training: tasks: was 1, is 2"),
    ({"settings": {**SETTINGS, "deterministic": True}}, "run: record: evaluation: deterministic: was false, is true"),
    ({"settings": {**SETTINGS, "generator": {"use": "other"}, "policy": {**SETTINGS["policy"], "checkpoint": "x"}}},
     None)])
def test_an_evaluation_is_of_its_training(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any],
                                          reason: str | None) -> None:
    _, verdict = check(evaluated(tmp_path / "run", **changes), capsys)
    assert refusals(verdict) == ([] if reason is None else [reason])


def test_an_evaluation_that_does_not_say_what_it_is_made_of_is_no_run(tmp_path: Path,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    run = evaluated(tmp_path / "run")
    journal = run / "eval" / "events.jsonl"
    journal.write_text(journal.read_text().replace('"parts"', '"were"'))
    assert main(["check", str(run)]) == 2
    assert "holds no run whose first event says what it is made of" in capsys.readouterr().err


@pytest.mark.parametrize(("ruleset", "observers", "found"), [
    ({"use": "rules", "least": 1}, [], []),
    ({"use": "rules"}, [], ["ruleset rules: steps: 1 of 2"]),
    (None, [{"use": "witness"}, {"use": "mute"}], []),
    ({"use": "angry"}, [], ["ruleset angry: asked: cannot be asked: will not say"]),
    (None, [{"use": "broken"}], ["observer broken: asked: cannot be asked: RuntimeError: in pieces"]),
    ({"use": "rulse"}, [{"use": "gone"}], [
        "ruleset rulse: asked: cannot be asked: no ruleset plugin named 'rulse' is installed; did you mean 'rules'?",
        "observer gone: asked: cannot be asked: no observer plugin named 'gone' is installed"]),
    ({"use": "rules", "least": "many"}, [], ["ruleset rules: asked: cannot be asked: ValidationError: 1 validation"])])
def test_the_runs_own_plugins_are_asked(workshop, capsys: pytest.CaptureFixture[str], ruleset: Any, observers: Any,
                                        found: list[str]) -> None:
    workshop.distribution("judges", POINTS, JUDGES)
    run = record(workshop.folder / "run", settings={**SETTINGS, "ruleset": ruleset, "observers": observers})
    (run / "witness").touch()
    code, verdict = check(run, capsys)
    assert code == (1 if found else 0)
    assert len(refusals(verdict)) == len(found)
    assert all(said.startswith(wanted) for said, wanted in zip(refusals(verdict), found, strict=True))


def test_a_ruleset_gets_the_runs_grpo_section(workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.distribution("judges", POINTS, JUDGES)
    grpo = {"prompts_per_step": 1, "generations_per_prompt": 2, "max_steps": 3}
    run = record(workshop.folder / "run", settings={**SETTINGS, "ruleset": {"use": "counting"}, "grpo": grpo})
    assert refusals(check(run, capsys)[1]) == ["ruleset counting: steps: 1 of 3"]


def test_a_witness_that_disagrees(workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.distribution("judges", POINTS, JUDGES)
    run = record(workshop.folder / "run", settings={**SETTINGS, "observers": [{"use": "witness"}]})
    assert refusals(check(run, capsys)[1]) == ["observer witness: file: there or not"]


@pytest.mark.parametrize(("content", "says"), [
    (None, "is no run folder: it has no events.jsonl"), ("", "holds no run whose first event"),
    ("{}\n", "not an event"), ("\x00\n", "not JSON")])
def test_what_is_no_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None,
                                    says: str) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_text(content)
    assert main(["check", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert (shown.out, says in shown.err) == ("", True), shown.err


@pytest.mark.parametrize("settings", [{}, {**SETTINGS, "observers": [{}]}, {**SETTINGS, "observers": "mllog"},
                                      {**SETTINGS, "ruleset": "strict"}])
def test_settings_that_were_damaged_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                 settings: dict[str, Any]) -> None:
    assert main(["check", str(record(tmp_path / "run", settings=settings))]) == 2
    assert "the settings in its journal do not say which" in capsys.readouterr().err
