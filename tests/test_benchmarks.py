"""The benchmarks as a command: what there is, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.simulation import _part

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


@pytest.mark.parametrize(("module", "part"), [
    ("grpo_bench_sim.rollouts", "the stand-ins"), ("grpo_bench.observers.journal", "the record"),
    ("grpo_bench.engine.clock", "the event loop"), ("grpo_bench.engine.loop", "the engine"),
    ("grpo_bench_simulated", "the rest")])
def test_a_sample_of_a_simulation_counts_for_the_innermost_of_our_modules(module: str, part: str) -> None:
    outer: dict[str, Any] = {"__name__": "grpo_bench_nobody"}
    inner: dict[str, Any] = {"__name__": module, "library": lambda: _part(sys._getframe())}
    exec("def work(): return library()", inner)
    exec("def work(then): return then()", outer)
    assert outer["work"](inner["work"]) == part
