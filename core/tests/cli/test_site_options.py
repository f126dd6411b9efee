"""--site, --division and --replica on the verbs that take a profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_bench.cli import main

RULESET = '''
from typing import Literal
from grpo_bench.contract import Finding, Plugin, Role, Settings

class Config(Settings):
    division: Literal["closed", "open"] = "closed"

class Rules:
    def __init__(self, context):
        pass
    def check(self, profile):
        division = profile["ruleset"]["division"]
        return [Finding("steps", division == "open", f"judged as {division}")]

def create(context):
    return Rules(context)

plugin = Plugin("divided", Role.RULESET, "for tests", Config, __name__ + ":create")
'''
RULED = ("--set", "ruleset.use=divided")


@pytest.fixture
def ruled(bench):
    bench.distribution("test-divided", {"ruleset": {"divided": "plugin"}}, RULESET)
    return bench


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    code = main(["plan", "--profile", "base", "--json", *arguments])
    out = capsys.readouterr()
    assert code in (0, 1), out.err
    return json.loads(out.out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("division", "ok"), [((), False), (("--division", "open"), True),
                                              (("--division", "closed", "--set", "ruleset.division=open"), False)])
def test_the_division_is_that_of_the_rules(ruled, capsys, division: tuple[str, ...], ok: bool) -> None:
    (finding,) = planned(capsys, *RULED, *division)["findings"]
    assert finding["ok"] is ok


def test_a_division_needs_rules_that_have_it(ruled, capsys) -> None:
    said = refused(capsys, "plan", "--profile", "base", "--division", "open")
    assert "--division open: profile 'base' has no ruleset, so no division either" in said
    said = refused(capsys, "run", "--profile", "base", *RULED, "--division", "opne")
    assert "--set ruleset.division: input should be 'closed' or 'open', got \"opne\"" in said
    said = refused(capsys, "plan", "--profile", "base", "--set", "ruleset.use=strict", "--division", "open")
    assert "--set ruleset.division: unknown key" in said


def test_a_replica_counts_from_the_seed(bench, capsys) -> None:
    assert planned(capsys, "--seed", "7", "--replica", "2")["seed"] == 9
    assert planned(capsys, "--set", "seed=5", "--replica", "0")["seed"] == 5
    assert planned(capsys, "--seed", str(2**32 - 2), "--replica", "1")["seed"] == 2**32 - 1


def test_a_replica_needs_a_seed_to_count_from_and_room_above_it(bench, capsys) -> None:
    said = refused(capsys, "plan", "--profile", "base", "--set", "seed=random", "--replica", "1")
    assert "--replica 1: profile 'base' has no seed to count from" in said and "--seed N" in said
    said = refused(capsys, "run", "--profile", "base", "--seed", str(2**32 - 1), "--replica", "1")
    assert "is above 4294967295, the highest seed" in said
    assert not (bench.folder / "runs").exists()


def test_a_site_file_by_argument_or_environment(bench, capsys, monkeypatch) -> None:
    site = bench.write("[artifacts]\nhf_checkpoint = 'policy'\n", "elsewhere/site.toml")
    (bench.folder / "policy").rename(site.parent / "policy")
    setting = ("--set", "policy.checkpoint=site:artifacts.hf_checkpoint")
    todo = "site: artifacts.hf_checkpoint (policy.checkpoint): set it in a site file"
    assert planned(capsys, *setting)["missing"][0].startswith(todo)
    assert todo in refused(capsys, "run", "--profile", "base", *setting)
    plan = planned(capsys, *setting, "--site", str(site), "--explain")
    assert plan["missing"] == [] and plan["explain"]["policy.checkpoint"] == f"site {site}:2 (artifacts.hf_checkpoint)"
    assert plan["profile"]["policy"]["checkpoint"] == str(site.parent / "policy")
    monkeypatch.setenv("GRPO_BENCH_SITE", str(Path("elsewhere") / "site.toml"))
    assert planned(capsys, *setting)["missing"] == []
    assert main(["profiles", "show", "base", "--json", *setting]) == 0
    shown = json.loads(capsys.readouterr().out)["policy.checkpoint"]
    assert shown["value"] == str(site.parent / "policy") and shown["origin"].startswith("site ")
    said = refused(capsys, "plan", "--profile", "base", "--site", "no/site.toml")
    assert "no/site.toml: cannot be read: No such file" in said and "see --site" in said
