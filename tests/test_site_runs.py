"""A run whose values come from a site file: what its folder keeps, and that nothing needs the file afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_bench.registry import make_plan, recorded, resolve

from .conftest import run_mock

REGISTRY = """
[profiles.here]
extends = "mock"
observers = [{ use = "mllog", org = "site:system.submitter", status = "site:system.status" }]
[profiles.here.policy]
checkpoint = "site:artifacts.hf_checkpoint"
"""


def test_a_runs_folder_holds_values_and_no_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_plan(resolve("mock", cwd=tmp_path)).checkpoint.checkpoint
    site, registry = tmp_path / "site.toml", tmp_path / "registry.toml"
    registry.write_text(REGISTRY)
    site.write_text(f"[artifacts]\nhf_checkpoint = '{base}'\n[system]\nsubmitter = 'somebody'\nstatus = 'research'\n")
    monkeypatch.setenv("GRPO_BENCH_SITE", str(site))
    small = ("grpo.max_steps=1", "validation.period=1", "validation.max_tasks=1")
    run_mock(tmp_path, small, profile="here", registry=registry)
    (run,) = (tmp_path / "runs").iterdir()
    text = (run / "profile.json").read_text()
    assert "site:" not in text and "somebody" in text
    assert '"value": "somebody"' in (run / "mllog.txt").read_text()
    monkeypatch.delenv("GRPO_BENCH_SITE")
    site.unlink()
    plan = make_plan(recorded(run / "profile.json", "here"))
    assert (plan.checkpoint.checkpoint, plan.observers[0].config.org) == (base, "somebody")
    assert plan.observers[0].config.status == "research"
