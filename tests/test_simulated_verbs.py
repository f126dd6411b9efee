"""What verbs do with a simulation's folder: none takes it for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.judging import judge_run

from .simulating import MODEL, Folder, told
from .simulating import copy as copy
from .simulating import deferred as deferred
from .simulating import real as real
from .simulating import simulated as simulated


@pytest.mark.parametrize("verb", ["resume", "eval"])
@pytest.mark.parametrize("emptied", [False, True])
def test_nothing_goes_on_with_it(verb: str, emptied: bool, simulated: Folder, deferred: Folder, copy: Any,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    for folder in map(copy, (simulated, deferred)):
        if emptied:
            (folder / "events.jsonl").write_text("")
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        code, text = told(capsys, verb, folder)
        assert code == 2
        assert f"{folder} is a simulation: nothing in it was trained, so there is nothing to go on with" in text
        assert "hint: grpo-bench run starts a run, grpo-bench simulate another simulation" in text
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_it_is_no_result_whatever_its_record_says(simulated: Folder, copy: Any,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "check", simulated.path)
    assert code == 1 and text.startswith(f"not a result: {simulated.path.name} NO run: scored: it is a simulation")
    assert "NO run: end: target met, in a simulation" in text and "ruleset" not in text
    folder = copy(simulated)
    journal = folder / "events.jsonl"
    first, _, rest = journal.read_text().partition("\n")
    event = json.loads(first)
    event["data"] |= {"scored": True, "unscored": []}
    event["data"]["parts"] = {role: {**part, "stand_in": False} for role, part in event["data"]["parts"].items()}
    journal.write_text(json.dumps(event) + "\n" + rest)
    verdict = judge_run(folder)
    assert not verdict.result and verdict.summary["scored"] is False
    assert "it is a simulation" in [finding.message for _, finding in verdict.findings]


def test_it_is_not_packaged(simulated: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = tmp_path / "system.json"
    assert main(["package", "--from-host", "--system", str(system)]) == 0
    capsys.readouterr()
    values = {key: value if value not in (None, "") else "1" for key, value in json.loads(system.read_text()).items()}
    system.write_text(json.dumps({**values, "status": "Available on-premise", "division": "closed"}))
    code, text = told(capsys, "package", "--system", system, "--out", tmp_path / "out", *[simulated.path] * 3)
    assert code == 2 and not (tmp_path / "out").exists()
    assert f"{simulated.path} cannot be packaged: it is a simulation" in text


def test_beside_a_real_run_it_is_named(simulated: Folder, real: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "compare", real.path, simulated.path)
    assert code == 0
    assert text.startswith("A mock, seed 0: target met after 3 steps, in ")
    assert "B simulation of mock, seed 0: target assumed met after 3 steps, in " in text
    assert "nothing was computed" in text and "A step, median A B difference B/A" in text
    assert f"warning: B is a simulation with times from {MODEL}: nothing in it was computed" in text
    assert "warning: A is a simulation" not in text
    assert main(["compare", str(simulated.path), str(real.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["a"]["modelled"], found["a"]["value"]) == (MODEL, None)
    assert found["b"]["modelled"] is None and found["b"]["value"] == 0.0


def test_a_plan_that_goes_by_its_pace_says_so(simulated: Folder, real: Folder,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    for folder, what in ((simulated, "simulation"), (real, "run")):
        code, text = told(capsys, "plan", "--profile", "mock", "--like", folder.path)
        assert code == 0 and f"from {what} {folder.path.name} of profile mock, 3 steps" in text
