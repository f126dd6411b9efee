"""The plan: what it holds, and what is refused while it is made."""

from __future__ import annotations

import json

import pytest

from grpo_bench.contract import Finding, InputError, PlanError, PluginError, PolicyFacts, RegistryError, Role
from grpo_bench.registry import Plan, load_plugin, make_plan, resolve


def plan_with(*overrides: str, seed: int | None = None) -> Plan:
    return make_plan(resolve("base", overrides=overrides), seed)


def workers(plan: Plan) -> dict[str, int]:
    return {name: place.workers for name, place in plan.placements.items()}


def test_a_plan_holds_all_that_a_run_needs(bench) -> None:
    plan = plan_with(seed=5)
    assert plan.seed == 5
    assert plan.checkpoint == PolicyFacts(bench.folder / "policy", 128, 77)
    assert plan.transport == "shared"
    assert plan.parts[Role.TRAINER].config.learning_rate == 0.5
    assert plan.parts[Role.TRAINER].distribution == "test-parts"
    assert plan.parts[Role.ENVIRONMENT].facts == {"isolation": "none"}
    assert Role.RULESET not in plan.parts
    assert workers(plan) == {"trainer": 2, "generator": 2, "rollout": 2}
    assert plan.hardware == {"cores": 3}
    assert plan.resolved["trainer"] == {"use": "steady", "learning_rate": 0.5, "warmup": 0, "workers": 0, "names": [],
                                        "bound": 1.0, "mode": None}
    assert plan.resolved["seed"] == 5
    assert json.loads(json.dumps(plan.to_json()))["parts"]["agent"]["name"] == "steady"


def test_every_value_is_explained_defaults_of_plugins_included(bench) -> None:
    explained = {item.key: item for item in plan_with(seed=5).explained}
    assert explained["trainer.warmup"].origin.layer == "default"
    assert explained["trainer.learning_rate"].origin.line == bench.line("learning_rate")
    assert explained["seed"].origin.layer == "--seed"
    assert explained["limits.queue_s"].value == 600.0


ASKED = """
from grpo_bench.contract import Capabilities, Finding, LaunchForm, Placement, Plugin, Role, Settings, Task

class Config(Settings):
    pass

class Asked:
    def __init__(self, context):
        self.found = f"{sorted(context.shared)} {context.fabric} {context.clock}"
        self.shared = context.shared
    def describe(self):
        return {"context": self.found}
    def form(self):
        return LaunchForm()

    def place(self, needs):
        return {role: Placement() for role in needs}
    def check(self, profile):
        return [Finding("context", True, f"{self.found} {self.shared['grpo'].max_steps}")]
    def tasks(self, split):
        about = f"{self.found} {self.shared['limits'].queue_s}"
        return [Task(split, split, {"statement": about}, {}, "0")]

def of(role, **offered):
    return Plugin("asked", role, "asked", Config, f"{__name__}:Asked", capabilities=Capabilities(**offered))

hardware, ruleset = of(Role.HARDWARE), of(Role.RULESET)
environment = of(Role.ENVIRONMENT, splits=frozenset({"train", "validation"}), prompt=frozenset({"path"}),
                 sandbox=frozenset({"exec"}))
"""


def test_who_only_answers_questions_gets_its_sections_and_nothing_that_runs(bench) -> None:
    bench.distribution("test-asked", {role: {"asked": role} for role in ("hardware", "ruleset", "environment")}, ASKED)
    plan = plan_with("hardware.use=asked", "ruleset.use=asked", "environment.use=asked")
    assert plan.hardware == {"context": "[] None None"}
    assert plan.findings == (Finding("context", True, "['grpo'] None None 10"),)
    assert plan.tasks["train"][0].prompt["statement"] == "['limits'] None None 600.0"


def test_workers_asked_for_reach_the_hardware(bench) -> None:
    plan = plan_with("trainer.workers=3", "rollout.workers=5")
    assert workers(plan) == {"trainer": 3, "generator": 2, "rollout": 5}


@pytest.mark.parametrize(("overrides", "message"), [
    (["generator.use=deaf"], r"trainer 'steady' sends safetensors, shared; generator 'deaf' receives pigeon"),
    (["refit.transport=other"], "refit.transport: 'other' is not known to both sides: trainer 'steady' sends"),
    (["validation.sampling.min_p=0.1"],
     "validation.sampling.min_p: generator 'steady' does not honour min_p 0.1; it honours temperature, top_p"),
    (["sampling.top_p=0.9"], "sampling.top_p: training samples from the whole distribution"),
    (["schedule.mode=async", "schedule.max_age=1", "schedule.in_flight=keep"],
     "cannot 'keep' running rollouts at a refit; it can drain"),
    (["validation.split=validatoin"],
     "validation.split: environment 'steady' has no split 'validatoin'; did you mean 'validation'?"),
    (["agent.use=picky"],
     "agent 'picky' needs sandbox abilities spawn, which environment 'steady' does not offer; it offers exec"),
    (["agent.use=program"],
     "agent 'program' is a program that runs inside the sandbox, but environment 'steady' cannot spawn one"),
    (["deterministic=true", "schedule.mode=async", "schedule.max_age=1"],
     "--set schedule.mode: with schedule.mode = 'async', timing decides"),
    (["deterministic=true"], "--set deterministic: generator 'steady' does not promise"),
    (["sampling.max_tokens=129"], "sampling.max_tokens.* 129 of one reply are more than policy.max_context = 128"),
    (["validation.metric=accuracy", "validation.target=0.5", "validation.start_at=11"], "no validation takes place"),
    (["validation.metric=accuracy", "validation.target=0.5", "validation.period=11"], "no validation takes place"),
    (["policy.max_context=257"], "--set policy.max_context: 257 tokens are more than the 256"),
    (["policy.checkpoint=nowhere"], "--set policy.checkpoint: no folder .*nowhere"),
    (["policy.checkpoint=site"], "site lacks config.json, tokenizer.json, "),
    (["policy.checkpoint=package:no_such_module/base"], "no package 'no_such_module' is installed"),
    (["policy.checkpoint=package:/../x"], "no package '' is installed"),
    (["trainer.use=stead"],
     r"--set trainer.use: no trainer plugin named 'stead' is installed; did you mean 'steady'\?"),
    (["observers=[{use='nobody'}]"], r"--set observers\[0\].use: no observer plugin named 'nobody'"),
])
def test_parts_that_do_not_fit(bench, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_with(*overrides)


def test_parts_that_compute_the_same_are_compared(bench) -> None:
    plan = plan_with()
    assert plan.incomparable == ""
    assert plan.profile.grpo.masks.sequence_error_max == 2.0


def test_beside_a_stand_in_what_compares_by_default_is_off_and_says_why(bench) -> None:
    plan = plan_with("generator.use=canned")
    assert "trainer 'steady'" in plan.incomparable and "generator 'canned' of 'nothing'" in plan.incomparable
    assert plan.profile.grpo.masks.sequence_error_max is None
    assert plan.resolved["grpo"]["masks"]["sequence_error_max"] is None
    origin = {item.key: item.origin for item in plan.explained}["grpo.masks.sequence_error_max"]
    assert origin.layer == "default" and plan.incomparable in origin.note
    assert plan_with("generator.use=canned", "grpo.masks.sequence_error_max=off").incomparable


@pytest.mark.parametrize(("override", "key", "hint"), [
    ("grpo.masks.sequence_error_max=3.0", "grpo.masks.sequence_error_max", 'sequence_error_max = "off"'),
    ("grpo.loss.importance_correction=true", "grpo.loss.importance_correction", "importance_correction = false"),
    ("grpo.loss.kl={penalty = 0.1, on_policy_approximation = true}", "grpo.loss.kl.on_policy_approximation",
     "on_policy_approximation = false"),
])
def test_beside_a_stand_in_what_a_profile_wants_compared_is_refused(bench, override: str, key: str, hint: str) -> None:
    with pytest.raises(PlanError, match=f"--set {key}: compares .*trainer 'steady'.*generator 'canned'") as caught:
        plan_with("generator.use=canned", override)
    assert hint in caught.value.hint


def test_validation_that_runs_once_is_enough(bench) -> None:
    target = ("validation.metric=accuracy", "validation.target=0.5")
    assert plan_with(*target, "validation.start_at=10").profile.validation.start_at == 10
    assert plan_with(*target, "validation.period=11", "validation.at_end=true").profile.validation.at_end


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_out_of_range(bench, seed: int) -> None:
    with pytest.raises(RegistryError, match="seed: should be between 0 and 4294967295"):
        plan_with(seed=seed)


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"text_config": 3}', '{"vocab_size": "many"}'])
def test_a_policy_with_a_damaged_configuration(bench, config: str) -> None:
    (bench.folder / "policy" / "config.json").write_text(config)
    with pytest.raises(RegistryError, match=r"profiles.base.policy.checkpoint: .*config.json.*registry.toml:\d+"):
        plan_with()


def test_a_policy_path_is_relative_to_the_file_that_gives_it(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    below = bench.folder / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    plan = make_plan(resolve("base", registry=bench.folder / "registry.toml"))
    assert plan.checkpoint.checkpoint == bench.folder / "policy"


def test_a_ruleset_that_finds_fault_leaves_the_run_unscored(bench) -> None:
    plan = plan_with("ruleset.use=strict", "grpo.max_steps=4")
    assert plan.findings == (Finding("steps", False, "at least 5 steps"),)
    assert not plan.scored
    assert "rule steps: at least 5 steps" in plan.unscored


def test_a_plugin_that_fails_while_it_is_asked_is_named(bench) -> None:
    with pytest.raises(PluginError, match=r"no attribute 'nowhere' \[plugin broken, role environment\]"):
        plan_with("environment.use=broken")


HEAD = "from grpo_bench.contract import Plugin, Role, Settings\n"


@pytest.mark.parametrize(("source", "message"), [
    ("1/0", r"test-bad 1.0 cannot be imported: ZeroDivisionError: division by zero \(.*__init__.py:1\)"),
    ("raise SystemExit(3)", "test-bad 1.0 cannot be imported: SystemExit: 3"),
    ("raise BaseException('odd')", "test-bad 1.0 cannot be imported: BaseException: odd"),
    ("assert False, 'no'", "test-bad 1.0 cannot be imported: AssertionError: no"),
    ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ("x = (", "test-bad 1.0 cannot be imported: SyntaxError"),
    ("other = 1", "has no attribute 'plugin'"),
    ("plugin = 3", "is no plugin descriptor but of type int"),
    (HEAD + "plugin = Plugin('bad', Role.TRAINER, '', Settings, 'a:b', api=99)", "is written for plugin API 99"),
    (HEAD + "plugin = Plugin('bad', Role.AGENT, '', Settings, 'a:b')",
     "as trainer 'bad', but its descriptor says agent 'bad'"),
    (HEAD + "plugin = Plugin('bad', Role.TRAINER, '', Settings)",
     "the descriptor of trainer 'bad' of test-bad names no factory"),
    (HEAD + "plugin = Plugin('bad', Role.TRAINER, '', Settings, 'a:b', requires=('no-such-thing>=2',))",
     "needs no-such-thing>=2, which is not installed"),
    (HEAD + "plugin = Plugin('bad', Role.TRAINER, '', Settings, 'a:b', supports={'numpy': '<1'})",
     "works with numpy<1, but"),
])
def test_a_broken_plugin_is_one_clear_error_and_only_for_who_asks(bench, source: str, message: str) -> None:
    bench.distribution("test-bad", {"trainer": {"bad": "plugin"}}, source)
    assert plan_with().parts[Role.TRAINER].name == "steady"
    with pytest.raises(PlanError, match=message) as caught:
        plan_with("trainer.use=bad")
    assert "plugin bad, role trainer" in str(caught.value)


def test_two_distributions_with_one_name_are_both_named(bench) -> None:
    bench.distribution("test-twin", {"trainer": {"steady": "trainer"}}, "")
    with pytest.raises(PlanError, match="trainer 'steady' comes from several distributions: test-parts, test-twin"):
        load_plugin(Role.TRAINER, "steady")


def test_provenance_locks_every_distribution_and_the_policys_files(bench) -> None:
    first = plan_with().provenance
    assert {"grpo-bench", "test-parts"} <= first["distributions"].keys()
    assert first["libraries"].keys() >= {"numpy", "pydantic"}
    assert first["policy"]["model.safetensors"]["bytes"] == 7
    module = bench.modules[-1]
    (bench.site / module / "extra.py").write_text("x = 1\n")
    second = plan_with().provenance
    assert first["distributions"]["test-parts"]["sha256"] != second["distributions"]["test-parts"]["sha256"]
    assert first["distributions"]["grpo-bench"] == second["distributions"]["grpo-bench"]
