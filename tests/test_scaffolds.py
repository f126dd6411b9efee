"""What ``plugins new`` makes takes its part in a whole run of the profile that comes with it, for every role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from grpo_bench.cli import scaffold
from grpo_bench.contract import Kind, Role
from grpo_bench.observers import read_events

ROLES = [role.value for role in Role if role is not Role.FABRIC]
RUN_ALL = """\
import sys
from grpo_bench.cli import main
for role in sys.argv[1:]:
    print(role, main(["run", "--registry", f"made/fresh_{role}/registry.toml", "--profile", f"try-fresh_{role}",
                      "--runs", f"runs/{role}", "--set", "grpo.max_steps=2", "--set", "validation.metric=off",
                      "--set", "validation.target=off", "--set", "validation.period=2", "--set",
                      "validation.max_tasks=2", "--json"]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """New plugins under ``made``, their runs under ``runs``: all in one process that has their wheels on its path."""
    folder = tmp_path_factory.mktemp("scaffolds")
    (folder / "made").mkdir()
    for role in ROLES:
        project = scaffold.make_plugin(role, f"fresh_{role}", folder / "made")
        wheel = next(WheelBuilder(str(project)).build(directory=str(folder / "wheels"), versions=["standard"]))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "XDG_CONFIG_HOME": str(folder / "config"),
                   "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RUN_ALL, *ROLES], cwd=folder, env=environment, text=True,
                          capture_output=True)
    codes = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    assert codes == [f"{role} 0" for role in ROLES], done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("role", ROLES)
def test_a_new_plugin_takes_its_part(folder: Path, role: str) -> None:
    (run,) = (folder / "runs" / role).iterdir()
    profile = json.loads((run / "profile.json").read_text())
    section = profile["observers"][0] if role == "observer" else profile[role]
    assert section["use"] == f"fresh_{role}"
    events = list(read_events(run))
    assert events[-1].data["status"] == "completed"
    assert [event.step for event in events if event.kind == Kind.STEP] == [1, 2]
    ends = {event.data["end"] for event in events if event.kind == Kind.ROLLOUT}
    assert ends and ends <= {"completed", "max_turns", "truncated"}
    assert not [event.data for event in events if event.kind == Kind.ALARM and event.data["name"] == "observer_failed"]


def test_the_observer_leaves_its_table(folder: Path) -> None:
    (run,) = (folder / "runs" / "observer").iterdir()
    head, first, second = (run / "rewards.csv").read_text().splitlines()
    assert head.startswith("step,reward_mean") and first.startswith("1,") and second.startswith("2,")
