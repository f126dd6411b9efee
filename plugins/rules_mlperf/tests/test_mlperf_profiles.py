"""Profiles against the rules: what the benchmark's profiles hold is what must be, and nothing else would do.

The table of mutations is made of the requirements themselves: for each, a profile that is otherwise sound and has
another value there, for which exactly that finding must fail.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import pytest
from grpo_bench_rules_mlperf import training_6_1_draft
from grpo_bench_rules_mlperf.holding import model_findings, value_at
from grpo_bench_rules_mlperf.judge import MLPerfRuleset
from grpo_bench_rules_mlperf.policy import model_table
from grpo_bench_rules_mlperf.rules import Bound, Division, Nothing, Requirement, Rules
from grpo_bench_rules_mlperf.training_6_1 import RULES

from grpo_bench.contract import Finding, Role
from grpo_bench.registry import resolve, survey

BATCHES = {"gb300-256": 256, "gb300-256-gbs512": 512, "gb300-256-gbs1024": 1024, "gb300-256-gbs1152": 1152}
CONFIG = json.loads(files("grpo_bench_rules_mlperf").joinpath("qwen35_397b_a17b.json").read_text("utf-8"))["config"]
"""What the benchmark's checkpoint holds, as plans expect it where it is not there."""
TABLE = model_table(CONFIG)
Profile = dict[str, Any]
_plans: dict[str, Profile] = {}


def planned(name: str) -> Profile:
    """A profile as a ruleset sees it, on whatever machine this is."""
    if name not in _plans:
        plan = survey(resolve(name))
        facts = {role.value: dict(part.facts) for role, part in plan.parts.items()}
        _plans[name] = {**plan.resolved, "facts": facts, "missing": list(plan.missing)}
    return copy.deepcopy(_plans[name])


def whole(name: str) -> Profile:
    """The same where nothing is missing: parts say what they compute and what data there is."""
    profile = planned(name)
    batch = BATCHES[name]
    optimizer = {item.rule.removeprefix("trainer."): item.wanted_at(RULES, batch) for item in RULES.requirements
                 if item.at[0].startswith("facts.trainer.opt_")}
    tasks = {"train": {"tasks": 700}, "validation": {"tasks": 251}}
    profile["facts"] = {**{role.value: {} for role in Role}, "trainer": optimizer, "environment": {"tasks": tasks}}
    profile["missing"] = []
    return profile


def verdicts(profile: Profile, *, division: Division = Division.CLOSED, rules: Rules = RULES,
             model: Mapping[str, Any] | None = TABLE) -> Sequence[Finding]:
    return MLPerfRuleset(rules, 256, division, model).check(profile)


def broken(profile: Profile, **how: Any) -> list[str]:
    found = verdicts(profile, **how)
    assert all(finding.message and "\n" not in finding.message for finding in found)
    assert all(finding.why for finding in found)
    return [finding.rule for finding in found if not finding.ok]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("division", Division)
def test_the_benchmarks_profiles_hold_what_must_be(name: str, division: Division) -> None:
    """With everything there every requirement is kept; on a machine without, none is broken that needs no artifact."""
    profile = whole(name)
    grpo = profile["grpo"]
    assert grpo["prompts_per_step"] * grpo["generations_per_prompt"] == BATCHES[name]
    assert broken(profile, division=division) == []
    for finding in verdicts(planned(name), division=division, model=None):
        assert finding.ok or (finding.unknown and finding.message.startswith("not known here; the rules want")), finding
    asked = {finding.rule for finding in verdicts(profile, division=division)}
    binding = {item.rule for item in RULES.requirements
               if division in item.divisions and item.bound is not Bound.REFERENCE}
    assert binding <= asked


def test_the_mock_of_the_benchmark_has_its_shape() -> None:
    """Its stand-ins are what is wrong with it; what depends on them is not held against them one by one."""
    assert broken(planned("gb300-256-mock"), model={"architecture": "qwen3"}) == [
        "environment.use", "agent.use", "policy.architecture", "trainer.freeze_router"]


def other(item: Requirement, wanted: Any) -> Any:
    """A value of the same kind that will not do."""
    if item.bound is Bound.AT_LEAST:
        return wanted - 1
    if isinstance(wanted, bool):
        return not wanted
    if isinstance(wanted, float):
        return wanted + max(0.125, 2 * item.tolerance)
    return wanted + 1 if isinstance(wanted, int) else "another" if isinstance(wanted, str) else 0.5


def put(values: Any, dotted: str, value: Any) -> None:
    """Set a value by its path, made where it is not there; one name may hold dots."""
    head, _, rest = dotted.partition(".")
    if head.isdecimal():
        values[int(head)] = value
    elif rest:
        if values.get(head) is None:
            values[head] = {}
        put(values[head], rest, value)
    else:
        values[head] = value


BINDING = [item for item in RULES.requirements if item.bound is not Bound.REFERENCE]
TOLD = [item for item in BINDING if not item.at[0].startswith("model.")]


def each(items: Iterable[Requirement]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("item", list(items), ids=lambda item: item.rule)


@each(TOLD)
def test_one_wrong_value_is_one_finding(item: Requirement) -> None:
    profile = whole("gb300-256")
    put(profile, item.at[0], other(item, item.wanted_at(RULES, 256)))
    if item.rule == "grpo.generations_per_prompt":  # another batch would have values of its own
        profile["grpo"] |= {"prompts_per_step": 32, "generations_per_prompt": 8}
    rules = {finding.rule: finding for finding in verdicts(profile) if not finding.ok}
    assert list(rules) == [item.rule]
    finding = rules[item.rule]
    assert not finding.unknown and "; the rules want" in finding.message and finding.why == item.why
    assert finding.fix or not finding.key
    for division in Division:
        assert (item.rule in broken(profile, division=division)) == (division in item.divisions)


@each(item for item in TOLD if len(item.at) > 1)
def test_where_the_first_place_says_nothing_the_next_counts(item: Requirement) -> None:
    profile, wanted = whole("gb300-256"), item.wanted_at(RULES, 256)
    table, _, name = item.at[0].rpartition(".")
    value_at(profile, table).pop(name)
    for value in (wanted, other(item, wanted)):
        put(profile, item.at[1], value)
        assert (item.rule in broken(profile)) == (value != wanted)


@each(item for item in BINDING if item not in TOLD)
def test_one_wrong_value_of_the_checkpoint_is_one_finding(item: Requirement) -> None:
    name = item.at[0].removeprefix("model.")
    table = {**TABLE, name: other(item, item.wanted_at(RULES, 256))}
    (finding,) = [finding for finding in verdicts(whole("gb300-256"), model=table) if not finding.ok]
    assert (finding.rule, finding.key, finding.unknown) == (item.rule, "policy.checkpoint", False)
    assert broken(whole("gb300-256"), model=table, division=Division.OPEN) == []


def test_what_a_checkpoint_holds_can_be_asked_alone() -> None:
    found = model_findings(RULES, CONFIG, Division.CLOSED)
    assert len(found) == 18 and all(finding.ok for finding in found)
    text = CONFIG["text_config"]
    small = {**CONFIG, "text_config": {**text, "num_experts": 256, "layer_types": text["layer_types"][1:]}}
    wrong = [finding for finding in model_findings(RULES, small, Division.CLOSED) if not finding.ok]
    assert [finding.rule for finding in wrong] == ["policy.layout", "policy.experts"]
    assert model_findings(RULES, small, Division.OPEN) == ()


@each(item for item in RULES.requirements if item.bound is Bound.REFERENCE)
def test_what_the_reference_ran_is_told_and_free(item: Requirement) -> None:
    for value in (item.wanted, other(item, item.wanted)):
        profile = whole("gb300-256")
        put(profile, item.at[0], value)
        (finding,) = [finding for finding in verdicts(profile) if finding.rule == item.rule]
        assert finding.ok
        assert ("as the reference" in finding.message) == (value == item.wanted)
        assert ("the reference has" in finding.message) == (value != item.wanted)


@pytest.mark.parametrize(("key", "value"), [
    ("agent.agent_timeout_s", 7200.0), ("agent.command_timeout_s", 120), ("environment.test_timeout_s", 600.0),
    ("environment.command_timeout_s", 61.0), ("limits.rollout_s", 86_400.0), ("schedule.max_age", 4),
    ("schedule.mode", "sync"), ("schedule.prompts_in_flight", 16), ("trainer.precision", "float32"),
    ("trainer.workers", 128), ("hardware.nodes", 16), ("validation.max_tasks", None), ("checkpoint.period", 5),
    ("limits.rollout_retries", 0), ("seed", 4_000_000_000),
    ("facts.trainer.opt_base_learning_rate", 1.0005e-6), ("trainer.model.mtp_num_layers", 0)])
def test_what_is_free(key: str, value: Any) -> None:
    profile = whole("gb300-256")
    put(profile, key, value)
    assert broken(profile) == []


@pytest.mark.parametrize(("key", "value", "rules"), [
    ("validation.target", None, ["validation.target"]),
    ("sampling.top_k", True, ["sampling.top_k"]), ("sampling.temperature", True, ["sampling.temperature"]),
    ("trainer.freeze_router", 1, ["trainer.freeze_router"]),
    ("validation.deferred", False, ["validation.deferred"]),
    ("grpo.loss.truncation", None, [f"grpo.loss.truncation.{key}" for key in ("kind", "min", "max")]),
    ("facts.trainer.opt_adamw_epsilon", 1.001e-8, ["trainer.opt_adamw_epsilon"]),
    ("facts.trainer.opt_gradient_clip_norm", None, ["trainer.opt_gradient_clip_norm"]),
    ("facts.environment.tasks", {}, ["environment.validation_tasks", "environment.training_tasks"]),
    ("environment.train_expected", None, ["environment.train_expected.bytes", "environment.train_expected.sha256"]),
    ("grpo.prompts_per_step", 32, ["validation.start_at", "grpo.max_steps", "trainer.opt_base_learning_rate",
                                   "trainer.opt_end_learning_rate", "trainer.opt_gradient_clip_norm"]),
    ("grpo.prompts_per_step", 20, ["validation.start_at", "trainer.opt_base_learning_rate",
                                   "trainer.opt_end_learning_rate", "trainer.opt_gradient_clip_norm"])])
def test_what_belongs_together(key: str, value: Any, rules: list[str]) -> None:
    profile = whole("gb300-256")
    put(profile, key, value)
    assert broken(profile) == rules


def test_a_benchmark_run_is_logged() -> None:
    profile = whole("gb300-256")
    profile["observers"] = [{"use": "other"}]
    assert broken(profile) == ["observers"]


def test_validation_samples_as_training_does_where_it_says_nothing() -> None:
    profile = whole("gb300-256")
    profile["validation"]["sampling"] = None
    assert broken(profile) == ["validation.sampling.temperature", "validation.sampling.top_p"]
    found = {finding.rule: finding for finding in verdicts(profile)}["validation.sampling.temperature"]
    assert (found.message, found.key) == ("1; the rules want 0.1", "sampling.temperature")


def test_settings_stand_for_what_no_part_says() -> None:
    """Without the trainer's environment nobody describes the trainer, and its settings are there all the same."""
    profile = whole("gb300-256")
    profile["facts"]["trainer"] = {}
    assert broken(profile) == [f"trainer.{key}" for key in (
        "opt_name", "opt_learning_rate_warmup_steps", "opt_learning_rate_decay_schedule")]
    assert not any(finding.unknown for finding in verdicts(profile))
    profile["missing"] = ["the trainer's environment"]
    assert all(finding.unknown for finding in verdicts(profile) if not finding.ok)
    profile["trainer"]["betas"] = [0.9, 0.95]
    (wrong,) = [finding for finding in verdicts(profile) if not finding.ok and not finding.unknown]
    assert asdict(wrong) == {
        "rule": "trainer.opt_adamw_beta_2", "ok": False, "message": "0.95; the rules want 0.999",
        "key": "trainer.betas", "why": "Adam's averages are the reference's", "fix": "let trainer.betas.1 be 0.999",
        "unknown": False}


def test_only_what_is_missing_is_unknown() -> None:
    """A checkpoint that is not here leaves all that it would tell unknown; a setting is there or not, whatever is."""
    profile = whole("gb300-256")
    profile["missing"] = ["the policy's checkpoint"]
    unknown = [finding for finding in verdicts(profile, model=None) if not finding.ok]
    assert len(unknown) == 18 and all(finding.unknown for finding in unknown)
    del profile["environment"]["grading"]
    (wrong,) = [finding for finding in verdicts(profile) if not finding.ok]
    assert (wrong.rule, wrong.message, wrong.unknown) == (
        "environment.grading", "not said; the rules want r2e_exact", False)


def test_older_rules_have_their_own_values() -> None:
    draft = training_6_1_draft.RULES
    wrong = set(broken(whole("gb300-256"), rules=draft))
    assert {"validation.max_tasks", "environment.validation_expected.sha256", "environment.test_timeout_s"} <= wrong
    assert "validation.deferred" not in {finding.rule for finding in verdicts(whole("gb300-256"), rules=draft)}
    assert value_at({"a": [{"b.c": 1}]}, "a.0.b.c") == 1 and value_at({"a": [1]}, "a.1") is Nothing.SAID
