"""What ``check`` hears about a submission: each fault of one is found, by the right check."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf import judged, submission
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.judged import judge_path
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.official import missing
from grpo_bench_rules_mlperf.submission import judge_tree
from grpo_bench_rules_mlperf.training_6_1 import RULES

from grpo_bench.contract import Finding

needs_checker = pytest.mark.skipif(bool(missing(RULES)), reason=missing(RULES))


def written(file: Path, log: list[Line]) -> None:
    file.write_text("".join(f"{line}\n" for line in log))


def found(path: Path) -> dict[str, Finding]:
    return {finding.rule: finding for finding in judge_path(path) or ()}


def bad(path: Path) -> set[str]:
    return {rule for rule, finding in found(path).items() if not finding.ok}


@pytest.fixture
def tree(make_deferred, system: dict[str, str], tmp_path: Path) -> Path:
    """A submission of three runs that differ in their seeds, and in how many weights they needed."""
    organisation = tmp_path / "none"
    runs = organisation / "results" / "bench" / RULES.benchmark
    runs.mkdir(parents=True)
    for number, passed in enumerate(([180], [160, 180], [160, 170, 174])):
        log = lines(make_deferred(passed, seed=number + 1).events, MllogConfig())
        (runs / f"result_{number}.txt").write_text("\n".join(log) + "\n")
    (organisation / "systems").mkdir()
    (organisation / "systems" / "bench.json").write_text(json.dumps(system))
    (organisation / "benchmarks" / RULES.benchmark).mkdir(parents=True)
    return organisation


def results(tree: Path) -> Path:
    return tree / "results" / "bench" / RULES.benchmark


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@needs_checker
def test_a_good_submission(tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tree)
    before = sorted(tree.rglob("*"))
    rules = found(tree)
    assert [finding for finding in rules.values() if not finding.ok] == []
    assert rules.keys() == {
        "bench runs", "bench description", "bench seeds", "bench official RCP checker", "bench score",
        "official package checker", *(f"bench result_{number}.txt" for number in range(3))}
    assert rules["bench score"].message == (
        "191.750 s (3.196 min), the median of 178.750 s (2.979 min), 191.750 s (3.196 min), 204.750 s (3.413 min)")
    assert rules["bench seeds"].message == "all different: 1, 2, 3"
    assert (sorted(tree.rglob("*")), capfd.readouterr()) == (before, ("", ""))


def tell(file: Path, key: str, value: Any) -> None:
    """One key more, before all others."""
    log = [parse(line) for line in file.read_text().splitlines()]
    written(file, [log[0], log[1], replace(log[2], key=key, value=value), *log[2:]])


def forget(number: int) -> Callable[[Path], None]:
    return lambda tree: (results(tree) / f"result_{number}.txt").unlink()


FAULTS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "two runs": (forget(2), {"bench runs", "bench official RCP checker", "official package checker"}),
    "a run of another name": (lambda tree: (results(tree) / "result_1.txt").rename(results(tree) / "result_one.txt"),
                              {"bench runs"}),
    "a file that does not belong there": (lambda tree: (results(tree) / "notes").touch(), {"bench runs"}),
    "a check that is switched off": (lambda tree: (results(tree) / "package_checker_params").write_text("rcp-bypass"),
                                     {"bench runs"}),
    "one seed twice": (lambda tree: edit(results(tree) / "result_2.txt", '"seed", "value": 3', '"seed", "value": 2'),
                       {"bench seeds", "official package checker"}),
    "a log without a seed": (lambda tree: edit(results(tree) / "result_2.txt", '"key": "seed"', '"key": "sede"'),
                             {"bench result_2.txt mllog seed", "official package checker"}),
    "one log that the checker refuses": (
        lambda tree: edit(results(tree) / "result_0.txt", '"opt_name", "value": "adamw"', '"opt_name", "value": "sgd"'),
        {"bench result_0.txt official checker"}),
    "one log that only our audit refuses": (
        lambda tree: edit(results(tree) / "result_1.txt", '"status": "success"', '"status": "aborted"'),
        {"bench result_1.txt mllog status"}),
    "no description": (lambda tree: (tree / "systems" / "bench.json").unlink(),
                       {"bench description", "official package checker"}),
    "a description without a field": (lambda tree: edit(tree / "systems" / "bench.json", '"cooling"', '"colling"'),
                                      {"bench description", "official package checker"}),
    "another division": (lambda tree: edit(tree / "systems" / "bench.json", '"closed"', '"open"'),
                         {"bench description"}),
    "another status": (
        lambda tree: tell(results(tree) / "result_1.txt", "submission_status", "cloud"), {"bench description"}),
    "another system": (lambda tree: edit(tree / "systems" / "bench.json", '"bench"', '"workbench"'),
                       {"bench description"}),
    "another benchmark's folder": (lambda tree: results(tree).rename(results(tree).with_name("flux1")),
                                   {"qwen35_397b_grpo"}),
    "a log cut short": (lambda tree: (results(tree) / "result_1.txt").write_text(":::MLLOG {"), {
        "bench result_1.txt official checker", "bench result_1.txt mllog form", "bench description",
        "bench global_batch_size", "bench submission_division", "bench official RCP checker",
        "official package checker"}),
}


@needs_checker
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_a_submission_is_found(tree: Path, name: str) -> None:
    spoil, wanted = FAULTS[name]
    spoil(tree)
    assert bad(tree) == wanted, found(tree)


@needs_checker
def test_runs_that_are_too_fast(tree: Path) -> None:
    """Two of three at 17 steps: neither their batch nor their formulas allow it, and the reference needs 18."""
    for number in (1, 2):
        file = results(tree) / f"result_{number}.txt"
        log = [parse(line) for line in file.read_text().splitlines()]
        written(file, [replace(line, metadata={**line.metadata, "samples_count": 17 * 256, "step": 17})
                       if line.key == "eval_accuracy" else line for line in log])
    finding = found(tree)["bench official RCP checker"]
    assert not finding.ok and "refuses the runs: RCP found" in finding.message


@needs_checker
def test_the_open_division_needs_no_reference(tree: Path) -> None:
    edit(tree / "systems" / "bench.json", '"closed"', '"open"')
    for file in results(tree).iterdir():
        edit(file, '"submission_division", "value": "closed"', '"submission_division", "value": "open"')
        edit(file, '"key": "seed"', '"key": "sede"')
    rules = found(tree)
    assert all(finding.ok for finding in rules.values()), rules
    assert not rules.keys() & {"bench seeds", "bench official RCP checker"}


def test_a_submission_cannot_be_green_without_the_checkers(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (judged, submission):
        monkeypatch.setattr(module, "missing", lambda rules: "mlperf-logging 4.1.68 is not installed")
    rules = {finding.rule: finding for finding in judge_tree(tree)}
    unasked = {rule for rule, finding in rules.items() if finding.unknown}
    assert unasked == {"bench official RCP checker", "official package checker",
                       *(f"bench result_{number}.txt official checker" for number in range(3))}
    assert not any(rules[rule].ok for rule in unasked)
