"""The verb as tests call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main

from .small import MOCK, kept, varied


class Verb:
    """The verb in an empty folder, with a small model in a file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.out, self._capsys = folder / "here", folder / "here" / "out", capsys
        self.folder.mkdir()
        self.model = kept(varied(), folder)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        try:
            code = main(["simulate", *words])
        except SystemExit as stopped:
            code = int(str(stopped.code))
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def mock(self, *words: str, settings: tuple[str, ...] = MOCK) -> tuple[int, str, str]:
        return self("--profile", "mock", "--model", self.model, "--out", str(self.out),
                    *(part for setting in settings for part in ("--set", setting)), *words)

    def json(self, *words: str, settings: tuple[str, ...] = MOCK) -> dict[str, Any]:
        code, out, err = self.mock("--json", *words, settings=settings)
        assert code == 0 and not err, err
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    found = Verb(tmp_path, capsys)
    monkeypatch.chdir(found.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("GRPO_BENCH_SITE", raising=False)
    return found
