"""The benchmark's profile, where nothing that it needs is there: its plan says what, precisely."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import Purpose, Role
from grpo_bench.registry import Plan, resolve, survey

PROFILE = "qwen35-397b-swe"
FILES = (
    "environment 'r2egym': train tasks: no file data/benchmark_r2e_gym_easy_train.jsonl of 446,364,412 bytes with "
    "SHA-256 e772af09599270ab16a04ccbbcef395bcb2929607f050478033a84b087a606fc",
    "environment 'r2egym': validation tasks: no file data/benchmark_r2e_gym_easy_val.jsonl of 172,078,629 bytes with "
    "SHA-256 2d5bddf717afb4389510a7d197f26ce5eb7f610aab4b20d6af6e0150de6f2c79",
    "environment 'r2egym': images: no folder data/sif",
    "agent 'openhands': system_template: there is no file data/prompts/system_prompt.j2 ",
    "agent 'openhands': user_template: there is no file data/prompts/user_prompt.j2 ",
)
GPUS = ("trainer 'megatron': 64 ranks need a GPU each; here 1 machine has ",
        "generator 'vllm': 24 engines of 8 processes take 192 GPUs; this machine has ")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without environments, a PATH without programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))


def plan_of(*overrides: str) -> Plan:
    return survey(resolve(PROFILE, overrides=overrides))


def assert_listed(missing: tuple[str, ...], *beginnings: str) -> None:
    for beginning in beginnings:
        assert [line for line in missing if line.startswith(beginning)], beginning


@pytest.mark.usefixtures("bare")
def test_everything_that_is_missing_is_listed(tmp_path: Path) -> None:
    missing = plan_of().missing
    folder = tmp_path / "data" / "Qwen3.5-397B-A17B"
    assert_listed(missing, *FILES, *GPUS, f"profiles.{PROFILE}.policy.checkpoint: no folder {folder} ")
    for role, env in (("trainer", "megatron"), ("generator", "vllm"), ("agent", "openhands")):
        assert_listed(missing, f"profiles.{PROFILE}.{role}.use: environment '{env}' is not built; run")
        left = "its environment" if role == "agent" else "the policy's checkpoint and its environment"
        assert_listed(missing, f"not judged: {role} '{env}', without {left}")
    assert_listed(missing, "environment 'r2egym': no sandbox can be made here: apptainer: ")


@pytest.mark.usefixtures("bare")
def test_places_are_settings(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    missing = plan_of(f"environment.images={tmp_path / 'images'}", "environment.train=~/mine.jsonl",
                      "environment.train_expected=off", "policy.checkpoint=/models/qwen").missing
    assert f"environment 'r2egym': train tasks: no file {Path.home() / 'mine.jsonl'}" in missing
    assert_listed(missing, "--set policy.checkpoint: no folder /models/qwen ")
    assert not [line for line in missing if "images" in line]


@pytest.mark.usefixtures("bare")
def test_a_run_is_refused_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--profile", PROFILE]) == 2
    said = capsys.readouterr()
    assert said.out == "" and all(line in said.err for line in (*FILES, *GPUS))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("bare")
def test_its_values_are_those_of_the_benchmark() -> None:
    plan = plan_of()
    profile, trainer, generator = plan.profile, plan.parts[Role.TRAINER].config, plan.parts[Role.GENERATOR].config
    grpo, validation = profile.grpo, profile.validation
    assert grpo.prompts_per_step * grpo.generations_per_prompt == 256
    assert (grpo.generations_per_prompt, grpo.max_steps, grpo.advantage.voters) == (16, 30, "reference")
    assert grpo.loss.truncation is not None and grpo.loss.kl.penalty == 0
    assert (grpo.loss.truncation.kind, grpo.loss.truncation.min, grpo.loss.truncation.max) == (
        "seq-mask-tis", 0.999, 1.002)
    assert (trainer.learning_rate, trainer.clip_norm, trainer.weight_decay) == (1e-6, 0.125, 0.0)
    assert trainer.workers == trainer.model_ranks == 64
    assert generator.workers * generator.tensor_parallel == 192
    assert validation.start_at == 18 and (validation.max_tasks, validation.k, validation.target) == (251, 4, 0.69)
    assert profile.rollout.workers * profile.limits.concurrency == 256
    sampled = {Purpose.TRAIN: profile.sampling, Purpose.VALIDATION: validation.sampling}
    assert {purpose.value: (found.temperature, found.top_p, found.max_tokens)
            for purpose, found in sampled.items() if found} == {
                "train": (1.0, 1.0, 65536), "validation": (0.1, 0.95, 65536)}


@pytest.mark.real("megatron", "openhands", "vllm")
def test_what_the_builds_for_cpus_lack_is_listed() -> None:
    missing = plan_of().missing
    assert_listed(
        missing, *FILES, *GPUS,
        "trainer 'megatron': trainer.transformer_engine, trainer.attention, trainer.grouped_gemm, "
        "trainer.precision_aware_optimizer need Transformer Engine on a GPU",
        "trainer 'megatron': trainer.dispatcher = \"flex\" with hybridep needs it on a GPU",
        "generator 'vllm': cuda_graphs = \"full_and_piecewise\" is not possible here",
        "generator 'vllm': moe_backend = \"triton\" is not possible here",
        "generator 'vllm': expert_parallel = true is not possible here",
        "not judged: trainer 'megatron', without the policy's checkpoint",
        "not judged: generator 'vllm', without the policy's checkpoint")
    assert not [line for line in missing if "not built" in line]
