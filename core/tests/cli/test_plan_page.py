"""The page of a plan: what a person reads before a run, and what stands behind each line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from grpo_bench.cli import main
from grpo_bench.cli.plan_page import page
from grpo_bench.cli.plan_time import times
from grpo_bench.contract import Role
from grpo_bench.observers.journal import encode
from grpo_bench.registry import make_plan, resolve
from grpo_bench.registry.estimate import Duration, Estimate
from grpo_bench.testing import history

PARTS = """
from grpo_bench.contract import Capabilities, Finding, LaunchForm, Missing, Need, Placement, Plugin, Role, Settings

class Config(Settings):
    sha256: str | None = "cafe"
    away: bool = False

class Divided(Config):
    division: str | None = None

class Cluster:
    def __init__(self, context):
        self.away = context.config.away
    def describe(self):
        facts = {"gpus": 1, "gpu_memory_bytes": 2**31, "domains": {"x": ["a", "b"], "y": ["c"]}}
        if self.away:
            raise Missing("this host is none of them", facts=facts)
        return facts
    def form(self):
        return LaunchForm()

    def place(self, needs):
        hosts = {"trainer": ("a", "c"), "generator": ("b",)}
        return {role: Placement(workers=2 if role == "trainer" else 1, nodes=hosts.get(role, ()),
                                gpus=role == "trainer") for role in needs}

class Rules:
    def __init__(self, context):
        pass
    def should_validate(self, step, max_steps):
        return step % 4 == 0
    def check(self, profile):
        steps = profile["grpo"]["max_steps"]
        return [Finding("steps", True, str(steps), key="grpo.max_steps", why="ten steps are enough"),
                Finding("tasks", False, "not known here", key="environment", why="somebody counts", unknown=True,
                        fix="bring them"),
                Finding("rate", False, "too high", key="sampling.temperature", why="it is dear", fix="lower it"),
                Finding("free", True, "fine", key="no.such.key")]

def memory(config, site):
    return {"memory_per_rank": {"weights": "3 MiB", "at most": "4 MiB"}, "memory_assumed": ["little"],
            "file": {"sha256": "f00d"}}

def needs(config):
    return Need(2, 1, {"data": ((0, 1),)})

hardware = Plugin("racks", Role.HARDWARE, "for tests", Config, __name__ + ":Cluster")
ruleset = Plugin("stern", Role.RULESET, "for tests", Divided, __name__ + ":Rules")
fabric = Plugin("far", Role.FABRIC, "for tests", Config, "none:none", capabilities=Capabilities(hosts=True))
trainer = Plugin("weighed", Role.TRAINER, "for tests", Config, "none:none", needs=__name__ + ":needs",
                 describe=__name__ + ":memory", capabilities=Capabilities(sends=frozenset({"shared"})))
"""
ALL = ("hardware.use=racks", "ruleset.use=stern", "fabric.use=far", "trainer.use=weighed")


@pytest.fixture
def racks(bench):
    bench.distribution("test-racks", {"hardware": {"racks": "hardware"}, "ruleset": {"stern": "ruleset"},
                                      "fabric": {"far": "fabric"}, "trainer": {"weighed": "trainer"}}, PARTS)
    return bench


def lines_of(*overrides: str, room: int = 100) -> list[str]:
    return list(page(make_plan(resolve("base", overrides=(*ALL, *overrides))), room))


def section(lines: list[str], title: str) -> list[str]:
    start = lines.index(f"{title}:") + 1
    return [line.strip() for line in lines[start:lines.index("", start)]]


def test_rules_that_do_not_hold_come_first_then_those_that_nobody_knows(racks) -> None:
    lines = lines_of()
    line = racks.line("max_steps")
    start = lines.index("rules: 1 do not hold, 1 cannot be judged here, 2 hold")
    assert lines[start + 1:lines.index("scored: no")] == [
        "FAIL rate: too high  [default]", "     it is dear", "     to do: lower it",
        f"?    tasks: not known here  [local registry.toml:{racks.line('[profiles.base.environment]') + 1}]",
        "     somebody counts", "     to do: bring them",
        f"ok   steps: 10  [local registry.toml:{line}]", "     ten steps are enough", "ok   free: fine", ""]


def test_rules_say_for_which_division_they_were_judged(racks) -> None:
    assert "rules of the open division: 1 do not hold, 1 cannot be judged here, 2 hold" in lines_of(
        "ruleset.division=open")


def test_the_placement_is_a_picture_a_table_and_how_far_groups_reach(racks) -> None:
    lines = lines_of()
    start = lines.index("placement:")
    assert lines[start + 1:lines.index("memory:") - 1] == [
        "  x  T0  G0r",
        "  y  T1",
        "     T0 to T1: trainer's workers",
        "     G0: generator's worker",
        "     r: rollout worker",
        "",
        "  role       ranks  hosts  domain  GPUs",
        "  trainer    0      a      x       0",
        "  trainer    1      c      y       0",
        "  generator  0      b      x",
        "  rollout    0      b      x",
        "",
        "  trainer: 1 data group of 2, each on 2 hosts, in 2 domains; 1 of them leave a domain",
        "    across domains: trainer data group 0 between x and y",
        "  generator: 1 worker on 1 host",
        "  rollout: 1 worker on 1 host"]


def test_memory_stands_beside_what_a_gpu_has(racks) -> None:
    assert section(lines_of(), "memory") == [
        "trainer, each rank of 2.0 GiB: weights 3 MiB; at most 4 MiB", "trainer, assumed: little"]


def test_identities_are_hashes_of_what_is_here_and_of_what_is_wanted(racks) -> None:
    said = section(lines_of(), "identities")
    assert any(line.startswith("policy/config.json: ") and "sha256" in line for line in said)
    assert any(line.startswith("tasks of split train: the first 6 of 6") for line in said)
    assert "here: trainer.file.sha256 f00d" in said
    assert "wanted: trainer.sha256 cafe  [default]" in said
    assert not [line for line in said if "f00d" in line and "wanted" in line]


def test_a_plan_without_hosts_and_rules_leaves_these_out(bench) -> None:
    lines = list(page(make_plan(resolve("base")), 100))
    assert not {"placement:", "memory:", "time:"} & set(lines)
    assert not [line for line in lines if line.startswith("rules:")]


@pytest.mark.parametrize(("sets", "counted"), [
    (["validation.period=2"], "after steps 4, 6, 8, 10: 4 times at most, at 32 to 80 samples"),
    (["validation.period=4", "validation.at_end=true"],
     "after steps 4, 8, 10: 3 times at most, at 32 to 80 samples"),
])
def test_deferred_validations_are_counted(bench, sets: list[str], counted: str) -> None:
    sets = ["validation.deferred=true", "validation.start_at=4", "generator.use=steady", *sets]
    lines = list(page(make_plan(resolve("base", overrides=sets)), 1000))
    said = next(line for line in lines if line.startswith("validation"))
    assert f"{counted}; deferred: weights are saved" in said
    assert any(line.startswith("step") and line.endswith("at most 10 steps, 80 samples") for line in lines)


def test_a_seed_that_was_drawn_is_not_the_next_runs(bench) -> None:
    drawn, given = (next(line for line in page(make_plan(resolve("base", overrides=["seed=random"]), seed), 100)
                         if line.startswith("seed")) for seed in (None, 7))
    assert drawn.endswith(", drawn for this plan; a run draws its own")
    assert given.split() == ["seed", "7"]


def test_json_has_the_origin_of_what_rules_are_about(racks, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"--set={override}" for override in ALL]
    assert main(["plan", "--profile", "base", "--json", *sets]) == 0
    plan = json.loads(capsys.readouterr().out)
    origins = {finding["rule"]: finding["origin"] for finding in plan["findings"]}
    assert origins["steps"].endswith(f"registry.toml:{racks.line('max_steps')}") and origins["rate"] == "default"
    assert origins["free"] is None
    assert plan["findings"][0]["why"] == "ten steps are enough"
    assert plan["parts"]["trainer"]["facts"]["memory_per_rank"]["weights"] == "3 MiB"


def test_a_plan_of_another_machine_shows_it_and_says_what_is_missing(racks, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"--set={override}" for override in (*ALL, "hardware.away=true")]
    assert main(["plan", "--profile", "base", *sets]) == 1
    said = capsys.readouterr().out
    assert "  x  T0  G0r\n" in said
    assert said.endswith("missing on this machine:\n  hardware 'racks': this host is none of them\n")


def test_what_nobody_can_judge_here_does_not_count_where_something_is_missing(racks) -> None:
    plan = make_plan(resolve("base", overrides=ALL))
    assert "rule tasks: not known here" in plan.unscored
    assert plan.parts[Role.RULESET].name == "stern"


def test_ranks_are_listed_one_by_one(racks, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"--set={override}" for override in ALL]
    assert main(["plan", "--profile", "base", "--ranks", *sets]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "role       rank  host  domain  GPUs",
        "trainer    0     a     x       0",
        "trainer    1     c     y       0",
        "generator  0     b     x",
        "rollout    0     b     x",
        "",
        "role     group  number  ranks  domains",
        "trainer  data   0       0-1    x, y"]


def test_the_placement_is_drawn_into_a_file(racks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"--set={override}" for override in ALL]
    file = tmp_path / "placement.svg"
    assert main(["plan", "--profile", "base", "--svg", str(file), *sets]) == 0
    drawn = ElementTree.parse(file).getroot()
    assert drawn.findtext("{http://www.w3.org/2000/svg}title") == "Who sits where: 3 hosts in 2 domains"
    assert "placement:" in capsys.readouterr().out
    assert main(["plan", "--profile", "base", "--svg", str(tmp_path / "no" / "such.svg"), *sets]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
    assert main(["plan", "--profile", "base", "--svg", str(file)]) == 2
    assert "names no hosts, so there is nothing to draw" in capsys.readouterr().err


def test_the_time_that_a_run_may_take_stands_beside_what_it_is_given() -> None:
    found = Estimate(Duration(400, 450), Duration(13_000, 15_400), Duration(412, 4122), Duration(1380, 20_300), 14_400,
                     "a place with a name", {"training": "to step 30", "evaluation": "1 to 13 validations"})
    assert list(times(found, 70)) == [
        "start               400 to 450 s",
        "training            217 to 257 min  to step 30",
        "checkpoints         7 to 69 min",
        "evaluation          23 to 338 min   1 to 13 validations",
        "in all              253 to 671 min  does not fit the 240 minutes",
        "without evaluation  230 to 333 min  may not fit the 240 minutes",
        "from a place with a name"]
    brief = Estimate(Duration(1, 1), Duration(10, 20.5), Duration(0, 0), Duration(0, 0), 0, "here", {})
    assert list(times(brief, 60)) == ["start     1.0 s", "training  10 to 20 s", "in all    11 to 22 s", "from here"]
    assert list(times(None, 60)) == []


def test_an_earlier_run_gives_the_pace(bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(map(encode, history.whole_run())))
    assert main(["plan", "--profile", "base", "--like", str(folder)]) == 0
    assert "from run earlier of profile conformance, 2 steps" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "--profile", "base", "--like", str(tmp_path / "none")]) == 2
    assert "give the folder of a run" in capsys.readouterr().err
