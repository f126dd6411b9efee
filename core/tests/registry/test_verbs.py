"""What the listing of verbs says of those that distributions bring, without importing them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo_bench.registry.verbs import installed_verbs

POINTS = "[grpo_bench.verb]\npick = acme_orchard.picking_cli:fill\n"
RAISES = "\nraise SystemExit('imported')\n"


@pytest.fixture
def orchard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with one verb; returns the verb's module."""
    package, metadata = tmp_path / "acme_orchard", tmp_path / "acme_orchard-1.0.dist-info"
    for folder in (package, metadata):
        folder.mkdir()
    (package / "__init__.py").write_text(RAISES)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-orchard\nVersion: 1.0\nSummary: all fruit\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return package / "picking_cli.py"


@pytest.mark.parametrize(("source", "summary"), [
    ('"""``grpo-bench pick``: pick what is ripe\nand ``leave`` the rest. Exit codes: 0."""',
     "pick what is ripe and leave the rest"),
    ('"""The verb ``pick``: what is ripe.\n\nA basket: full."""', "what is ripe"),
    ('"""Picking."""', "all fruit"), ("", "all fruit"), ("def", "all fruit"), (None, "all fruit"),
])
def test_a_verb_is_summed_up_by_its_modules_docstring(orchard: Path, source: str | None, summary: str) -> None:
    if source is not None:
        orchard.write_text(source + (RAISES if source.startswith('"') else ""))
    (found,) = (item for item in installed_verbs() if item.name == "pick")
    assert found.summary == summary
    assert "acme_orchard" not in sys.modules
