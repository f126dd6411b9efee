"""The verb that tries every limit finds that bubblewrap holds them, and that none holds where nothing isolates."""

from __future__ import annotations

import argparse
import json

import pytest
from grpo_bench_sandbox import backend, check, check_trials

pytestmark = pytest.mark.real("bwrap")
ISOLATION = {"network", "host files", "daemons", "namespaces", "ptrace"}


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    check.fill(parser)
    arguments = parser.parse_args(["check", *words])
    return arguments.verb(arguments), capsys.readouterr().out


def test_bubblewrap_holds_everything(capsys):
    code, said = checked(capsys, "--backend", "bwrap", "--json")
    found = json.loads(said)
    open_to = {"memory", "processes"}
    assert not [trial for trial in found["trials"] if trial["verdict"] != "held" and trial["name"] not in open_to]
    assert code == 0 and found["ok"] and found["backends"]["bwrap"] is None and found["backend"] == "bwrap"
    assert len(found["trials"]) >= 14
    held = backend("bwrap").facts(check_trials.LIMITS)["limits"]
    if held["memory"] == held["processes"] == "cgroup":
        assert {trial["verdict"] for trial in found["trials"]} == {"held"}


def test_what_isolates_nothing_claims_nothing_and_is_seen_through(capsys):
    code, said = checked(capsys, "--backend", "process")
    lines = {line.split("  ")[1]: line for line in said.splitlines() if line.startswith("  ")}
    assert code == 0 and "process    can be used, and isolates nothing" in said
    for name in ISOLATION:
        assert "not available here: " in lines[name] and "held, as it happens" not in lines[name], lines[name]
    assert "connected to the host; connected to an abstract socket" in lines["network"]
    assert "held by rlimit" in lines["file size"] and "held by rlimit" in lines["CPU time"]


def test_a_claim_that_does_not_hold_is_the_exit_code(capsys, monkeypatch):
    class Boasts:
        name, can_join = "bwrap", True
        facts = staticmethod(backend("bwrap").facts)
        open = staticmethod(backend("process").open)

    monkeypatch.setattr(check, "backend", lambda name: Boasts())
    code, said = checked(capsys, "--backend", "bwrap")
    assert code == 1
    for name in ISOLATION:
        assert any(line.startswith(f"  {name}") and "NOT HELD" in line for line in said.splitlines()), said
    assert "of the limits it claims do not hold" in said


def test_nothing_can_be_tried_where_nothing_is_there(capsys, monkeypatch):
    monkeypatch.setattr(check, "available", lambda: {"bwrap": "it is not installed", "process": None})
    code, said = checked(capsys)
    assert code == 1
    assert "bwrap      cannot be used: it is not installed" in said
    assert "No backend that isolates can be used here." in said
