"""Preflight of the profiles that come along, on whatever machine this is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def told(capsys: pytest.CaptureFixture[str], profile: str, *more: str) -> dict[str, Any]:
    code = main(["preflight", "--profile", profile, "--json", *more])
    said = json.loads(capsys.readouterr().out)
    assert code == (0 if said["ok"] else 1)
    return said


@pytest.mark.parametrize("profile", ["laptop", "mock"])
def test_a_profile_that_runs_here_is_ready_here(capsys, profile: str) -> None:
    said = told(capsys, profile)
    assert said["ok"], [finding for finding in said["findings"] if not finding["ok"]]
    assert {finding["by"] for finding in said["findings"]} == {"machine", "software"}


def test_all_that_the_benchmark_lacks_here_is_told(capsys) -> None:
    said = told(capsys, "gb300-256")
    wrong = [finding for finding in said["findings"] if not finding["ok"]]
    text = "\n".join(f"{finding['by']}: {finding['rule']}: {finding['message']}" for finding in wrong)
    for key in ("hf_checkpoint", "megatron_cache", "train_data", "validation_data", "sif_dir", "system_template",
                "user_template"):
        assert f"plan: missing: site: artifacts.{key} (" in text
    for environment in ("megatron", "vllm-cuda", "openhands"):
        assert f"environment '{environment}' is not built" in text
    assert "machine: disk space: 13 checkpoints of " in text
    assert "machine: clocks: those of 64 nodes" in text
    assert all(finding["message"] and (finding["fix"] or finding["unknown"]) for finding in wrong)
    assert not any("site:artifacts" in finding["message"] for finding in said["findings"])


def test_stand_ins_for_the_benchmark_are_no_submission(capsys) -> None:
    said = {finding["rule"]: finding for finding in told(capsys, "gb300-256-mock")["findings"]}
    assert said["source overlay"]["ok"]
    assert not said["model table"]["ok"]
    assert not said["rules"]["ok"]


def test_files_of_tasks_are_looked_at_for_real(capsys, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    site = tmp_path / "site.toml"
    site.write_text('[artifacts]\ntrain_data = "rows.jsonl"\nsystem_template = "rows.jsonl"\n')
    said = {finding["rule"]: finding for finding in told(capsys, "gb300-256", "--site", str(site))["findings"]}
    rows, template = said["train tasks"], said["system_template"]
    assert (rows["message"], rows["by"]) == (
        f"{tmp_path}/rows.jsonl has 3 bytes, and should have 446,364,412", "environment r2egym")
    assert rows["origin"] == f"site {site}:2 (artifacts.train_data)"
    assert template["message"].startswith(f"{tmp_path}/rows.jsonl is another file: its SHA-256 is ")
