"""Runs on Ray equal those on the local fabric: same events for the same seed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Kind, timeless
from grpo_bench.observers import read_run

from .children import Child, last_object

pytestmark = pytest.mark.real("ray")
SMALL = {"grpo.prompts_per_step": 2, "grpo.generations_per_prompt": 4, "grpo.max_steps": 2, "validation.max_tasks": 4,
         "validation.period": 100, "validation.metric": "off", "validation.target": "off"}


def history(folder: Path, fabric: str, profile: str, settings: Mapping[str, object]) -> list[Any]:
    """What a run did; what it was started with names the fabric and is left out."""
    folder.mkdir()
    child = Child(folder, {**settings, "fabric.use": fabric}, profile)
    code, out, err = child.end()
    assert (code, last_object(out).get("status")) == (0, "completed"), err
    assert ((child.folder / "workers" / "ray-cluster.log").exists()) == (fabric == "ray")
    return [item for item in timeless(read_run(child.folder)) if item[0] != Kind.RUN_STARTED]


@pytest.mark.parametrize("profile", ["mock", "laptop"])
def test_a_run_on_ray_does_what_the_run_on_this_machine_does(tmp_path, monkeypatch, profile):
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    local = history(tmp_path / "local", "local", profile, SMALL)
    assert [item for item in local if item[0] == Kind.UPDATE]
    assert history(tmp_path / "ray", "ray", profile, SMALL) == local
