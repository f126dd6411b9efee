"""``check`` on several paths, and on what is no run folder: installed rulesets are asked about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_bench.cli import main

from .checking import check, record, refusals

WORDS = '''
from grpo_bench.contract import Finding, InputError, Plugin, Role, Settings

def judge(path):
    if path.is_dir():
        return None
    word = path.read_text().split()[0]
    if word == "angry":
        raise InputError("will not say")
    if word == "broken":
        raise RuntimeError("in pieces")
    found = {"good": [Finding("word", True, "is good")], "bad": [
        Finding("word", False, "is bad", fix="write another"), Finding("rest", False, "not looked at", unknown=True)]}
    return found.get(word)

rules = Plugin(name="words", role=Role.RULESET, summary="of a test", config=Settings, factory=f"{__name__}:judge",
               judge=f"{__name__}:judge")
mute = Plugin(name="mute", role=Role.RULESET, summary="of a test", config=Settings, factory=f"{__name__}:judge")
'''


@pytest.fixture
def words(workshop) -> Path:
    """A folder of files, and a ruleset that knows some of them by their first word."""
    workshop.distribution("words", {"ruleset": {"words": "rules", "mute": "mute"}}, WORDS)
    for name in ("good", "bad", "angry", "broken", "unknown"):
        (workshop.folder / name).write_text(f"{name} is its name")
    return workshop.folder


def test_installed_rulesets_are_asked_about_anything_else(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict = check(words / "good", capsys)
    finding = {"by": "ruleset words", "rule": "word", "ok": True, "message": "is good"}
    assert (code, verdict) == (0, {"path": str(words / "good"), "result": True, "findings": [finding]})
    assert main(["check", str(words / "bad")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"not a result: {words / 'bad'}", "NO  ruleset words: word: is bad; write another",
        "??  ruleset words: rest: not looked at"]
    assert check(words / "bad", capsys)[1]["findings"][0]["fix"] == "write another"


@pytest.mark.parametrize(("name", "says"), [("angry", "will not say"), ("broken", "RuntimeError: in pieces")])
def test_a_ruleset_that_cannot_be_asked_confirms_nothing(words: Path, capsys: pytest.CaptureFixture[str], name: str,
                                                         says: str) -> None:
    code, verdict = check(words / name, capsys)
    assert (code, len(refusals(verdict)), says in refusals(verdict)[0]) == (1, 1, True)


def test_several_paths_make_one_array_and_one_code(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = record(words / "run")
    assert main(["check", str(run), str(words / "good")]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "a result" in line] == [
        "a result: run", f"a result: {words / 'good'}"]
    assert main(["check", str(run), str(words / "bad"), str(words / "good"), "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)
    assert [(Path(verdict["path"]).name, verdict["result"]) for verdict in verdicts] == [
        ("run", True), ("bad", False), ("good", True)]
    assert verdicts[0]["summary"]["time_to_target_s"] == 4.0 and "summary" not in verdicts[1]


def test_what_nobody_knows_is_an_error_and_all_that_is_said(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for unknown, says in (("unknown", "no ruleset that judges files knows it (asked: "), ("gone", "does not exist")):
        assert main(["check", str(words / "good"), str(words / unknown)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"{words / unknown}" in shown.err and says in shown.err
    with pytest.raises(SystemExit, match="2"):
        main(["check"])


def test_a_ruleset_that_cannot_be_loaded_is_named_where_nobody_knows_better(
        workshop, words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.distribution("ruins", {"ruleset": {"ruin": "rules"}}, "1 / 0")
    assert check(words / "good", capsys)[0] == 0
    assert main(["check", str(words / "unknown")]) == 2
    assert "ruleset ruin cannot be asked: ruins" in capsys.readouterr().err
