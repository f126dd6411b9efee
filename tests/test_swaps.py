"""Swapping one part of a built-in profile, as a user does it: two lines of a registry.toml in an empty folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import End, Event, Kind
from grpo_bench.observers import read_events

SMALL = {"grpo.prompts_per_step": 2, "grpo.generations_per_prompt": 2, "grpo.max_steps": 1, "validation.max_tasks": 2,
         "validation.k": 2, "validation.period": 1, "validation.at_start": "false", "validation.metric": "off",
         "validation.target": "off"}
SWAPS = [
    ("laptop", "trainer", "mock"), ("laptop", "generator", "mock"), ("laptop", "environment", "mock"),
    ("laptop", "agent", "mock"), ("laptop", "hardware", "mock"), ("laptop", "fabric", "inline"),
    ("laptop", "ruleset", "mock"),
    ("mock", "trainer", "torch"), ("mock", "generator", "torch"), ("mock", "environment", "minirepair"),
    ("mock", "agent", "toolcall"), ("mock", "hardware", "local"), ("mock", "fabric", "local"),
    ("mock", "ruleset", "mock"),
]


@pytest.fixture
def swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """``swapped(profile, role, plugin)`` writes the two lines; returns the options that choose the new profile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(profile: str, role: str, plugin: str) -> list[str]:
        Path("registry.toml").write_text(
            f'schema = 1\n[profiles.mine]\nextends = "{profile}"\n[profiles.mine.{role}]\nuse = "{plugin}"\n')
        sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
        return ["--profile", "mine", *sets]

    return write


@pytest.mark.parametrize(("profile", "role", "plugin"), SWAPS)
def test_a_profile_with_one_part_of_another_runs(swapped, capsys: pytest.CaptureFixture[str], profile: str, role: str,
                                                 plugin: str) -> None:
    code = main(["run", *swapped(profile, role, plugin), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["status"] == "completed"
    (folder,) = Path("runs").iterdir()
    assert json.loads((folder / "profile.json").read_text())[role]["use"] == plugin
    events = list(read_events(folder / "events.jsonl"))
    ends = [event.data["end"] for event in _of(events, Kind.ROLLOUT)]
    assert len(ends) == 8
    assert {End.FAILED, End.TIMEOUT}.isdisjoint(ends)
    assert len(_of(events, Kind.STEP)) == len(_of(events, Kind.VALIDATION)) == 1
    refits = [event.data for event in _of(events, Kind.REFIT)]
    compared = role not in ("trainer", "generator")
    assert [refit["version"] for refit in refits] == [0, 1]
    assert all(refit["bytes"] > 0 and (refit["probe_difference"] is not None) == compared for refit in refits)
    alarms = [event.data["name"] for event in _of(events, Kind.ALARM)]
    assert alarms.count("probe_not_compared") == (0 if compared else 1)


@pytest.mark.parametrize(("profile", "role", "plugin"), [swap for swap in SWAPS if swap[1] in ("trainer", "generator")])
def test_what_a_stand_in_cannot_be_compared_on_is_said_and_refused_where_asked_for(
        swapped, capsys: pytest.CaptureFixture[str], profile: str, role: str, plugin: str) -> None:
    options = swapped(profile, role, plugin)
    assert main(["plan", *options, "--json", "--explain"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["transport"] == "safetensors"
    assert plan["profile"]["grpo"]["masks"]["sequence_error_max"] is None
    assert "'mock'" in plan["explain"]["grpo.masks.sequence_error_max"]
    assert main(["plan", *options]) == 0
    assert "not checked after refits: trainer" in capsys.readouterr().out
    assert main(["plan", *options, "--set", "grpo.masks.sequence_error_max=2.0"]) == 2
    message = capsys.readouterr().err
    for part in ("grpo.masks.sequence_error_max", "trainer", "generator", "'policy'", "'mock'", '"off"'):
        assert part in message
    assert main(["plan", *options, "--set", "grpo.masks.sequence_error_max=off"]) == 0


def _of(events: list[Event], kind: Kind) -> list[Event]:
    return [event for event in events if event.kind == kind]
