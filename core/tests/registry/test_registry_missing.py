"""What a plan does where the machine lacks something: all of it is gathered, `plan` shows it, `run` refuses with it."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import Missing, PlanError, Role
from grpo_bench.registry import make_plan, resolve, survey

NEEDY = '''
from pathlib import Path
from grpo_bench.contract import (
    Capabilities, Finding, LaunchForm, Missing, Placement, PlanError, Plugin, Role, Settings, Task, WorkerEnv)

class Config(Settings):
    file: str = "tasks"
    wrong: bool = False
    told: bool = False

class World:
    def __init__(self, context):
        self.file = context.config.file
    def tasks(self, split):
        if not Path(self.file).is_file():
            raise Missing(f"no file {self.file}", hint="fetch it")
        return [Task(split, split, {"statement": "Mend it."}, {}, "0")]

class Small:
    def __init__(self, context):
        self.told = context.config.told
    def describe(self):
        if self.told:
            raise Missing("another house", hint="go there", facts={"beds": 10})
        return {"beds": 2}
    def form(self):
        return LaunchForm()

    def place(self, needs):
        if not Path("beds").exists():
            raise Missing("10 beds are wanted and 2 are here")
        return {role: Placement(workers=1) for role in needs}

def sights(config, site):
    if config.wrong:
        raise PlanError("wrong")
    raise Missing("a lot", items=("no map", "no compass"), hint="buy them", facts={"roads": 3} if config.told else {})

class Doubtful:
    def __init__(self, context):
        pass
    def check(self, profile):
        return [Finding("steps", profile["grpo"]["max_steps"] >= 1000, "at least 1000 steps"),
                Finding("fit", False, f"without {', '.join(profile['missing'])}", unknown=True)]

def rooms(config, site):
    return {"policy": len(site.policy.checkpoint.read_bytes()), "machine": dict(site.machine)}

def take():
    return {}

OFFERED = {"splits": frozenset({"train", "validation"}), "prompt": frozenset({"path"}), "sandbox": frozenset({"exec"})}
environment = Plugin("needy", Role.ENVIRONMENT, "for tests", Config, __name__ + ":World",
                     describe=__name__ + ":sights", capabilities=Capabilities(**OFFERED))
ruleset = Plugin("doubtful", Role.RULESET, "for tests", Config, __name__ + ":Doubtful")
hardware = Plugin("small", Role.HARDWARE, "for tests", Config, __name__ + ":Small")
trainer = Plugin("homeless", Role.TRAINER, "for tests", Config, "none:none", describe=__name__ + ":rooms",
                 narrow="none:none", capabilities=Capabilities(sends=frozenset({"shared"})),
                 env=WorkerEnv("hut", __name__ + "/env.toml", __name__ + ":take"))
'''
LOCK = 'schema = 1\npython = ">=3.0"\n[[steps]]\npackages = ["nothing==1.0"]\n'
ALL = ("environment.use=needy", "hardware.use=small", "trainer.use=homeless", "policy.checkpoint=elsewhere")
TASKS = "environment 'needy': no file tasks (fetch it)"
SIGHTS = ("environment 'needy': no map (buy them)", "environment 'needy': no compass (buy them)")


@pytest.fixture
def needy(bench, monkeypatch: pytest.MonkeyPatch):
    """A bench with parts that lack something each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.folder / "cache"))
    points = {role: {name: role} for role, name in (("environment", "needy"), ("hardware", "small"),
                                                    ("trainer", "homeless"), ("ruleset", "doubtful"))}
    module = bench.distribution("test-needy", points, NEEDY)
    Path(bench.site, module, "env.toml").write_text(LOCK)
    return bench


def arguments(*overrides: str) -> list[str]:
    return ["--profile", "base", *(f"--set={override}" for override in overrides)]


def test_all_that_is_missing_is_gathered_in_the_order_of_the_plan(needy) -> None:
    missing = survey(resolve("base", overrides=ALL)).missing
    hut, folder, *rest = missing
    assert hut.startswith("--set trainer.use: environment 'hut' is not built; run `grpo-bench env build hut`")
    assert folder.startswith(f"--set policy.checkpoint: no folder {needy.folder / 'elsewhere'} (")
    assert rest == [TASKS, "hardware 'small': 10 beds are wanted and 2 are here", *SIGHTS,
                    "not judged: trainer 'homeless', without the policy's checkpoint and its environment"]


def test_whoever_lacks_what_no_site_file_gives_does_not_say_so_again(needy) -> None:
    overrides = ("environment.use=needy", "environment.file=site:artifacts.train_data")
    todo = "set it in a site file and name that with --site or $GRPO_BENCH_SITE"
    assert survey(resolve("base", overrides=overrides)).missing == (
        f"site: artifacts.train_data (environment.file): {todo}", *SIGHTS)


def test_what_could_be_made_of_the_plan_is_there(needy) -> None:
    plan = survey(resolve("base", overrides=ALL))
    assert (plan.checkpoint.vocab_size, plan.tasks, plan.placements) == (0, {}, {})
    assert plan.hardware == {"beds": 2}
    assert plan.parts[Role.TRAINER].env == "hut" and plan.parts[Role.TRAINER].interpreter is None
    assert json.loads(json.dumps(plan.to_json()))["missing"] == list(plan.missing)


def test_a_plan_to_run_is_refused_with_all_of_it(needy) -> None:
    with pytest.raises(Missing) as caught:
        make_plan(resolve("base", overrides=ALL))
    items = survey(resolve("base", overrides=ALL)).missing
    assert caught.value.items == items
    assert all(f"\n    {item}" in caught.value.message for item in items)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, Missing) and again.items == items


def test_one_thing_that_is_missing_is_the_message(needy) -> None:
    Path("beds").touch()
    with pytest.raises(PlanError, match=r"^--set policy\.checkpoint: no folder"):
        make_plan(resolve("base", overrides=("policy.checkpoint=elsewhere",)))


def test_the_page_ends_with_what_is_missing(needy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments(*ALL)]) == 1
    said = capsys.readouterr().out
    page, _, listed = (" ".join(text.split()) for text in said.partition("\nmissing on this machine:\n"))
    for words in ("hardware small, test-needy 1.0", "environment hut: not built", "elsewhere, not here, at most 128",
                  "machine beds 2", "validation all tasks x "):
        assert words in page
    for line in (TASKS, *SIGHTS, "not judged: trainer 'homeless'"):
        assert line in listed


def test_the_page_as_json_lists_what_is_missing(needy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", *arguments("environment.use=needy")]) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == [TASKS, *SIGHTS]
    assert main(["plan", "--json", *arguments()]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []


def test_a_run_is_refused_and_leaves_nothing(needy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments(*ALL)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("grpo-bench: this machine lacks what profile 'base' needs:\n")
    assert "no compass" in said.err and "10 beds" in said.err
    assert not Path("runs").exists()


def test_errors_that_are_no_lack_end_the_plan_at_once(needy, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tasks").touch()
    assert main(["plan", *arguments("hardware.use=small", "environment.use=needy", "environment.wrong=true")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == "grpo-bench: wrong [plugin needy, role environment]\n"


def test_an_error_that_may_come_of_a_missing_policy_is_not_judged(needy) -> None:
    Path("tasks").touch()
    overrides = ("environment.use=needy", "environment.wrong=true", "policy.checkpoint=elsewhere")
    missing = survey(resolve("base", overrides=overrides)).missing
    assert missing[1:] == ("not judged: environment 'needy', without what is missing",)


def test_a_ruleset_is_told_what_is_missing_and_judges_all_the_same(needy) -> None:
    plan = survey(resolve("base", overrides=("ruleset.use=doubtful", "hardware.use=small", "environment.use=needy")))
    steps, fit = plan.findings
    assert (steps.ok, steps.unknown, fit.unknown) == (False, False, True)
    assert fit.message == f"without {', '.join(plan.missing)}"
    assert "rule steps: at least 1000 steps" in plan.unscored
    assert not [reason for reason in plan.unscored if "rule fit" in reason]


def test_what_a_part_knows_all_the_same_is_a_fact(needy) -> None:
    Path("tasks").touch()
    plan = survey(resolve("base", overrides=("environment.use=needy", "environment.told=true", "hardware.use=small",
                                             "hardware.told=true")))
    assert plan.parts[Role.ENVIRONMENT].facts == {"roads": 3}
    assert plan.hardware == {"beds": 10}
    assert "hardware 'small': another house (go there)" in plan.missing


def test_a_run_cannot_be_resumed_where_its_policy_is_gone(needy, capsys: pytest.CaptureFixture[str]) -> None:
    from grpo_bench.engine.resume import prepare
    plan = make_plan(resolve("base"))
    run = needy.folder / "run"
    run.mkdir()
    (run / "profile.json").write_text(json.dumps(plan.resolved))
    (run / "provenance.json").write_text(json.dumps({"profile": "base"}))
    shutil.rmtree(needy.folder / "policy")
    with pytest.raises(Missing, match="no folder"):
        prepare(run)
    assert main(["resume", str(run)]) == 2
    assert "policy.checkpoint: no folder" in capsys.readouterr().err
    assert sorted(path.name for path in run.iterdir()) == ["profile.json", "provenance.json"]
