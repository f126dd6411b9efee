"""The rules as data: formulas, schedule, versions, and what they share with the official checker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench_rules_mlperf import training_6_1_draft
from grpo_bench_rules_mlperf.config import RulesetConfig
from grpo_bench_rules_mlperf.convergence import expectation, outcome
from grpo_bench_rules_mlperf.judge import MLPerfRuleset, create
from grpo_bench_rules_mlperf.policy import model_of, model_table
from grpo_bench_rules_mlperf.rules import Bound, Division, Rules, amended
from grpo_bench_rules_mlperf.training_6_1 import RULES
from grpo_bench_rules_mlperf.versions import VERSIONS
from hypothesis import given, strategies as st

from grpo_bench.contract import ValidationReport

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text("utf-8")
every_version = pytest.mark.parametrize("rules", VERSIONS, ids=lambda rules: rules.name)
official = pytest.mark.skipif(find_spec("mlperf_logging") is None or version("mlperf-logging") != RULES.checker,
                              reason="needs the official checker")


def report(passed: int, tasks: int = 251, k: int = 4) -> ValidationReport:
    return ValidationReport(18, 18, k, tasks, passed, {"pass_k": passed / tasks}, 0.0, 1.0, {})


@pytest.mark.parametrize(("batch", "first", "steps", "rate", "clip"), [
    (256, 18, 30, 1e-6, 0.125), (512, 10, 20, 1.4142135624e-6, 0.08838834765), (1024, 7, 10, 2e-6, 0.0625),
    (1152, 6, 10, 2.1213203436e-6, 0.05892556510)])
def test_the_benchmarks_table(batch: int, first: int, steps: int, rate: float, clip: float) -> None:
    assert (RULES.first_validation(batch), RULES.steps(batch)) == (first, steps)
    assert RULES.learning_rate(batch) == pytest.approx(rate, abs=1e-15)
    assert RULES.clip_norm(batch) == pytest.approx(clip, abs=1e-10)


@given(st.integers(1, 10_000))
def test_the_first_validation_is_exact(batch: int) -> None:
    first = RULES.first_validation(batch)
    assert first - 1 < Fraction(5, 2) + Fraction(3840, batch) <= first


@pytest.mark.parametrize("division", Division)
def test_when_to_validate(division: Division) -> None:
    ruleset = MLPerfRuleset(RULES, 256, division)
    assert [step for step in range(31) if ruleset.should_validate(step, 30)] == list(range(18, 31))
    assert not ruleset.should_validate(10, 10)


def test_174_of_251() -> None:
    ruleset = MLPerfRuleset(RULES, 256)
    assert RULES.needed(251) == 174 and RULES.needed(100) == 69
    assert (ruleset.met(report(173)), ruleset.met(report(174))) == (False, True)
    assert not ruleset.met(report(251, k=8))


def test_batch_and_division_are_those_of_the_profile() -> None:
    context: Any = SimpleNamespace(shared={"grpo": SimpleNamespace(prompts_per_step=32, generations_per_prompt=16)},
                                   policy=SimpleNamespace(checkpoint=Path("/nowhere")), config=RulesetConfig())
    assert create(context).should_validate(10, 20) and not create(context).should_validate(9, 20)
    profile = {"grpo": {"prompts_per_step": 32, "generations_per_prompt": 8}, "missing": ["everything"]}
    found = [{finding.rule for finding in create(context).check(profile)}]
    context.config = RulesetConfig(division="open")
    found.append({finding.rule for finding in create(context).check(profile)})
    only_closed = {"grpo.generations_per_prompt", "policy.layers", "reference convergence"}
    assert found[1] < found[0] and only_closed <= found[0] - found[1]


@every_version
def test_rules_are_named_once_and_explained(rules: Rules) -> None:
    names = [item.rule for item in rules.requirements]
    assert len(names) == len(set(names))
    for number, item in enumerate(rules.requirements):
        assert item.why and item.at and item.divisions
        assert not item.given or item.given in names[:number]
        assert item.bound is Bound.EQUAL or not (item.also or item.tolerance)
        by_batch = [item.wanted_at(rules, batch) for batch in rules.batches]
        assert json.loads(json.dumps(by_batch)) == by_batch


def test_the_newest_version_is_the_installed_ruleset() -> None:
    from grpo_bench_rules_mlperf import ruleset
    assert VERSIONS[0] is RULES and ruleset.name == RULES.name
    assert len({rules.name for rules in VERSIONS}) == len(VERSIONS)


def test_a_version_says_only_what_it_changes() -> None:
    draft = training_6_1_draft.RULES
    assert (draft.needed(draft.validation_tasks), draft.validation_tasks) == (177, 256)
    kept = {item.rule: item for item in draft.requirements}
    changed = {item.rule for item in RULES.requirements if kept.get(item.rule) is not item}
    assert changed == {
        "validation.deferred", "environment.test_timeout_s",
        *(f"environment.{split}_expected.{what}" for split in ("train", "validation") for what in ("bytes", "sha256"))}
    assert draft.value("validation.max_tasks") == 256 and RULES.value("validation.max_tasks") == 251
    mistakes: list[dict[str, Any]] = [{"changes": {"validation.tasks": {"wanted": 1}}},
                                      {"without": ("validation.tasks",)}, {"more": [kept["validation.k"]]}]
    for mistake in mistakes:
        with pytest.raises(ValueError, match=r"validation\.(tasks|k)"):
            amended(RULES.requirements, **mistake)


def test_the_example_of_a_new_version_is_one() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    made: dict[str, Any] = {}
    exec(example, made)
    later: Rules = made["RULES"]
    assert (later.name, later.needed(251)) == ("mlperf-training-6.2", 189)
    assert (later.value("validation.target"), later.value("agent.max_turns")) == (0.75, 40)
    names = {item.rule for item in later.requirements}
    assert names ^ {item.rule for item in RULES.requirements} == {"grpo.loss.dual_clip", "schedule.in_flight"}


def test_the_page_says_what_the_rules_say() -> None:
    for rules in VERSIONS:
        assert f"| `{rules.name}` | {rules.checker} |" in PAGE
    for batch in RULES.batches:
        row = (batch, RULES.learning_rate(batch), RULES.clip_norm(batch), RULES.first_validation(batch),
               RULES.steps(batch))
        assert [float(cell) for cell in re.findall(rf"^\| ({batch}) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", PAGE,
                                                   re.MULTILINE)[0]] == pytest.approx(row, rel=1e-9)
    assert "batch 272, 288, 336, 368, 592, 608, 704 to 752 and 864 to 1008 (in steps of 16), and below 256" in (
        " ".join(PAGE.split()))


def checks(division: str) -> Mapping[str, str]:
    """What the official checker checks about each key of the benchmark's own."""
    import mlperf_logging
    import yaml
    file = Path(mlperf_logging.__file__).parent / "compliance_checker" / f"training_{RULES.checker_ruleset}" / (
        f"{division}_{RULES.benchmark}.yaml")
    keys = [item["KEY"] for item in yaml.safe_load(file.read_text()) if "KEY" in item]
    return {key["NAME"]: str(key["CHECK"]) for key in keys if "CHECK" in key}


@official
@pytest.mark.parametrize("division", Division)
def test_the_official_checker_fixes_the_same_keys(division: Division) -> None:
    """In a division it checks values of the keys that a binding requirement logs under, and of no others."""
    ours = {item.mllog for item in RULES.requirements if division in item.divisions and item.mllog}
    others = {"global_batch_size", "num_prompts_per_step", *({"num_generations_per_prompt"} - ours)}
    assert checks(division).keys() - others == (ours | RULES.log_only.keys()) - {"opt_end_learning_rate"}


@official
def test_the_official_checker_wants_the_same_values() -> None:
    """Where it compares with a number or a name, that is the requirement's."""
    said = {item.mllog: item.wanted_at(RULES, 256) for item in RULES.requirements if item.mllog}
    wanted = {**said, **RULES.log_only}
    compared = {key: check for key, check in checks("closed").items() if check.count("==") == 1 and "s[" not in check}
    assert len(compared) == 14
    for key, check in compared.items():
        assert eval(check, {"v": {"value": wanted[key]}}), key


@official
def test_convergence_is_judged_as_the_official_check_does() -> None:
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker
    checker = RCP_Checker("training", RULES.checker_ruleset, RULES.benchmark, False)
    refused = []
    for batch in range(256, 1025, 16):
        low, high = (find(batch, "pruned_rcps") for find in (checker._find_top_min_rcp, checker._find_bottom_max_rcp))
        record = checker._find_rcp(batch, "pruned_rcps") or checker._create_interp_rcp(batch, low, high)[1]
        passed, _ = checker._eval_submission_record(record, [batch * RULES.first_validation(batch)] * 3, "")
        assert bool(expectation(RULES, batch).fix) == (not passed), batch
        refused += [batch] if not passed else []
    assert refused == [272, 288, 336, 368, 592, 608, *range(704, 753, 16), *range(864, 1009, 16)]
    assert {record["BS"]: record["RCP Mean"] for record in checker.rcp_data.values()} == RULES.reference_samples


def test_convergence_below_and_above_the_references_batches() -> None:
    assert all(expectation(RULES, batch).fix for batch in range(16, 256, 16))
    wanted = {16: 4608, 256: 4608, 384: 4864, 512: 5120, 768: 6144, 1024: 7168, 1040: None}
    assert {batch: RULES.samples_to_converge(batch) for batch in wanted} == wanted
    beyond = expectation(RULES, 1152)
    assert beyond.ok and "above batch 1024: it will refuse every run at batch 1152" in beyond.message
    assert "refuse every run" in outcome(RULES, 1152, 6).message
    assert "refused" not in outcome(RULES, 256, 18).message and "refused" in outcome(RULES, 272, 17).message


def test_configs_say_the_same_in_several_ways(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 8, "head_dim": 256}
    layers = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
    for more in ({"layer_types": layers, "rope_parameters": {"partial_rotary_factor": 0.25}},
                 {"full_attention_interval": 4, "partial_rotary_factor": 0.25}):
        for config in ({"model_type": "qwen3_5_moe", "text_config": {**text, **more}},
                       {"model_type": "qwen3_5_moe_text", **text, **more}):
            found = model_table(config)
            assert found["layout"] == f"2 x ({', '.join(layers[:4])})"
            assert (found["architecture"], found["rope_size"]) == ("qwen3_5_moe", 64)
    assert model_table({}) == {"architecture": "", "layout": "not said"}
    assert model_of(tmp_path) is None
    (tmp_path / "config.json").write_text("[]")
    assert model_of(tmp_path) is None
