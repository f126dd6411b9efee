"""The benchmark's profiles where nothing that they need is: the plan is whole, and says precisely what it lacks."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import PlanError, Purpose, RegistryError, Role
from grpo_bench.registry import Plan, make_plan, resolve, survey
from grpo_bench.registry.outline import read_outline

FAMILY = "qwen35-397b-grpo"
PROFILE = "gb300-256"
SITE = """
[artifacts]
hf_checkpoint = "policy"
megatron_cache = "cache"
train_data = "train.jsonl"
validation_data = "validation.jsonl"
sif_dir = "sif"
system_template = "system.j2"
user_template = "user.j2"
[system]
submitter = "us"
status = "onprem"
system_name = "ours"
"""
FILES = (
    "environment 'r2egym': train tasks: no file {}train.jsonl of 446,364,412 bytes with "
    "SHA-256 e772af09599270ab16a04ccbbcef395bcb2929607f050478033a84b087a606fc",
    "environment 'r2egym': validation tasks: no file {}validation.jsonl of 172,078,629 bytes with "
    "SHA-256 2d5bddf717afb4389510a7d197f26ce5eb7f610aab4b20d6af6e0150de6f2c79",
    "environment 'r2egym': images: no folder {}sif",
    "agent 'openhands': system_template: there is no file {}system.j2 ",
    "agent 'openhands': user_template: there is no file {}user.j2 ",
)
ELSEWHERE = "hardware 'gb300': its nodes are not known here: nothing names them"
TABLE = {"gb300-256": (16, 1e-6, 0.125, 18, 30), "gb300-256-gbs512": (32, 1.4142135624e-6, 0.08838834765, 10, 20),
         "gb300-256-gbs1024": (64, 2e-6, 0.0625, 7, 10),
         "gb300-256-gbs1152": (72, 2.1213203436e-6, 0.05892556510, 6, 10)}
"""Prompts of a step, learning rate, clip norm, first validation and last step, as the benchmark lists them."""
OPEN = {"h200-open": (24, 12, 12), "b200-open": (16, 6, 10), "h100-open": (44, 20, 24)}
"""Nodes of 8 GPUs that the open profiles take, for the policy and for the generator."""


@pytest.fixture(autouse=True)
def bare(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder and, but for tests of real environments, a cache without them and a PATH without programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRPO_BENCH_TOPOLOGY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GRPO_BENCH_SITE", raising=False)
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(SITE)
    return file


@pytest.fixture(scope="module")
def plan_of() -> Callable[..., Plan]:
    """Plans of profiles of the family, each made once."""
    made: dict[tuple[str, ...], Plan] = {}

    def of(name: str = PROFILE, *overrides: str) -> Plan:
        if (key := (name, *overrides)) not in made:
            made[key] = survey(resolve(name, overrides=overrides), 5)
        return made[key]

    return of


def assert_listed(missing: tuple[str, ...], *beginnings: str) -> None:
    for beginning in beginnings:
        assert [line for line in missing if line.startswith(beginning)], beginning


def test_without_a_site_file_it_is_named_what_that_has_to_say(plan_of) -> None:
    missing = plan_of().missing
    for key, used in (("artifacts.hf_checkpoint", "policy.checkpoint"), ("artifacts.megatron_cache", "trainer.cache"),
                      ("artifacts.train_data", "environment.train"),
                      ("artifacts.validation_data", "environment.validation"),
                      ("artifacts.sif_dir", "environment.images"), ("system.submitter", "observers[0].org"),
                      ("artifacts.system_template", "agent.system_template"),
                      ("artifacts.user_template", "agent.user_template"),
                      ("system.system_name", "observers[0].platform"), ("system.status", "observers[0].status")):
        assert_listed(missing, f"site: {key} ({used}): ")


def test_everything_that_is_missing_is_listed(tmp_path: Path, site: Path) -> None:
    missing = survey(resolve(PROFILE, site=site)).missing
    assert not [line for line in missing if line.startswith("site: ")]
    files = [line.format(f"{tmp_path}/") for line in FILES]
    assert_listed(missing, *files, ELSEWHERE, f"profiles.{PROFILE}.policy.checkpoint: no folder {tmp_path}/policy ")
    for key, env in (("trainer.use", "megatron"), ("generator.env", "vllm-cuda"), ("agent.use", "openhands")):
        assert_listed(missing, f"profiles.{FAMILY}.{key}: environment '{env}' is not built; run")
    for role, env in (("trainer", "megatron"), ("generator", "vllm")):
        assert_listed(missing, f"judged in part: {role} '{env}', without the policy's checkpoint and its environment")
    assert_listed(missing, "environment 'r2egym': no sandbox can be made here: apptainer: ")
    assert not [line for line in missing if line.startswith("fabric")]


def test_places_are_settings(tmp_path: Path, site: Path) -> None:
    (tmp_path / "images").mkdir()
    overrides = (f"environment.images={tmp_path / 'images'}", "environment.train=~/mine.jsonl",
                 "environment.train_expected=off", "policy.checkpoint=/models/qwen")
    missing = survey(resolve(PROFILE, overrides=overrides, site=site)).missing
    assert f"environment 'r2egym': train tasks: no file {Path.home() / 'mine.jsonl'}" in missing
    assert_listed(missing, "--set policy.checkpoint: no folder /models/qwen ")
    assert not [line for line in missing if "images" in line]


def test_a_run_is_refused_and_leaves_nothing(tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--profile", PROFILE, "--site", str(site)]) == 2
    said = capsys.readouterr()
    files = [line.format(f"{tmp_path}/") for line in FILES]
    assert said.out == "" and all(line in said.err for line in (*files, ELSEWHERE))
    assert list(tmp_path.iterdir()) == [site]


@pytest.mark.parametrize("name", TABLE)
def test_a_child_adds_its_batch_and_nothing_else(plan_of, name: str) -> None:
    plan, trainer = plan_of(name), plan_of(name).parts[Role.TRAINER].config
    grpo, validation = plan.profile.grpo, plan.profile.validation
    assert (grpo.prompts_per_step, trainer.learning_rate, trainer.clip_norm, validation.start_at,
            grpo.max_steps) == TABLE[name]
    own = {item.key for item in plan.explained if item.origin.profile == name}
    assert own == {"description", "grpo.prompts_per_step", "grpo.max_steps", "trainer.learning_rate",
                   "trainer.clip_norm", "validation.start_at"}


def test_the_family_alone_has_no_batch() -> None:
    with pytest.raises(RegistryError, match=r"grpo\.prompts_per_step: required, but not set") as caught:
        resolve(FAMILY)
    assert caught.value.hint == f"profiles that extend it: {', '.join((*TABLE, 'h200-open'))}"


def test_its_values_are_those_of_the_benchmark(plan_of) -> None:
    plan = plan_of()
    profile, trainer, generator = plan.profile, plan.parts[Role.TRAINER].config, plan.parts[Role.GENERATOR].config
    grpo, validation, limits = profile.grpo, profile.validation, profile.limits
    assert (grpo.generations_per_prompt, grpo.advantage.voters) == (16, "reference")
    assert grpo.loss.truncation is not None and grpo.loss.kl.penalty == 0
    assert (grpo.loss.truncation.kind, grpo.loss.truncation.min, grpo.loss.truncation.max) == (
        "seq-mask-tis", 0.999, 1.002)
    assert trainer.workers == trainer.model_ranks == 64 and trainer.weight_decay == 0
    assert generator.workers * generator.tensor_parallel == 192
    assert (validation.max_tasks, validation.k, validation.target, validation.deferred) == (251, 4, 0.69, True)
    assert (validation.at_start, validation.at_end, validation.period) == (False, False, 1)
    assert (profile.checkpoint.period, profile.checkpoint.final, limits.max_failed_share) == (0, False, 0.0)
    assert profile.rollout.workers * limits.concurrency == 256 and limits.rollout_retries >= 10
    assert profile.seed == "random" and plan.parts[Role.RULESET].name == "mlperf-training-6.1"
    sampled = {Purpose.TRAIN: profile.sampling, Purpose.VALIDATION: validation.sampling}
    assert {purpose.value: (found.temperature, found.top_p, found.max_tokens)
            for purpose, found in sampled.items() if found} == {
                "train": (1.0, 1.0, 65536), "validation": (0.1, 0.95, 65536)}


@pytest.mark.parametrize("name", TABLE)
def test_no_rule_is_broken_and_what_is_unknown_is_missing_here(plan_of, name: str) -> None:
    findings = plan_of(name).findings
    assert [finding.rule for finding in findings if not finding.ok and not finding.unknown] == []
    unknown = [finding for finding in findings if finding.unknown]
    assert {finding.key for finding in unknown} <= {"policy.checkpoint", "environment.train", "environment.validation"}
    assert len(findings) - len(unknown) > 80
    assert all(plan_of(name).source(finding.key) for finding in findings if finding.key)


def test_a_rule_that_is_broken_is_said_with_where_it_was_set(plan_of) -> None:
    plan = plan_of(PROFILE, "validation.k=3", "validation.target=0.7")
    broken = {finding.rule: finding for finding in plan.findings if not finding.ok and not finding.unknown}
    assert broken.keys() == {"validation.k", "validation.target"}
    source = plan.source(broken["validation.k"].key)
    assert source is not None and source.origin.layer == "--set"


def test_64_nodes_are_16_for_the_policy_and_48_for_24_engines(plan_of) -> None:
    plan = plan_of()
    hosts = plan.layout.picture().hosts
    held = Counter((host.domain, role, len(ranks)) for host in hosts for role, ranks in host.ranks.items()
                   if role != "rollout")
    assert held == {("rack0", "trainer", 4): 16, **{(f"rack{rack}", "generator", 1): 16 for rack in (1, 2, 3)}}
    reach = {(span.role, span.kind): (span.groups, span.size, span.hosts, span.domains)
             for span in plan.layout.spans()}
    assert reach["trainer", "expert"] == (2, 32, 8, 1)
    assert reach["trainer", "tensor"] == (16, 4, 1, 1)
    assert reach["generator", "worker"] == (24, 1, 2, 1)
    assert not plan.layout.crossings()
    assert plan.placements["trainer"].env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert len(set(plan.placements["rollout"].nodes)) == 16


@pytest.mark.parametrize("name", OPEN)
def test_nodes_of_8_run_the_open_form(name: str, plan_of) -> None:
    plan, (nodes, policy, generation) = plan_of(name), OPEN[name]
    trainer, generator = plan.placements["trainer"], plan.placements["generator"]
    assert (plan.form.nodes, plan.form.gpus) == (nodes, 8) and policy + generation == nodes
    assert (len(set(trainer.nodes)), len(set(generator.nodes))) == (policy, generation)
    assert len(trainer.nodes) == 8 * policy and trainer.gpus == 1
    assert generator.workers * generator.gpus == 8 * generation
    assert {span.kind for span in plan.layout.spans() if span.domains > 1} == {"pipeline"}
    assert not [line for line in plan.missing if "needs" in line or "take" in line or "leave" in line]
    assert not [finding for finding in plan.findings if not finding.ok and not finding.unknown]
    assert plan.resolved["ruleset"]["division"] == "open" and plan.estimate is None


def test_spare_nodes_are_asked_for_with_the_others(plan_of) -> None:
    plan = plan_of(PROFILE, "hardware.nodes=72", "hardware.segment=18", "hardware.spare=8")
    assert plan.form.nodes == 72 and set(plan.placements["trainer"].spares) == set(plan.placements["trainer"].nodes)


def test_memory_fits_the_gpus_and_is_refused_where_it_does_not(plan_of) -> None:
    for role in (Role.TRAINER, Role.GENERATOR):
        facts = plan_of().parts[role].facts
        assert 100e9 < facts["memory_bytes"] < 288e9
        assert facts["memory_assumed"]
    assert plan_of().parts[Role.TRAINER].facts["weights_bytes"] == pytest.approx(793e9, rel=1e-3)
    for override, words in (
            ("trainer.recompute=off", "a rank needs 476.8 GiB and has 268.2 GiB: weights 13.6 GiB, "),
            ("hardware.gpu_memory_gb=80", "a rank needs 146.2 GiB and has 74.5 GiB: "),
            ("generator.gpu_memory_utilization=0.3", "a process has weights of 94,753 MiB, and "),
            ("generator.gpu_memory_utilization=0.97", "a refit needs 9,763 MiB beside weights and cache, which ")):
        with pytest.raises(PlanError, match=re.escape(words)):
            plan_of(PROFILE, override)


@pytest.mark.parametrize(("override", "words"), [
    ("hardware.policy_nodes=8", "64 ranks take 16 nodes of 4 GPUs, and 8 of 64 are for them"),
    ("hardware.nodes=60", "24 engines of 8 GPUs take 48 nodes of 4 GPUs, and 44 of 60 are for them"),
    ("hardware.nodes_per_domain=4", "segment = 8 nodes do not fit into a domain of nodes_per_domain = 4"),
    ("trainer.expert_parallel=24", "cannot be divided by"),
])
def test_a_layout_that_cannot_be_is_refused(override: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", PROFILE, "--set", override]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.out == ""


def test_the_policys_outline_is_that_of_the_model_table() -> None:
    file = resources.files("grpo_bench_rules_mlperf") / "qwen35_397b_a17b.json"
    outline = read_outline(Path(str(file)))
    counts = {name: math.prod(shape) for name, shape in outline.tensors.items()}
    experts = sum(count for name, count in counts.items() if ".experts." in name)
    text: dict[str, Any] = outline.config["text_config"]
    active = sum(counts.values()) - experts * (1 - text["num_experts_per_tok"] / text["num_experts"])
    assert round(sum(counts.values()) / 1e9) in (396, 397) and round(active / 1e9) == 17
    assert text["layer_types"] == (["linear_attention"] * 3 + ["full_attention"]) * 15


def test_its_weights_are_named_as_in_a_checkpoint_of_its_kind() -> None:
    """Against the tiny policy of the same architecture, whose experts are not stacked."""
    folder = Path(str(resources.files("grpo_bench_policy_minirepair") / "base_qwen35"))
    with (folder / "model.safetensors").open("rb") as opened:
        head = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    tiny = {name for name in head if name.startswith(("lm_head", "model.norm", "model.embed", "model.layers.0.",
                                                      "model.layers.3.")) and ".experts." not in name}
    outline = read_outline(Path(str(resources.files("grpo_bench_rules_mlperf") / "qwen35_397b_a17b.json")))
    ours = {name.replace("model.language_model.", "model.") for name in outline.tensors}
    assert tiny <= ours
    assert {name for name in ours if name.startswith("model.layers.0.")} - tiny == {
        "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"}


def test_the_page_has_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", PROFILE, "--seed", "7"]) == 1
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 120 and len([line for line in lines if len(line) > 100]) == 0
    for title in ("identities:", "placement:", "memory:", "rules of the closed division: 0 do not hold",
                  "missing on this machine:"):
        assert f"\n{title}" in text
    assert "13 times at most, at 4,608 to" in text and "seed         7" in text
    assert "ok   validation.target: 0.69  [packaged registry.toml:" in text
    assert "scored: no" in text or "scored: as far as it can be judged here" in text


def test_the_division_is_the_rulesets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", PROFILE, "--division", "open", "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert plan["profile"]["ruleset"]["division"] == "open"


def test_a_random_seed_may_be_deterministic() -> None:
    plans = [make_plan(resolve("mock", overrides=["seed=random"])) for _ in range(2)]
    assert all(plan.deterministic for plan in plans) and plans[0].seed != plans[1].seed


@pytest.mark.real("megatron", "openhands", "vllm")
def test_what_the_builds_for_cpus_lack_is_listed() -> None:
    missing = survey(resolve(PROFILE, overrides=["generator.env=vllm"])).missing
    assert_listed(
        missing, ELSEWHERE,
        "trainer 'megatron': trainer.transformer_engine, trainer.attention, trainer.grouped_gemm, "
        "trainer.precision_aware_optimizer need Transformer Engine on a GPU",
        "trainer 'megatron': trainer.dispatcher = \"flex\" with hybridep needs it on a GPU",
        "generator 'vllm': cuda_graphs = \"full_and_piecewise\" is not possible here",
        "generator 'vllm': moe_backend = \"triton\" is not possible here",
        "generator 'vllm': expert_parallel = true is not possible here",
        "judged in part: trainer 'megatron', without the policy's checkpoint",
        "judged in part: generator 'vllm', without the policy's checkpoint")
    assert not [line for line in missing if "not built" in line]
