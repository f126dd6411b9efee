"""A whole preflight: who is asked, in which order, and how it is told."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main

LOOKING = '''
from grpo_bench.contract import (
    Capabilities, Finding, Missing, Placement, PlanError, Plugin, Role, Settings, Task,
)

class Config(Settings):
    behave: str = "well"
    file: str = ""

class World:
    def __init__(self, context):
        pass
    def tasks(self, split):
        return [Task(f"{split}-{number}", split, {"statement": "Mend it."}, {}, "0") for number in range(6)]

def describe(config, site):
    if config.behave == "lacking":
        raise Missing("two things", items=["file: no file /x", "glue: there is none (buy some)"], facts={"known": 1})
    return {"known": 2}

def preflight(config, context):
    assert context.settings["environment"]["use"] == "looking" and context.site.policy.vocab_size == 77
    yield Finding("known", context.facts["environment"]["known"] == 2, "as it should be", "environment.behave")
    if config.behave == "lacking":
        yield Finding("file", False, "no file /x", "environment.file", "it is read", "make it")
    if config.behave == "failing":
        raise PlanError("cannot look", hint="open the eyes")
    if config.behave == "hashing":
        from pathlib import Path
        yield Finding("hash", True, context.digests([Path(config.file)])[Path(config.file)])

plugin = Plugin("looking", Role.ENVIRONMENT, "for tests", Config, __name__ + ":World", describe=__name__ + ":describe",
                preflight=__name__ + ":preflight",
                capabilities=Capabilities(splits=frozenset({"train", "validation"}), prompt=frozenset({"path"}),
                                          sandbox=frozenset({"exec"})))
'''


@pytest.fixture(autouse=True)
def looking(bench, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.folder / "cache"))
    bench.distribution("test-looking", {"environment": {"looking": "plugin"}}, LOOKING)
    return bench


def run(capsys: pytest.CaptureFixture[str], behave: str = "well", *more: str) -> tuple[int, str]:
    code = main(["preflight", "--profile", "base", "--set", "environment.use=looking",
                 "--set", f"environment.behave={behave}", *more])
    return code, capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], behave: str = "well", *more: str) -> list[dict[str, Any]]:
    code, out = run(capsys, behave, "--json", *more)
    said = json.loads(out)
    assert said["profile"] == "base"
    assert code == (0 if said["ok"] else 1)
    assert said["ok"] == all(finding["ok"] for finding in said["findings"])
    return said["findings"]


def test_a_machine_that_is_ready(capsys):
    code, out = run(capsys)
    assert code == 0
    speakers = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert speakers[:-1] == ["machine", "software", "environment looking"]
    assert "  ok   known: as it should be" in out
    assert "\n7 ok, 0 unknown, 0 failed" in out
    assert not Path("runs").exists()


def test_what_the_plan_misses_is_told_once_and_by_who_misses_it(capsys):
    mine = [finding for finding in told(capsys, "lacking") if finding["by"] == "environment looking"]
    assert [(finding["rule"], finding["ok"], finding["message"], finding["fix"]) for finding in mine] == [
        ("missing", False, "glue: there is none", "buy some"),
        ("known", False, "as it should be", ""),
        ("file", False, "no file /x", "make it"),
    ]


def test_where_a_value_was_set_is_told(capsys):
    code, out = run(capsys, "lacking")
    assert code == 1
    assert "set: environment.file, default" in out
    assert "set: environment.behave, --set" in out


def test_reason_and_remedy_of_what_fails_are_told(capsys):
    _, out = run(capsys, "lacking")
    text = " ".join(out.split())
    assert "FAIL file: no file /x why: it is read fix: make it" in text


def test_an_error_of_a_plugin_is_a_finding_that_names_it(capsys):
    last = told(capsys, "failing")[-1]
    assert (last["by"], last["ok"], last["message"], last["fix"]) == (
        "environment looking", False, "cannot be asked: cannot look", "open the eyes")


def test_a_disk_that_does_not_answer_is_a_finding(capsys, monkeypatch):
    def fail(folder):
        raise OSError(116, "Stale file handle", str(folder))

    monkeypatch.setattr(os, "statvfs", fail)
    said = [finding["message"] for finding in told(capsys) if finding["by"] == "machine"]
    assert said[-1] == f"cannot be asked: {Path.cwd()}: Stale file handle"


def test_rules_that_do_not_hold_are_named(capsys):
    broken = told(capsys, "well", "--set", "ruleset.use=strict", "--set", "grpo.max_steps=4")[0]
    assert (broken["by"], broken["rule"], broken["message"]) == ("plan", "rules", "1 of 1 are broken: steps")
    assert told(capsys, "well", "--set", "ruleset.use=strict")[0]["message"] == "all 1 hold"


def test_a_profile_that_is_wrong_is_wrong_input(capsys):
    assert main(["preflight", "--profile", "none"]) == 2
    assert "none: no such profile" in capsys.readouterr().err


def test_a_policy_that_is_not_here_fails_and_says_what_it_leaves_unknown(capsys, looking):
    (looking.folder / "policy").rename(looking.folder / "away")
    found = {(item["by"], item["rule"]): item for item in told(capsys)}
    assert not found["plan", "missing"]["ok"]
    assert found["machine", "disk space"]["unknown"]


def test_a_manifest_beside_the_policy_counts(capsys, looking):
    manifest = looking.folder / "policy" / "mlcommons.md5"
    manifest.write_text(f"{hashlib.md5(b'weights').hexdigest()}  model.safetensors\n")
    assert [item["ok"] for item in told(capsys) if item["by"] == "artifacts"] == [True]
    manifest.write_text(f"{hashlib.md5(b'others').hexdigest()}  model.safetensors\n")
    assert [item["ok"] for item in told(capsys) if item["by"] == "artifacts"] == [False]


def test_a_manifest_beside_what_the_site_file_names_counts(capsys, looking):
    data = looking.write("rows", "data/train.jsonl")
    looking.write(f"{hashlib.md5(b'other').hexdigest()}  train.jsonl\n", "data/train.jsonl.md5")
    site = looking.write('[artifacts]\ntrain_data = "data/train.jsonl"\n', "site.toml")
    found = next(item for item in told(capsys, "well", "--site", str(site)) if item["by"] == "artifacts")
    assert str(data) in found["message"]


def test_hashes_are_kept_unless_told_otherwise(capsys, looking):
    file = looking.write("content", "file")
    os.utime(file, (1e9, 1e9))
    sets = ["hashing", "--set", f"environment.file={file}"]
    first = told(capsys, *sets)[-1]["message"]
    assert first == hashlib.sha256(b"content").hexdigest()
    file.write_text("another")
    os.utime(file, (1e9, 1e9))
    assert told(capsys, *sets)[-1]["message"] == first
    assert told(capsys, *sets, "--no-cache")[-1]["message"] == hashlib.sha256(b"another").hexdigest()


def test_an_interrupt_ends_it(looking):
    file = looking.folder / "endless"
    file.touch()
    os.truncate(file, 2**41)  # no disk holds it, and no machine has read it soon
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_bench", "preflight", "--profile", "base", "--set", "environment.use=looking",
         "--set", "environment.behave=hashing", "--set", f"environment.file={file}"],
        env={**os.environ, "PYTHONPATH": str(looking.site)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("hashing: 0 of 1 files" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.splitlines()[-1]) == (130, "", "grpo-bench: interrupted")
