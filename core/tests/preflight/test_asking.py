"""Somebody who is asked may take long, hang, fail, or answer nonsense."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from grpo_bench.contract import FileDigests, Finding, PlanError
from grpo_bench.preflight.asking import Question, ask

GOOD = Finding("a", True, "well")


def asked(question: Callable[..., Iterable[object]], said: list[str] | None = None, **options: float) -> list[Finding]:
    kept: Question = question  # type: ignore[assignment]
    return list(ask(kept, (said if said is not None else []).append, None, **options))


def test_findings_and_words_come_in_order():
    said: list[str] = []

    def question(digests, say):
        say("first")
        yield GOOD
        say("second")
        yield Finding("b", False, "ill")

    assert asked(question, said) == [GOOD, Finding("b", False, "ill")]
    assert said == ["first", "second"]


def test_who_is_silent_for_too_long_is_left_behind_and_what_was_found_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_bench.preflight.asking._LEAVE_S", 0.2)
    never = threading.Event()

    def question(digests, say):
        yield GOOD
        never.wait()

    first, second = asked(question, silent_s=0.2)
    assert first == GOOD
    assert (second.ok, second.unknown) == (False, True)
    assert second.message == "did not answer within 0.2 s"
    never.set()


def test_who_says_something_is_not_silent():
    pause = threading.Event()

    def question(digests, say):
        for number in range(8):
            pause.wait(0.1)
            say(str(number))
        yield GOOD

    assert asked(question, silent_s=0.5) == [GOOD]


@pytest.mark.parametrize(("error", "message"), [
    (PlanError("no folder /x", hint="make it"), "cannot be asked: no folder /x"),
    (FileNotFoundError(2, "No such file or directory", "/x"), "cannot be asked: /x: No such file or directory"),
    (KeyError("gone"), "cannot be asked: KeyError: 'gone' ("),
    (SyntaxError("odd"), "cannot be asked: SyntaxError: odd ("),
    (SystemExit(3), "cannot be asked: SystemExit: 3 ("),
])
def test_an_error_is_a_finding(error, message):
    def question(digests, say):
        yield GOOD
        raise error

    first, second = asked(question)
    assert first == GOOD
    assert not second.ok
    assert second.message.startswith(message)


def test_the_line_that_failed_is_named():
    def question(digests, say):
        return [][3]

    assert f"({__file__}:" in asked(question)[0].message


def test_what_is_no_finding_is_said():
    assert [finding.message for finding in asked(lambda digests, say: [None])] == [
        "answered with a NoneType, which is no Finding"]


def test_who_stops_listening_stops_what_is_read(tmp_path: Path):
    """As an interrupt does."""
    file = tmp_path / "f"
    file.write_bytes(b"x")
    left, told, errors = threading.Event(), threading.Event(), []

    def question(digests: FileDigests, say):
        yield GOOD
        left.wait(60)
        try:
            digests([file])
        except OSError as error:
            errors.append(error)
        told.set()

    answers = ask(question, lambda line: None, None)
    assert next(answers) == GOOD
    threading.Timer(0.1, left.set).start()
    answers.close()  # type: ignore[attr-defined]
    assert told.wait(60)
    assert [error.strerror for error in errors] == ["hashing was stopped"]
