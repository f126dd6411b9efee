"""The plugin that the docs teach is installed as they say, found, and meets the target of the mock profile."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Status
from hatchling.builders.wheel import WheelBuilder
from stevedore.extension import ExtensionManager

TUTORIAL = Path(__file__).parents[1] / "docs" / "writing-a-plugin.md"


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tutorial's project; its wheel is unpacked onto the import path."""
    project, site = tmp_path / "project", tmp_path / "site"
    for name, text in re.findall(r"```\w+\n# (\S+\.(?:py|toml))\n(.*?)```", TUTORIAL.read_text(), re.DOTALL):
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    wheel = next(WheelBuilder(str(project)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})
    yield project
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_grpo"]:
        del sys.modules[name]


def test_the_tutorials_plugin_takes_its_role(acme: Path, virtual: Any) -> None:
    finished = virtual(profile="try-acme", registry=acme / "registry.toml")
    assert finished.outcome.status == Status.TARGET_MET
    assert {event.data["task_id"].partition("-")[0] for event in finished.of("rollout")} == {"acme"}
