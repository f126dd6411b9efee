"""The benchmarks as a command: what there is, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import main

NAMES = sorted(file.stem for file in (Path(__file__).parents[1] / "benchmarks").glob("[a-z]*.py"))


def listed(text: str) -> list[str]:
    """Names of the benchmarks that a text has a line for."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ") and len(line.split()) > 4]


def test_help_lists_every_benchmark_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert listed(text) == NAMES
    assert "``" not in text


def test_an_unknown_name_is_refused_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns", "nothing"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("no benchmark nothing; there are\n")
    assert (listed(captured.err), captured.out) == (NAMES, "")
